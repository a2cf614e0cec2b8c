"""The next batch is claimed while one is built: what becomes of it where the worker fails, stops, dies or is slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from django.db import OperationalError
from django.test import override_settings

from tests.lanes import change, drain, drain_all, leave, look, pend, watch
from tests.support import wait_for
from tests.support.probe import builds
from visibility import dirty, recompute, testing
from visibility.builds.ahead import Ahead
from visibility.conf import settings
from visibility.exceptions import RedisAway
from visibility.soft import claims, client as soft_client, levels

NAMES = [f"probe:{n}" for n in range(6)]
KEYS = [name.partition(":")[2] for name in NAMES]


@pytest.fixture
def backlog(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three batches of two wait, and the last batch was quick."""
    monkeypatch.setitem(recompute._pace, "hot", 0.001)
    hot = {"queue": "visibility-hot", "bound": 10_000, "batch": 2, "idle": 0.0}
    lanes = {"hot": hot, "cold": {"queue": "visibility-cold", "bound": 1_000, "batch": 50}}
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "BUILD_LEASE": 1.0, "LANES": lanes}):
        for n, key in enumerate(KEYS):
            change(key, n)
        watch(*NAMES)
        for name in NAMES:
            pend(name)
        yield


def claimed() -> int:
    return levels.lane_state("hot").claimed


def test_while_a_batch_is_built_the_next_is_claimed(backlog: None, at: Any) -> None:
    seen: list[int] = []
    at("build.read", lambda: (wait_for(lambda: claimed() == 4, 5), seen.append(claimed())))
    assert drain() == 6
    assert seen == [4]
    assert sorted(len(keys) for _, _, keys in builds()) == [2, 2, 2]
    assert {look(name).fresh == look(name).version != 0 for name in NAMES} == {True}
    assert claimed() == 0


@pytest.mark.parametrize("pace", [0.0, 0.06])
def test_not_where_batches_are_slow_or_nothing_is_known(backlog: None, at: Any, monkeypatch: Any, pace: float) -> None:
    monkeypatch.setitem(recompute._pace, "hot", pace)
    seen: list[int] = []
    at("build.read", lambda: seen.append(claimed()))
    assert drain() == 6
    assert seen == [2]


def test_a_change_after_the_early_claim_is_built(backlog: None, at: Any) -> None:
    def move() -> None:
        wait_for(lambda: claimed() == 4, 5)
        for name, key in zip(NAMES, KEYS, strict=True):
            change(key, 100)
            pend(name)

    at("build.read", move)
    drain_all()
    for name in NAMES:
        assert b'"value":100' in (look(name).raw or b"")


@pytest.mark.parametrize("stop", [SystemExit(1), KeyboardInterrupt()])
def test_a_worker_that_is_stopped_gives_both_batches_back(backlog: None, at: Any, stop: BaseException) -> None:
    def raise_it() -> None:
        raise stop

    at("build.read", raise_it)
    with pytest.raises(type(stop)):
        drain()
    assert claimed() == 0
    assert all(look(name).due_ms is not None for name in NAMES)
    assert drain() == 6


def test_a_database_that_is_away_puts_off_the_batch_that_met_it(backlog: None, at: Any) -> None:
    def away() -> None:
        raise OperationalError("server closed the connection")

    at("build.marks", away)
    with pytest.raises(OperationalError):
        drain()
    assert claimed() == 0
    waits = [(one.due_ms or 0) - one.now_ms for one in map(look, NAMES)]
    assert [wait > 500 for wait in waits] == [True, True, False, False, False, False]


def test_a_worker_that_dies_loses_both_until_their_leases_end(backlog: None) -> None:
    with testing.kill_at("build.read") as happened:
        drain()
    assert happened()
    assert claimed() == 4
    drain_all()
    for n, name in enumerate(NAMES):
        assert f'"value":{n}'.encode() in (look(name).raw or b"")


def test_a_flush_in_between_harms_nothing(backlog: None, at: Any, redis: redis_py.Redis) -> None:
    at("build.read", lambda: (wait_for(lambda: claimed() == 4, 5), redis.flushall()))
    drain()
    assert claimed() == 0
    assert not any(look(name).raw for name in NAMES[:2]), "whose claim a flush ended stores nothing"


def test_what_was_claimed_too_long_ago_is_given_back_and_counts_as_no_lost_worker(backlog: None) -> None:
    lane = settings.lane("hot")
    ahead = Ahead(lane, 0)
    assert not ahead and ahead.take() is None
    ahead.begin(6)
    assert ahead
    ahead._late = 0.0
    assert ahead.take() is None
    assert not ahead
    assert claimed() == 0
    ahead.begin(6)
    owned = ahead.take()
    assert owned is not None
    assert [(row.resource, row.lost) for row in owned.rows] == [(name, 0) for name in NAMES]
    recompute.work(lane, owned)
    assert claimed() == 0


def test_a_batch_that_takes_long_after_all_keeps_nothing_from_others(backlog: None, at: Any) -> None:
    """The thread that keeps claims alive gives back what was claimed ahead; the batch itself stays claimed."""
    seen: list[Any] = []

    def hang() -> None:
        wait_for(lambda: claimed() == 4, 5)
        wait_for(lambda: claimed() == 2, 5, "the next batch was given back")
        seen.extend(claims.claim("hot", 0, 6, 5).rows)

    at("build.read", hang)
    drain()
    assert sorted((row.resource, row.lost) for row in seen) == [(name, 0) for name in NAMES[2:]]


@pytest.mark.parametrize("sign", ["lost", "tries"])
def test_not_beside_what_has_failed_before(backlog: None, at: Any, redis: redis_py.Redis, sign: str) -> None:
    redis.hset(f"{{vis:0}}:state:{NAMES[1]}", sign, "1")
    seen: list[int] = []
    at("build.read", lambda: seen.append(claimed()))
    assert drain() == 6
    assert seen == [2]


def test_a_claim_that_found_nothing_rings_no_bell_and_ends_no_drain(backlog: None, at: Any, redis: redis_py.Redis) -> None:
    """Somebody else took the rest meanwhile; a change that comes then needs its job, or the drain that still runs."""
    seen: list[Any] = []

    def take_the_rest() -> None:
        wait_for(lambda: claimed() == 4, 5)
        others = claims.claim("hot", 0, 6, 5)
        assert len(others.rows) == 2
        recompute.work(settings.lane("hot"), others)

    at("build.read", take_the_rest)
    at("build.pushed", lambda: seen.append(redis.exists("{vis:0}:lingering:hot")))
    drain()
    assert seen == [0]
    ahead = Ahead(settings.lane("hot"), 0)
    ahead.begin(6)
    assert ahead.take() is None
    pend(NAMES[0], window=1.5)
    ahead.begin(6)
    assert ahead.take() is None
    assert not redis.exists("{vis:0}:lingering:hot")


def test_while_redis_is_away_it_is_dropped_without_waiting(backlog: None) -> None:
    ahead, kept = Ahead(settings.lane("hot"), 0), soft_client.line()
    ahead.begin(6)
    wait_for(lambda: claimed() == 6, 5)
    with pytest.raises(RedisAway), soft_client.guard():
        raise redis_py.exceptions.ConnectionError("gone")
    idle = len(kept._idle)
    ahead.drop()
    with pytest.raises(RedisAway):
        soft_client.Begun("among", 0, "counter", "a")
    soft_client.close()
    assert len(kept._idle) == idle, "the connection with the answer that nobody read is kept for nobody"
    assert not kept.redis.connection_pool._in_use_connections - set(kept._idle)
    assert claimed() == 6


def test_who_came_to_watch_after_the_claim_is_built_for(backlog: None, at: Any, redis: redis_py.Redis) -> None:
    leave(*NAMES, redis=redis)
    at("drain.claimed", lambda: watch(NAMES[0], NAMES[2]))
    assert drain() == 2
    assert dirty.dirty_among("probe", KEYS).keys() == {"1", "3", "4", "5"}
    for name in (NAMES[0], NAMES[2]):
        assert look(name).raw


def test_dropping_is_harmless(backlog: None) -> None:
    ahead = Ahead(settings.lane("hot"), 0)
    ahead.drop()
    ahead.begin(6)
    ahead.drop()
    ahead.drop()
    assert claimed() == 0
    assert drain() == 6
