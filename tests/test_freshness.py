from __future__ import annotations

import asyncio
import datetime as dt
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.utils import timezone

from tests.app.models import Counter
from tests.insight.test_rollup import write
from tests.support import await_for
from tests.support.local import Sockets, draining
from visibility import freshness, points
from visibility.datatypes import registry
from visibility.freshness import AlertRule, Burn, judge, rules_for
from visibility.insight import metrics, rollup
from visibility.insight.histogram import Histogram, bucket_of
from visibility.insight.metrics import Figures
from visibility.models import DirtyFlag, FreshnessSLO, Rollup
from visibility.signals import slo_alert, snapshot_built
from visibility.soft import inspect

RULE = AlertRule("burning_fast", 3600, 300, 4.8)
SLOW = AlertRule("burning", 21_600, 1800, 2)


def burn(rule: AlertRule, long: float | None, short: float | None, shown: int = 100) -> Burn:
    return Burn(rule=rule, long=long, short=short, shown=shown)


class TestJudge:
    @pytest.mark.parametrize(
        ("attained", "burns", "code"),
        [
            (None, [], "none"),
            (0.999, [], "met"),
            (0.99, [burn(RULE, 1, 1)], "met"),
            (0.98, [burn(RULE, 1, 1)], "missed"),
            (0.999, [burn(RULE, 5, 5)], "burning_fast"),
            (0.98, [burn(RULE, 5, 5)], "burning_fast"),
            (0.999, [burn(RULE, 5, 0)], "met"),
            (0.999, [burn(RULE, 5, None)], "met"),
            (0.999, [burn(RULE, 0.1, 9)], "met"),
            (0.999, [burn(RULE, 3, 3), burn(SLOW, 3, 3)], "burning"),
            (0.97, [burn(RULE, 3, 3), burn(SLOW, 3, 3)], "missed"),
            (0.999, [burn(RULE, 50, 50, shown=3)], "met"),
        ],
    )
    def test_the_state(self, attained: float | None, burns: list[Burn], code: str) -> None:
        assert judge(attained, 0.99, burns).code == code

    def test_every_state_is_told_by_word_and_not_by_colour_alone(self) -> None:
        words = [str(state.words) for state in freshness.STATES.values()]
        assert len(set(words)) == len(words)

    @pytest.mark.parametrize("window", [900, 3600, 86_400, 7 * 86_400, 30 * 86_400])
    def test_rules_leave_budget_when_they_fire(self, window: int) -> None:
        for rule in rules_for(window):
            assert rule.short < rule.long <= window
            assert rule.rate >= 1
            # The share of the window's budget that is gone by the time the rule can fire.
            assert rule.rate * rule.long / window <= 1

    def test_a_month_has_the_workbooks_numbers(self) -> None:
        assert [(rule.long, rule.short, rule.rate) for rule in rules_for(30 * 86_400)] == [
            (3600, 300, 14.4),
            (21_600, 1800, 6),
            (259_200, 21_600, 1),
        ]


@pytest.mark.django_db
class TestSync:
    def test_every_data_type_gets_the_promise_of_its_code(self) -> None:
        freshness.sync_slos()
        held = dict(FreshnessSLO.objects.values_list("data_type", "seconds"))
        assert held == {data_type.name: data_type.freshness.seconds for data_type in registry}
        assert freshness.sync_slos() == 0

    def test_what_was_edited_by_hand_stays(self) -> None:
        freshness.sync_slos()
        FreshnessSLO.objects.filter(data_type="feed").update(seconds=9, edited=True)
        FreshnessSLO.objects.filter(data_type="counter").update(seconds=9)
        assert freshness.sync_slos() == 1
        held = dict(FreshnessSLO.objects.values_list("data_type", "seconds"))
        assert (held["feed"], held["counter"]) == (9, 2)


@pytest.fixture
def feed_slo(db: None) -> FreshnessSLO:
    return FreshnessSLO.objects.create(data_type="feed", seconds=3, objective=0.99, window=86_400)


class TestReport:
    def test_figures_equal_those_of_the_raw_samples_within_five_per_cent(self, feed_slo: FreshnessSLO) -> None:
        rng = random.Random(11)
        samples = [rng.lognormvariate(-0.5, 1) for _ in range(20_000)]
        for seconds in samples:
            metrics.observe("freshness_sent", seconds, data_type="feed")
        assert metrics.flush()
        (found,) = freshness.report()
        ordered = sorted(samples)
        for q, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
            assert value == pytest.approx(ordered[int(q * len(ordered)) - 1], rel=0.05)
        exact = sum(seconds <= 3 for seconds in samples) / len(samples)
        assert found.attained == pytest.approx(exact, rel=0.05)
        assert 1 - found.attained == pytest.approx(1 - exact, rel=0.05)
        assert found.shown == len(samples)
        assert found.state.code == "burning_fast"

    def test_after_the_rollup_they_are_the_same(self, feed_slo: FreshnessSLO) -> None:
        write(2, {f"freshness_sent|feed|~{bucket_of(0.5)}": 990, f"freshness_sent|feed|~{bucket_of(7)}": 30})
        (before,) = freshness.report()
        rollup.roll()
        (after,) = freshness.report()
        assert (before.attained, before.p99, before.budget_left) == (after.attained, after.p99, after.budget_left)
        assert after.attained == pytest.approx(990 / 1020)
        assert after.budget_left == pytest.approx(1 - 30 / 1020 / 0.01)

    def test_a_month_is_read_from_days(self, feed_slo: FreshnessSLO, django_assert_max_num_queries) -> None:
        feed_slo.window = 30 * 86_400
        feed_slo.save()
        now = timezone.now()
        for days in (1, 5, 20, 29, 35):
            figures = Figures(histograms={("freshness_sent", "feed"): Histogram.of([0.5] * 10)})
            rollup.save_minute(int((now - dt.timedelta(days=days)).timestamp() // 60), figures)
        Rollup.objects.exclude(metric__endswith="@day").filter(minute__lt=now - dt.timedelta(days=3)).delete()
        with django_assert_max_num_queries(3):
            (found,) = freshness.report(now=now)
        assert found.shown in (40, 30)

    def test_no_data_is_not_success(self, feed_slo: FreshnessSLO) -> None:
        (found,) = freshness.report()
        assert found.state.code == "none"
        assert found.attained is None and found.budget_left is None and found.p50 is None

    def test_the_oldest_mark_is_told_per_type(self, feed_slo: FreshnessSLO) -> None:
        FreshnessSLO.objects.create(data_type="counter", seconds=1, objective=0.9)
        now = timezone.now()
        for minutes, first in ((5, True), (50, True), (90, False)):
            at = now - dt.timedelta(minutes=minutes)
            DirtyFlag.objects.create(data_type="feed", key=str(minutes), mark=1, last_at=at, first_at=at if first else None)
        found = {report.data_type: report.oldest for report in freshness.report(now=now)}
        assert found == {"feed": pytest.approx(3000), "counter": None}

    def test_queries_do_not_grow_with_types(self, db: None, django_assert_num_queries) -> None:
        for n in range(30):
            FreshnessSLO.objects.create(data_type=f"t{n}", seconds=1, objective=0.9, window=3600 * (n + 1))
        with django_assert_num_queries(3):
            assert len(freshness.report()) == 30


class Stamped(list[dict[str, Any]]):
    """Frames of a tab, each with the moment at which it came."""

    def append(self, frame: dict[str, Any]) -> None:
        super().append({**frame, "came": time.time()})


def raw_quantile(samples: list[float], q: float) -> float:
    return sorted(samples)[math.ceil(q * len(samples)) - 1]


@pytest.mark.django_db(transaction=True)
async def test_figures_of_a_real_run_equal_those_of_its_raw_samples_within_five_per_cent(
    make_user: Callable[..., User], redis: redis_py.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves, gate, drain, push and a socket; the test notes by its own clock when it saved, and when each step was seen."""
    settings.VISIBILITY = {**settings.VISIBILITY, "LIMITS": {"frames_burst": 1_000}}
    metrics._buffer.take()
    keys = [f"k{n}" for n in range(120)]
    await Counter.objects.abulk_create([Counter(name=key, value=0) for key in keys])
    rows = [row async for row in Counter.objects.all()]
    saved: dict[str, float] = {}
    raw: dict[str, list[float]] = {"freshness_built": [], "freshness_sent": [], "freshness_acked": []}

    stored = [0.0]

    def note(point: str) -> None:
        if point == "build.stored":
            stored[0] = time.time()

    def built(sender: str, resource: str, **values: Any) -> None:
        # A batch is stored at once, and then told of one by one.
        if resource in saved:
            raw["freshness_built"].append(stored[0] - saved[resource])

    tabs = Sockets()
    monkeypatch.setattr(points, "hook", note)
    snapshot_built.connect(built)
    try:
        tab = await tabs(await sync_to_async(make_user)())
        tab.frames = Stamped(tab.frames)
        with draining():
            await tab.watch(*(f"counter:{key}" for key in keys))
            await await_for(lambda: len(tab.last) == len(keys), 20, "all are shown")
        for row in rows:
            row.value = 1
            saved[f"counter:{row.name}"] = time.time()
            await row.asave()
            # Ages that lie apart, as those of real changes do: in one bucket, a share is a guess.
            await asyncio.sleep(0.02)
        # Old enough that what passes between a step and its note here, a tenth of a second on a busy machine, is within bounds.
        await await_for(lambda: time.time() - max(saved.values()) > 4, 10)
        with draining():
            await await_for(lambda: all(one["data"]["value"] for one in tab.last.values()), 20, "all changes are shown")
        for frame in tab.frames:
            if frame["op"] == "update" and frame["data"]["value"]:
                raw["freshness_sent"].append(frame["came"] - saved[frame["resource"]])
                raw["freshness_acked"].append(time.time() - saved[frame["resource"]])
                await tab.send({"op": "ack", "resource": frame["resource"], "version": frame["version"]})
        await tab.ping()
    finally:
        snapshot_built.disconnect(built)
        await tabs.close()
    assert {step: len(samples) for step, samples in raw.items()} == dict.fromkeys(raw, len(keys))
    await sync_to_async(equal_to)(raw, raw_quantile(raw["freshness_sent"], 0.75))
    # Once more out of the database alone.
    await sync_to_async(carry_over)()
    redis.flushall()
    await sync_to_async(equal_to)(raw, raw_quantile(raw["freshness_sent"], 0.75))


def equal_to(raw: dict[str, list[float]], target: float) -> None:
    """The report says what the raw samples say: quantiles of every step, and the share within the target."""
    metrics.flush()
    FreshnessSLO.objects.update_or_create(data_type="counter", defaults={"seconds": target, "objective": 0.9, "window": 86_400})
    (found,) = freshness.report(["counter"])
    for step, samples in raw.items():
        for q in (0.5, 0.95, 0.99):
            assert found.quantile(q, step) == pytest.approx(raw_quantile(samples, q), rel=0.05), (step, q)
    share = sum(seconds <= target for seconds in raw["freshness_sent"]) / len(raw["freshness_sent"])
    assert found.attained == pytest.approx(share, rel=0.05)
    assert found.shown == len(raw["freshness_sent"])


def carry_over() -> None:
    """Every minute that Redis holds becomes rows, the running one too."""
    last = int(inspect.redis_time() // 60)
    for minute in (last - 1, last):
        rollup.save_minute(minute, Figures.parse(inspect.minute_fields(minute)))


@pytest.fixture
def alerts() -> Iterator[list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []

    def receive(sender: str, signal: Any, **values: Any) -> None:
        seen.append({"sender": sender, **values})

    slo_alert.connect(receive)
    yield seen
    slo_alert.disconnect(receive)


class TestAlert:
    def test_a_change_is_announced_once_and_its_end_too(
        self, feed_slo: FreshnessSLO, alerts: list[dict[str, Any]], redis: redis_py.Redis
    ) -> None:
        write(0, {f"freshness_sent|feed|~{bucket_of(0.5)}": 100})
        freshness.alert()
        assert alerts == []
        write(0, {f"freshness_sent|feed|~{bucket_of(20)}": 50})
        freshness.alert()
        freshness.alert()
        assert [(one["sender"], one["state"]) for one in alerts] == [("feed", "burning_fast")]
        assert alerts[0]["burn_rate"] == pytest.approx(50 / 150 / 0.01)
        assert alerts[0]["attained"] == pytest.approx(100 / 150)
        redis.delete(*redis.keys("*:m:*"))
        freshness.alert()
        assert [one["state"] for one in alerts] == ["burning_fast", "none"]

    def test_a_receiver_that_raises_breaks_nothing(self, feed_slo: FreshnessSLO) -> None:
        def bad(**kwargs: Any) -> None:
            raise ValueError("no")

        slo_alert.connect(bad)
        try:
            write(0, {f"freshness_sent|feed|~{bucket_of(20)}": 50})
            assert len(freshness.alert()) == 1
        finally:
            slo_alert.disconnect(bad)

    def test_maintain_does_all_of_it(self, db: None, alerts: list[dict[str, Any]]) -> None:
        write(2, {f"freshness_sent|feed|~{bucket_of(20)}": 50})
        Rollup.objects.create(minute=timezone.now() - dt.timedelta(days=900), metric="gate_hot@day", value=1)
        assert freshness.maintain(starting=True) == 1
        assert freshness.maintain() == 0
        assert [one["sender"] for one in alerts] == ["feed"]
        assert not Rollup.objects.filter(metric="gate_hot@day").exists()
