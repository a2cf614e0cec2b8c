"""Many callers at once on one event loop: they wait for a turn, and Redis is not taken to be away because of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from tests.lanes import change, watch
from tests.support import await_for, servers
from tests.support.probe import builds, order
from visibility.exceptions import RedisAway
from visibility.push import in_thread
from visibility.read import aread
from visibility.soft import client as soft_client, leases

pytestmark = [pytest.mark.django_db(transaction=True)]
MANY = 2_000


def connections(redis: redis_py.Redis) -> int:
    return int(redis.info("clients")["connected_clients"])


async def test_two_thousand_reads_at_once_are_all_hits(probes: Path, redis: redis_py.Redis) -> None:
    await in_thread(change)("a", 1)
    await in_thread(watch)("probe:a")
    assert (await aread("probe", "a")).data == {"value": 1}
    before = connections(redis)
    found = await asyncio.gather(*(aread("probe", "a") for _ in range(MANY)))
    assert {(one.state, one.data["value"]) for one in found} == {("fresh", 1)}
    assert len(builds("a")) == 1
    assert connections(redis) <= before + soft_client.CALLS


@pytest.mark.slow
async def test_two_thousand_that_wait_for_a_build_share_one_wait(probes: Path, redis: redis_py.Redis) -> None:
    await in_thread(change)("a", 1)
    order("a", hold=True)
    waiting = [asyncio.ensure_future(aread("probe", "a")) for _ in range(MANY)]
    await await_for(lambda: redis.info("clients")["blocked_clients"] == 1, 20, "one waits in Redis for all")
    # Whoever wants something else is not held up.
    assert (await leases.acounts("probe:a")).watch == 0
    order("a")
    assert {one.data["value"] for one in await asyncio.gather(*waiting)} == {1}
    assert len(builds("a")) == 1


async def test_who_gets_no_turn_to_wait_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from visibility.soft import claims

    monkeypatch.setattr(soft_client, "WAITS", 1)
    first = asyncio.ensure_future(claims.await_for_build("probe:a", "1", 3.0))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(claims.await_for_build("probe:b", "1", 0.1), 2.5) is False
    assert await first is False


async def test_while_redis_is_away_those_who_wait_for_a_turn_fail_at_once(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    found = await asyncio.wait_for(asyncio.gather(*(leases.acounts("probe:a") for _ in range(MANY)), return_exceptions=True), 30)
    assert {type(one) for one in found} == {RedisAway}
    soft_client.close()
    # None of them has kept its turn.
    loops: Any = soft_client.turn()
    assert loops._free._value == soft_client.CALLS


def test_a_redis_that_hangs_costs_a_call_what_the_address_says(own_redis: servers.RedisServer, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": f"{settings.REDIS_URL}?socket_timeout=0.2"}
    assert not leases.visible_among("counter", ["a"])
    own_redis.pause()
    try:
        started = time.monotonic()
        with pytest.raises(RedisAway, match="is away"):
            leases.visible_among("counter", ["a"])
        assert time.monotonic() - started < 3
        with pytest.raises(RedisAway, match="not asked again yet"):
            leases.visible_among("counter", ["a"])
    finally:
        own_redis.resume()
