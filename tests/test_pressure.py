"""Stages of pressure: when they change, who announces it, what they leave out, and that it all comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from django.test import override_settings
from hypothesis import given, strategies as st

import visibility
from tests.app.models import Counter
from tests.lanes import claim, drain, look, pend, watch
from tests.support import servers, wait_for
from tests.support.sizes import size
from visibility import dirty, points, pressure, promotion
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.insight import metrics
from visibility.pressure import BEGINS, ENDS, Stage, judge
from visibility.read import read, read_many
from visibility.signals import pressure_changed
from visibility.soft import claims, leases, levels, looks

FULL = st.floats(0, 2)
LATE = st.floats(0, 20)


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Here one thread promotes and drains in turn: waiting for room would be in vain.
    monkeypatch.setattr(promotion, "PROMOTE_SECONDS", 0.0)
    pressure.forget()
    yield
    pressure.forget()


@pytest.fixture
def told() -> Iterator[list[tuple[str, str, str]]]:
    rows: list[tuple[str, str, str]] = []

    def receive(sender: str, stage: Stage, previous: Stage, **kwargs: Any) -> None:
        rows.append((sender, str(previous), str(stage)))

    pressure_changed.connect(receive)
    yield rows
    pressure_changed.disconnect(receive)


def lanes(bound: int, batch: int = 100, **options: Any) -> Any:
    """The lane `hot` with this bound; the stage is judged anew at every question."""
    hot = {"queue": "visibility-hot", "bound": bound, "batch": batch, **options}
    cold = {"queue": "visibility-cold", "bound": 1_000, "batch": 50}
    return override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "LANES": {"hot": hot, "cold": cold}})


def fill(n: int, kind: str = "probe", start: int = 0) -> None:
    pend(*[f"{kind}:f{i}" for i in range(start, start + n)], forced=True)


def now_stage() -> Stage:
    return pressure.evaluate(settings.lane("hot"))


# --- pure -------------------------------------------------------------------------------------------------------------


@given(before=st.sampled_from(Stage), full=FULL, late=LATE)
def test_the_stage_follows_the_fuller_and_the_later(before: Stage, full: float, late: float) -> None:
    after = judge(before, full, late)
    if full >= 0.9 or late >= 5:
        assert after is Stage.FLOODED
    elif full >= 0.5 or late >= 1:
        assert after is not Stage.NORMAL
    if full < 0.3 and late < 0.5:
        assert after is Stage.NORMAL


@given(before=st.sampled_from(Stage), full=FULL, more=FULL, late=LATE, later=LATE)
def test_more_load_never_means_less_pressure(before: Stage, full: float, more: float, late: float, later: float) -> None:
    order = list(Stage)
    assert order.index(judge(before, full + more, late + later)) >= order.index(judge(before, full, late))


@given(stage=st.sampled_from([Stage.PRESSED, Stage.FLOODED]), data=st.data())
def test_between_its_end_and_its_beginning_a_stage_neither_begins_nor_ends(stage: Stage, data: st.DataObject) -> None:
    below = list(Stage)[list(Stage).index(stage) - 1]
    full = data.draw(st.floats(ENDS[stage][0], BEGINS[stage][0], exclude_max=True))
    late = data.draw(st.floats(0, ENDS[stage][1], exclude_max=True))
    assert judge(stage, full, late) is stage
    assert judge(below, full, late) is not stage


@given(before=st.sampled_from(Stage), full=FULL, late=LATE)
def test_a_judgement_stands_while_nothing_changes(before: Stage, full: float, late: float) -> None:
    after = judge(before, full, late)
    assert judge(after, full, late) is after


# --- on a lane ----------------------------------------------------------------------------------------------------------


def test_a_lane_fills_and_empties_through_the_stages(db: None, probes: Path, told: list[Any]) -> None:
    with lanes(bound=100):
        assert now_stage() is Stage.NORMAL
        fill(49)
        assert now_stage() is Stage.NORMAL
        fill(10, start=49)
        assert now_stage() is Stage.PRESSED
        fill(31, start=59)
        assert now_stage() is Stage.FLOODED
        owned = claim(limit=25, n=25)
        assert now_stage() is Stage.FLOODED
        claims.done("hot", owned, [claims.Done(row, "drop") for row in owned.rows])
        assert now_stage() is Stage.FLOODED
        owned = claim(limit=10, n=10)
        claims.done("hot", owned, [claims.Done(row, "drop") for row in owned.rows])
        assert now_stage() is Stage.PRESSED
        drain()
        assert now_stage() is Stage.NORMAL
    assert told == [
        ("hot", "normal", "pressed"),
        ("hot", "pressed", "flooded"),
        ("hot", "flooded", "pressed"),
        ("hot", "pressed", "normal"),
    ]


def test_a_late_lane_is_pressed_only_if_much_waits(probes: Path, redis: redis_py.Redis) -> None:
    with lanes(bound=1_000, batch=10):
        fill(5)
        redis.zadd("{vis:0}:pending:hot", {"probe:f0": 1})
        assert now_stage() is Stage.NORMAL
        fill(30)
        ago = _ms(redis) - 3_000
        redis.zadd("{vis:0}:pending:hot", {"probe:f0": ago})
        assert now_stage() is Stage.PRESSED
        redis.zadd("{vis:0}:pending:hot", {"probe:f0": ago - 20_000})
        assert now_stage() is Stage.FLOODED


def _ms(redis: redis_py.Redis) -> int:
    seconds, micros = redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


def test_a_change_is_announced_once_over_the_cluster(probes: Path, told: list[Any], redis: redis_py.Redis) -> None:
    metrics.flush()
    redis.flushall()
    with lanes(bound=100):
        fill(60)
        gate = threading.Barrier(12)
        seen: list[Stage] = []

        def judge_at_once() -> None:
            gate.wait()
            seen.append(pressure.evaluate(settings.lane("hot")))

        crowd = [threading.Thread(target=judge_at_once) for _ in range(12)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    assert set(seen) == {Stage.PRESSED}
    assert told == [("hot", "normal", "pressed")]
    metrics.flush()
    counted = redis.hgetall("{vis:0}:totals")
    assert [n for name, n in counted.items() if name.startswith("pressure_changes|")] == ["1"]


def test_asking_costs_one_look_a_second(redis: redis_py.Redis) -> None:
    redis.config_resetstat()
    for _ in range(200):
        pressure.stage("hot")
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] <= 2


def test_while_redis_is_away_the_last_stage_stands(own_redis: servers.RedisServer) -> None:
    pressure._judged["hot"] = (0.0, Stage.PRESSED)
    own_redis.kill()
    try:
        assert pressure.stage("hot") is Stage.PRESSED
    finally:
        own_redis.start()


def test_a_flush_begins_with_normal_again(probes: Path, redis: redis_py.Redis) -> None:
    with lanes(bound=100):
        fill(60)
        assert now_stage() is Stage.PRESSED
        redis.flushall()
        assert now_stage() is Stage.NORMAL


# --- what is left out ---------------------------------------------------------------------------------------------------


def test_windows_widen_and_stay_within_half_the_promise(probes: Path) -> None:
    probe = registry.get("probe")
    with lanes(bound=100):
        assert pressure.window(probe) == probe.coalesce == 0.05
        fill(60)
        pressure.forget()
        assert pressure.window_factor("hot") == 4
        assert pressure.window(probe) == 0.4
        fill(35, start=60)
        pressure.forget()
        assert pressure.window(probe) == 0.8
        assert pressure.window(registry.get("price")) == 0.5


def test_a_flooded_gate_only_marks_what_is_nice_to_have(transactional_db: None, probes: Path) -> None:
    with lanes(bound=100):
        watch("niceprobe:a", "probe:a")
        read("niceprobe", "a")
        assert look("niceprobe:a").fresh
        fill(95)
        pressure.forget()
        visibility.emit("niceprobe", keys=["a"])
        visibility.emit("probe", keys=["a"])
        assert look("probe:a").pending
        seen = look("niceprobe:a")
        assert not seen.queued and not seen.fresh
        assert list(dirty.dirty_among("niceprobe", ["a"])) == ["a"]
        # Not trusted: whoever reads gets the truth.
        assert read("niceprobe", "a").state == "rebuilt"


def test_promotion_brings_back_what_was_only_marked_once_the_flood_falls(transactional_db: None, probes: Path) -> None:
    with lanes(bound=100):
        watch("niceprobe:a")
        fill(95)
        pressure.forget()
        visibility.emit("niceprobe", keys=["a"])
        assert promotion.promote() == 0
        drain()
        pressure.forget()
        assert promotion.promote() == 1
        assert look("niceprobe:a").pending


def test_a_pressed_lane_is_promoted_to_by_the_batch(transactional_db: None, probes: Path) -> None:
    keys = [f"k{n}" for n in range(60)]
    with lanes(bound=100, batch=7):
        watch(*[f"probe:{key}" for key in keys])
        dirty.mark("probe", dict.fromkeys(keys, 1))
        fill(60)
        assert now_stage() is Stage.PRESSED
        assert promotion.promote() == 7


def test_promotion_itself_does_not_press_a_lane(transactional_db: None, probes: Path) -> None:
    keys = [f"k{n}" for n in range(200)]
    with lanes(bound=100):
        watch(*[f"probe:{key}" for key in keys])
        dirty.mark("probe", dict.fromkeys(keys, 1))
        assert promotion.promote() == 45
        assert now_stage() is Stage.NORMAL
        assert promotion.promote() == 0


# --- floods -------------------------------------------------------------------------------------------------------------


def flood(total: int, bound: int, batch: int, chunk: int) -> None:
    """So many distinct visible resources change at once, against this bound; workers drain meanwhile, maintenance promotes."""
    started, keys = time.monotonic(), [f"k{n}" for n in range(total)]
    Counter.objects.bulk_create([Counter(name=key, value=n) for n, key in enumerate(keys)], batch_size=5_000)
    with lanes(bound=bound, batch=batch, idle=0.01):
        for start in range(0, total, 10_000):
            leases.renew([leases.Watch(f"counter:{key}", "1/tab", "watch", 36_000) for key in keys[start : start + 10_000]])
        deepest = 0

        def measure(name: str) -> None:
            nonlocal deepest
            if name in ("gate.pended", "drain.claimed", "build.done", "maintain.promote"):
                state = levels.lane_state("hot")
                deepest = max(deepest, state.pending + state.claimed)

        points.hook = measure
        try:
            for start in range(0, total, chunk):
                visibility.emit("counter", keys=keys[start : start + chunk])
                if start // chunk % 3 == 2:
                    drain()

            def quiet() -> bool:
                pressure.forget()
                promotion.promote()
                drain()
                return not levels.lane_state("hot").pending and not dirty.oldest("counter", 1)

            wait_for(quiet, 60 + total / 20, "all right in the end")
        finally:
            points.hook = None
        assert 0 < deepest <= bound
        for start in range(0, total, 2_000):
            part = keys[start : start + 2_000]
            found = looks.look("hot", [f"counter:{key}" for key in part])
            # A long one outlives its first snapshots.
            old = time.monotonic() - started > 0.8 * registry.get("counter").ttl
            assert old or all(one.raw for one in found.values())
            assert {key: one.data["value"] for key, one in read_many("counter", part).items()} == {k: int(k[1:]) for k in part}
        print(f"{total} against {bound}: at most {deepest} in the lane, all right after {time.monotonic() - started:.0f} s")  # noqa: T201


def test_a_flood_of_distinct_resources_keeps_the_bound_and_loses_none(transactional_db: None) -> None:
    flood(1_200, bound=150, batch=50, chunk=100)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_a_flood_of_many_against_a_bound_of_a_thousand(transactional_db: None) -> None:
    total = size("VISIBILITY_FLOOD", 10_000, 100_000)
    flood(total, bound=1_000, batch=200, chunk=2_000)


def test_one_hot_tenant_leaves_room_for_the_others(transactional_db: None, probes: Path) -> None:
    with lanes(bound=100, share=0.3):
        loud = [f"l{n}" for n in range(200)]
        quiet = [f"q{n}" for n in range(20)]
        watch(*[f"probe:{key}" for key in [*loud, *quiet]])
        visibility.emit("probe", keys=loud, tenant="loud")
        visibility.emit("probe", keys=quiet, tenant="quiet")
        assert sum(look(f"probe:{key}").queued for key in quiet) == 20
        assert sum(look(f"probe:{key}").queued for key in loud) == 30
        assert len(dirty.dirty_among("probe", loud)) == 170


def test_the_promise_of_a_lane_is_its_shortest() -> None:
    assert pressure.promise("hot") == min(t.freshness.seconds for t in registry if t.lane == "hot")
    assert pressure.promise("nothing") == 2.0
