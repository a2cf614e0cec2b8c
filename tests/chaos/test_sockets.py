"""Sockets on real servers, Daphne and uvicorn, while processes, connections and Redis come and go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.db import connection
from django.test import RequestFactory

import visibility
from tests.app.models import Counter, Room
from tests.support import await_for
from tests.support.fuzz import random_frame
from tests.support.local import draining
from tests.support.sizes import size
from tests.support.sockets import Tab, session_for
from visibility import signals
from visibility.presence import asweep
from visibility.sockets.frames import ORIGIN_REFUSED, SESSION_ENDED
from visibility.users import session_store

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]
QUICK = {"HEARTBEAT": 1, "TTL": 3, "LINGER": 0.5}
both = pytest.mark.parametrize("server", ["uvicorn", "daphne"])


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, **QUICK}


@pytest.fixture
async def ann(make_user: Callable[..., User]) -> User:
    return await sync_to_async(make_user)("ann")


async def start(live: Any, server: str, **options: Any) -> Any:
    return await sync_to_async(live.site)(server, visibility={**QUICK, **options})


async def put(name: str, value: int) -> None:
    await Counter.objects.aupdate_or_create(name=name, defaults={"value": value})


async def count(resource: str) -> int:
    return (await visibility.awatchers(resource)).count


async def gone(resource: str) -> bool:
    return await count(resource) == 0


def calm(site: Any) -> None:
    """Nothing went wrong in the server."""
    assert "Traceback" not in site.process.output, site.process.output[-4000:]


@both
async def test_the_protocol_on_a_real_server(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    site = await start(live, server)
    with draining():
        tab = await site_tabs(site, ann)
        assert (await tab.watch("counter:a"))["resources"]["counter:a"]["watchers"] == 1
        await put("a", 1)
        shown = await tab.data("counter:a", {"value": 1})
        assert (await tab.ping())["versions"] == {"counter:a": shown["version"]}
        second = await site_tabs(site, ann)
        await second.watch("counter:a", since={"counter:a": shown["version"]})
        await tab.expect("watchers", count=2)
        await second.send(b"\x00")
        assert (await second.expect("error"))["code"] == "bad_frame"
        await put("a", 2)
        await asyncio.gather(tab.data("counter:a", {"value": 2}), second.data("counter:a", {"value": 2}))
        await tab.unwatch("counter:a")
        await second.close()
        await await_for(lambda: gone("counter:a"), 5)
        foreign = await site_tabs(site, ann, origin="https://evil.test", hello=False)
        assert await foreign.closed() == ORIGIN_REFUSED
    calm(site)


@both
async def test_two_servers_share_watchers_and_presence(live: Any, site_tabs: Any, ann: User, make_user: Any, server: str) -> None:
    first, second = await start(live, server, NODE="web-1"), await start(live, server, NODE="web-2")
    with draining():
        one, two = await site_tabs(first, ann), await site_tabs(second, ann)
        await one.watch("counter:a")
        assert (await two.watch("counter:a"))["resources"]["counter:a"]["watchers"] == 2
        await one.expect("watchers", count=2)
        await put("a", 1)
        await asyncio.gather(one.data("counter:a", {"value": 1}), two.data("counter:a", {"value": 1}))
        found = (await visibility.apresence([ann.pk]))[ann.pk]
        assert sorted(found.nodes) == ["web-1", "web-2"]
        await two.close()
        await one.expect("watchers", count=1)
        assert (await visibility.apresence([ann.pk]))[ann.pk].online


@both
async def test_L1_L14_a_killed_server_leaves_no_lease_after_one_ttl(
    live: Any, site_tabs: Any, ann: User, redis: redis_py.Redis, server: str
) -> None:
    heard: list[str] = []
    receivers = [
        (signals.became_hidden, lambda **kwargs: heard.append("hidden")),
        (signals.user_offline, lambda **kwargs: heard.append("off")),
    ]
    for signal, receiver in receivers:
        signal.connect(receiver)
    site = await start(live, server)
    try:
        with draining():
            for _ in range(5):
                tab = await site_tabs(site, ann)
                await tab.watch("counter:a")
                await tab.data("counter:a", {"value": None})
        assert await count("counter:a") == 5
        await sync_to_async(site.kill)()
        begin = time.monotonic()
        await await_for(lambda: gone("counter:a"), 5)
        assert not await visibility.ais_visible("counter:a"), "the gate calls it cold, without any clean-up"
        assert not (await visibility.apresence([ann.pk]))[ann.pk].online
        assert time.monotonic() - begin < QUICK["TTL"] + 1
        await asyncio.gather(*(asweep() for _ in range(4)))
        assert sorted(heard) == ["hidden", "off"]
        await put("a", 1)
        assert redis.zcard("{vis:0}:pending:hot") == 0, "nothing is built for nobody"
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)


@both
async def test_L2_a_stopped_server_releases_what_it_had(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    site = await start(live, server, TTL=60)
    opened = [await site_tabs(site, ann) for _ in range(20)]
    for tab in opened:
        await tab.watch("counter:a", "counter:b")
    assert await count("counter:a") == 20
    begin = time.monotonic()
    while time.monotonic() - begin < 2.5:
        # Daphne forgets to end its sockets if one of them was opened within the last second.
        await opened[0].ping()
        await asyncio.sleep(0.2)
    begin = time.monotonic()
    await sync_to_async(site.stop)()
    await await_for(lambda: gone("counter:a"), 3)
    assert await count("counter:b") == 0
    assert not (await visibility.apresence([ann.pk]))[ann.pk].online
    assert time.monotonic() - begin < 20


@both
async def test_S1_a_client_that_vanishes_without_a_word(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    site = await start(live, server)
    tab, other = await site_tabs(site, ann), await site_tabs(site, ann)
    await tab.watch("counter:a")
    await other.watch("counter:a")
    tab.cut()

    async def alone() -> bool:
        await other.ping()
        return await count("counter:a") == 1

    await await_for(alone, 5)
    assert (await visibility.apresence([ann.pk]))[ann.pk].online
    calm(site)


@both
@pytest.mark.parametrize("backend", ["core", "pubsub"])
async def test_S2_redis_restarts_and_no_socket_notices(
    live: Any, site_tabs: Any, ann: User, redis_server: Any, server: str, backend: str
) -> None:
    """Under the core layer of Channels every socket of a process would die of it."""
    if redis_server is None:
        pytest.skip("needs a Redis of its own to restart")
    layer = {"core": "channels_redis.core.RedisChannelLayer", "pubsub": "channels_redis.pubsub.RedisPubSubChannelLayer"}[backend]
    site = await sync_to_async(live.site)(server, visibility=QUICK, VISIBILITY_TEST_LAYER=layer)
    with draining():
        opened: list[Tab] = [await site_tabs(site, ann) for _ in range(3)]
        beats = [asyncio.create_task(tab.beat(0.5)) for tab in opened]
        try:
            for tab in opened:
                await tab.watch("counter:a")
            await put("a", 1)
            for tab in opened:
                await tab.data("counter:a", {"value": 1})
            await sync_to_async(redis_server.kill)()
            await asyncio.sleep(1.5)
            await sync_to_async(redis_server.start)()
            await await_for(lambda: _count_is("counter:a", 3), 10, "all leases are back")
            await put("a", 2)
            for tab in opened:
                await tab.data("counter:a", {"value": 2}, 10)
                assert tab.close_code is None
        finally:
            for beat in beats:
                beat.cancel()
            await asyncio.gather(*beats, return_exceptions=True)


async def _count_is(resource: str, number: int) -> bool:
    try:
        return await count(resource) == number
    except visibility.RedisAway:
        return False


@both
async def test_S8_a_logout_over_http_ends_the_socket(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    site = await start(live, server, TTL=60)
    key = await sync_to_async(session_for)(ann)
    tab, other = await site_tabs(site, ann, session_key=key), await site_tabs(site, ann)

    def log_out() -> None:
        request = RequestFactory().get("/")
        request.session, request.user = session_store(key), ann
        logout(request)

    await sync_to_async(log_out)()
    assert await tab.closed() == SESSION_ENDED
    assert other.close_code is None


@both
async def test_S6_idle_sockets_hold_no_database_connections(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    """Five hundred of them, each with its heartbeat: as many connections (here: open database files) as threads at most."""
    number = size("VISIBILITY_IDLE_SOCKETS", 500, 500)
    site = await start(live, server, TTL=60, LIMITS={"sockets_per_user": number})
    key = await sync_to_async(session_for)(ann)
    opened: list[Tab] = []
    for _ in range(0, number, 50):
        opened += await asyncio.gather(*(site_tabs(site, session_key=key, hello=False) for _ in range(50)))
    for tab in opened:
        await tab.send({"op": "watch", "id": 1, "resources": ["counter:a"]})
    await await_for(lambda: all(any(f["op"] == "watched" for f in tab.frames) for tab in opened), 60)
    for _ in range(2):
        for tab in opened:
            await tab.send({"op": "ping"})
        seen = [len(tab.frames) for tab in opened]
        await await_for(lambda seen=seen: all(len(t.frames) > n for t, n in zip(opened, seen, strict=True)), 30)
    threads = len(list(Path(f"/proc/{site.process.pid}/task").iterdir()))
    held = await sync_to_async(_database_connections)(site.process.pid)
    print(f"{number} sockets of {server}: {held} database connections, {threads} threads")  # noqa: T201
    assert held <= threads
    assert threads < 20
    calm(site)


def _database_connections(pid: int) -> int:
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        files = 0
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                files += str(link.readlink()) == name
        return files
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()")
        else:
            cursor.execute("SELECT count(*) - 1 FROM information_schema.processlist WHERE db = database()")
        return int(cursor.fetchone()[0])


@both
@pytest.mark.timeout(1_200)
async def test_a_fuzz_over_the_network(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    number = size("VISIBILITY_FUZZ_FRAMES", 5_000, 100_000)
    site = await start(live, server, TTL=60, LIMITS={"frames_per_second": 10**9, "frames_burst": 10**9})
    rng = random.Random(11)
    tab = await site_tabs(site, ann)
    for n in range(number):
        assert tab.close_code is None, f"dead after {n} frames: {tab.close_code}"
        frame = random_frame(rng)
        # A text frame that is no UTF-8 cannot be sent by this client at all.
        await tab.send(frame.encode("utf-8", "replace").decode() if isinstance(frame, str) else frame)
        if n % 100 == 0:
            await tab.ping()
    await tab.ping()
    assert tab.close_code is None
    calm(site)


@both
async def test_a_client_that_does_not_read_costs_a_bounded_amount(live: Any, site_tabs: Any, ann: User, server: str) -> None:
    """Its leases end, and what it was sent is not kept for it; meanwhile the others get every update."""
    site = await start(live, server, TTL=6)
    room = await Room.objects.acreate(name="big")
    await sync_to_async(room.members.add)(ann)
    name = f"room:{room.pk}"
    with draining():
        good, slow = await site_tabs(site, ann), await site_tabs(site, ann)
        for tab in (good, slow):
            await tab.watch(name)
            await tab.data(name, {"messages": []})
        slow.socket.transport.pause_reading()
        before = resident(site.process.pid)
        end = time.monotonic() + 30
        for n in itertools.count():
            await room.messages.acreate(author=ann, text=f"{n} " + "x" * 40_000)
            await good.data(name, lambda data, n=n: data["messages"][-1:] and data["messages"][-1].startswith(f"{n} "), 10)
            await good.ping()
            if await count(name) == 1:
                break
            assert time.monotonic() < end, "the slow one was not closed"
        assert n >= 3
        assert resident(site.process.pid) - before < 30_000_000
        assert good.close_code is None
    calm(site)


def resident(pid: int) -> int:
    """Memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_a_reconnect_storm_is_served(live: Any, site_tabs: Any, ann: User) -> None:
    """A deploy: everybody comes back at once; nobody's heartbeat waits for a build, and each resource is built once."""
    site = await start(live, "uvicorn", TTL=120, LIMITS={"sockets_per_user": 1000})
    key = await sync_to_async(session_for)(ann)
    names = [f"counter:{n}" for n in range(20)]
    for n in range(20):
        await Counter.objects.acreate(name=str(n), value=n)
    opened = [await site_tabs(site, session_key=key, hello=False) for _ in range(200)]
    for tab in opened:
        await tab.send({"op": "watch", "id": 1, "resources": names})
        await tab.send({"op": "ping"})
    # Nothing builds yet: a heartbeat that waited for a build would wait here for ever.
    await await_for(lambda: all(any(frame["op"] == "pong" for frame in tab.frames) for tab in opened), 60, "every heartbeat")
    with draining() as built:
        await await_for(lambda: all(set(tab.last) == set(names) for tab in opened), 60, "everybody is served")
        assert built["hot"] <= 2 * len(names)
    calm(site)
