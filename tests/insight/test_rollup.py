from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from django.db import connection
from django.utils import timezone

from visibility.insight import history, rollup
from visibility.insight.histogram import Histogram
from visibility.insight.metrics import Figures
from visibility.models import Rollup
from visibility.soft import client, inspect
from visibility.soft.client import run


def write(age: int, fields: dict[str, int]) -> None:
    """Counts as if they had been made so many minutes ago."""
    run("metrics", 0, age, 10_800, 86_400, *[part for pair in fields.items() for part in pair])


@pytest.fixture
def redis_away(settings: Any) -> Iterator[None]:
    """Nobody listens where Redis should be; afterwards the circuit breaker forgets it."""
    client.close()
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    yield
    client.close()


def stored(metric: str) -> float:
    return sum(Rollup.objects.filter(metric=metric).values_list("value", flat=True))


@pytest.mark.django_db
class TestRoll:
    def test_a_minute_becomes_a_row_a_series_and_grows_its_hour_and_day(self) -> None:
        write(2, {"gate_hot|feed|": 5, "reads|feed|stale": 2, "build_seconds|feed|~100": 3, "build_seconds|feed|~s": 400_000})
        assert rollup.roll() == 1
        rows = {(row.metric, row.data_type, row.label): row for row in Rollup.objects.all()}
        assert len(rows) == 9
        for grain in ("", "@hour", "@day"):
            assert rows["gate_hot" + grain, "feed", ""].value == 5
            assert rows["reads" + grain, "feed", "stale"].value == 2
            assert rows["build_seconds" + grain, "feed", ""].buckets == {"100": 3}
            assert rows["build_seconds" + grain, "feed", ""].value == pytest.approx(0.4)

    def test_doing_it_again_changes_nothing(self) -> None:
        write(2, {"gate_hot|feed|": 5})
        assert (rollup.roll(), rollup.roll()) == (1, 0)
        minute = int(inspect.redis_time() // 60) - 2
        rollup.save_minute(minute, Figures({("gate_hot", "feed", ""): 5}))
        assert [stored("gate_hot" + grain) for grain in ("", "@hour", "@day")] == [5, 5, 5]

    def test_what_comes_late_is_added_once(self) -> None:
        write(2, {"gate_hot|feed|": 5})
        rollup.roll()
        write(2, {"gate_hot|feed|": 3, "gate_cold|feed|": 1})
        assert rollup.roll() == 1
        assert [stored("gate_hot" + grain) for grain in ("", "@hour", "@day")] == [8, 8, 8]
        assert stored("gate_cold@hour") == 1

    def test_I2_a_flush_takes_nothing_that_was_carried_over(self, redis: redis_py.Redis) -> None:
        write(2, {"gate_hot|feed|": 50})
        rollup.roll()
        redis.flushall()
        write(2, {"gate_hot|feed|": 3})
        rollup.roll()
        assert [stored("gate_hot" + grain) for grain in ("", "@hour", "@day")] == [50, 50, 50]

    def test_the_minute_that_runs_is_left_alone(self) -> None:
        write(0, {"gate_hot|feed|": 5})
        # Twice: a minute may end between the two lines above.
        assert rollup.roll() + rollup.roll() <= 1
        assert stored("gate_hot") in (0, 5)

    def test_a_starting_process_catches_up_as_far_as_redis_remembers(self) -> None:
        write(100, {"gate_hot|feed|": 5})
        assert rollup.roll() == 0
        assert rollup.roll(everything=True) == 1

    def test_old_rows_go_by_their_grain(self) -> None:
        now = timezone.now()
        for days, grain in ((1, ""), (3, ""), (3, "@hour"), (40, "@hour"), (40, "@day"), (500, "@day")):
            Rollup.objects.create(minute=now - dt.timedelta(days=days), metric="gate_hot" + grain, value=days)
        assert rollup.prune(now) == 3
        assert sorted(Rollup.objects.values_list("metric", "value")) == [
            ("gate_hot", 1),
            ("gate_hot@day", 40),
            ("gate_hot@hour", 3),
        ]


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_many_processes_at_once_count_everything_once() -> None:
    for age in (2, 3, 4):
        write(age, {f"gate_hot|t{n}|": age for n in range(20)} | {"build_seconds|feed|~50": 7})
    errors: list[BaseException] = []

    def work() -> None:
        try:
            rollup.roll(everything=True)
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [stored("gate_hot" + grain) for grain in ("", "@hour", "@day")] == [180, 180, 180]
    days = Rollup.objects.filter(metric="build_seconds@day").values_list("buckets", flat=True)
    assert sum(buckets["50"] for buckets in days) == 21


def _fill(now: dt.datetime, hours: int, rng: random.Random) -> dict[int, list[float]]:
    samples: dict[int, list[float]] = {}
    last = int(now.timestamp() // 60)
    for minute in range(last - hours * 60, last + 1):
        if rng.random() < 0.4:
            samples[minute] = [rng.lognormvariate(0, 1.2) for _ in range(rng.randint(1, 8))]
            figures = Figures({("gate_hot", "feed", ""): len(samples[minute])})
            figures.histograms["freshness_sent", "feed"] = Histogram.of(samples[minute])
            rollup.save_minute(minute, figures)
    return samples


@pytest.mark.django_db
@pytest.mark.slow
def test_a_span_is_the_sum_of_its_minutes_whatever_grain_it_is_read_in() -> None:
    now = dt.datetime(2026, 11, 29, 15, 37, 12, tzinfo=dt.UTC)
    samples = _fill(now, 50, random.Random(7))
    spans = (300.0, 3_600.0, 6 * 3_600.0, 86_400.0, 2 * 86_400.0)
    found = history.read(["gate_hot", "freshness_sent"], spans, now)
    for span in spans:
        first = int((now.timestamp() - span) // 60)
        wanted = [value for minute, values in samples.items() if minute >= first for value in values]
        assert found[span].total("gate_hot") == len(wanted)
        assert found[span].histogram("freshness_sent", "feed").buckets == Histogram.of(wanted).buckets


@pytest.mark.django_db
class TestRead:
    def test_the_minutes_that_only_redis_holds_are_in_it(self, django_assert_num_queries) -> None:
        write(1, {"gate_hot|feed|": 5})
        rollup.roll()
        write(1, {"gate_hot|feed|": 2})
        write(0, {"gate_hot|feed|": 1, "builds|feed|": 9})
        with django_assert_num_queries(1):
            found = history.read(["gate_hot"], [3600.0, 86_400.0])
        assert found[3600.0].counters == found[86_400.0].counters == {("gate_hot", "feed", ""): 8}

    def test_redis_away_leaves_what_was_carried_over(self, redis_away: None) -> None:
        rollup.save_minute(int(time.time() // 60) - 2, Figures({("gate_hot", "feed", ""): 5}))
        assert history.read(["gate_hot"], [3600.0])[3600.0].total("gate_hot") == 5

    def test_a_series_has_a_step_for_every_hour_empty_ones_too(self) -> None:
        now = dt.datetime(2026, 11, 29, 15, 37, tzinfo=dt.UTC)
        rollup.save_minute(int(now.timestamp() // 60) - 90, Figures({("gate_hot", "feed", ""): 4}))
        steps = history.series(["gate_hot"], 6 * 3600, dt.timedelta(hours=1), now)
        assert [at.hour for at, _ in steps] == [9, 10, 11, 12, 13, 14, 15]
        assert [figures.total("gate_hot") for _, figures in steps] == [0, 0, 0, 0, 0, 4, 0]
