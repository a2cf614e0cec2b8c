"""Many callers at once on one event loop: they wait for a turn, and Redis is not taken to be away because of them."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
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


# --- one script after the other, the next prepared while Redis works -----------------------------------------------------


def _calls(texts: Sequence[str], sent: list[str]) -> Iterator[tuple[str, int, list[Any]]]:
    for text in texts:
        sent.append(text)
        yield text, 0, ["counter", text]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
async def test_answers_are_taken_in_order_each_while_the_next_is_under_way(count: int) -> None:
    names = [str(n) for n in range(count)]
    await in_thread(watch)(*(f"counter:{name}" for name in names[::2]))
    for how in ("sync", "async"):
        sent: list[str] = []
        taken: list[tuple[str, Any, int]] = []

        def take(what: str, answer: Any, sent: list[str] = sent, taken: list[Any] = taken) -> None:
            taken.append((what, [key.decode() for key in answer], len(sent)))

        if how == "sync":
            await in_thread(soft_client.run_each)("among", _calls(names, sent), take)
        else:
            await soft_client.arun_each("among", _calls(names, sent), take)
        assert [(what, keys) for what, keys, _ in taken] == [(n, [n] if int(n) % 2 == 0 else []) for n in names]
        assert [ahead for *_, ahead in taken] == [min(n + 2, count) for n in range(count)]


@pytest.mark.parametrize("where", ["calls", "take"])
async def test_what_is_under_way_when_something_fails_leaves_nothing_behind(
    redis: redis_py.Redis, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def calls() -> Iterator[tuple[int, int, list[Any]]]:
        for n in range(5):
            if n == 3 and where == "calls":
                raise ValueError(where)
            yield n, 0, ["counter", str(n)]

    def take(n: int, _answer: Any) -> None:
        if n == 1 and where == "take":
            raise ValueError(where)

    def both() -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match=where):
                soft_client.run_each("among", calls(), take)
            assert soft_client.line().ask("ECHO", "mine") == b"mine"

    await in_thread(both)()
    before = connections(redis)
    for _ in range(20):
        with pytest.raises(ValueError, match=where):
            await soft_client.arun_each("among", calls(), take)
    assert await soft_client.arun("among", 0, "counter", "a") == []
    await await_for(lambda: connections(redis) <= before + 3, 5, "none is left over for each of the twenty")
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_redis_that_is_away_ends_it(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    with pytest.raises(RedisAway):
        await soft_client.arun_each("among", _calls(["a", "b", "c"], []), lambda *_: None)
    soft_client.close()
    with pytest.raises(RedisAway):
        await in_thread(soft_client.run_each)("among", _calls(["a", "b", "c"], []), lambda *_: None)
    soft_client.close()
    gc.collect()
    assert "never retrieved" not in caplog.text
    loops: Any = soft_client.turn()
    assert loops._free._value == soft_client.CALLS


async def test_who_is_cancelled_cancels_what_is_under_way(own_redis: servers.RedisServer, settings: Any) -> None:
    await soft_client.arun_each("among", _calls(["a"], []), lambda *_: None)
    own_redis.pause()
    try:
        waiting = asyncio.create_task(soft_client.arun_each("among", _calls(["a", "b", "c"], []), lambda *_: None))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        loops: Any = soft_client.turn()
        assert loops._free._value == soft_client.CALLS
    finally:
        own_redis.resume()


def test_a_renewal_of_more_than_a_call_takes_answers_for_all() -> None:
    some = [leases.Watch(f"{kind}:{n}", f"1/tab{n}") for n in range(1_500) for kind in ("counter", "feed", "unread")]
    some += [leases.Watch("counter:0", f"1/more{n}") for n in range(2_500)]
    for created in (True, False):
        found = leases.renew(some)
        assert found.keys() == {watch.resource for watch in some}
        assert {one.created for one in found.values()} == {created}
    assert leases.counts("counter:0", 0).watch == 2_501
    assert leases.visible_count("feed") == 1_500


def test_what_renewals_found_is_joined_as_it_comes() -> None:
    """The newest figures, and every coming to life, whichever of them told of it."""
    made = leases.renew([leases.Watch("counter:a", "1/tab"), leases.Watch("counter:b", "1/tab")])
    assert made["counter:a"].created and made.created().keys() == {"counter:a", "counter:b"} == made.keys()
    again = leases.renew([leases.Watch("counter:a", "1/tab")], part=leases.BEAT)
    assert not again["counter:a"].created
    made.join(again)
    assert made["counter:a"].created and len(made) == 2
    found = leases.Found()
    for rows, version in (([[1, 1, 1, b"5", -7]], b"5"), ([], b"6"), ([[1, 0, 0, b"9", 3]], b"0")):
        found.take([("counter", ["a"])], [[version], rows])
    assert found == {"counter:a": leases.Renewed(True, True, 9, 0, 3)}
    found.take([("counter", ["a", "b"])], [[b"10", b"11"], []])
    assert found["counter:a"] == leases.Renewed(True, True, 10, 10, leases.NOT_KNOWN)
    assert found["counter:b"] == leases.Renewed(False, False, 11, 11, leases.NOT_KNOWN)
    assert found.get("counter:c") is None and "counter:c" not in found
