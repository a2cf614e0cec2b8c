"""Everything at once, while a seeded plan kills, stops, flushes, restarts, delays and cuts. At the end nothing may be lost.

VISIBILITY_CHAOS=600 VISIBILITY_SEED=7 python -m pytest tests/chaos/test_everything.py -s      by hand, as long as you like
VISIBILITY_TEST_DB=postgres …      the same on PostgreSQL, which is restarted, and whose connections are cut and held, too
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections
from websockets.exceptions import WebSocketException

from tests.app.models import Counter
from tests.support import await_for, servers
from tests.support.processes import Process, living, session_members
from tests.support.proxy import Proxy
from tests.support.sockets import Tab, connect, session_for

SECONDS = float(os.environ.get("VISIBILITY_CHAOS") or (40 if os.environ.get("VISIBILITY_REQUIRE_ALL") else 15))
SEED = int(os.environ.get("VISIBILITY_SEED") or 1)
CLIENTS, WRITERS, COUNTERS = 200, 3, 20
QUICK: dict[str, Any] = {
    "HEARTBEAT": 1, "TTL": 3, "LINGER": 0.5, "OUTBOX_GRACE": 1, "BUILD_LEASE": 2, "RECHECK": 5,
    "LIMITS": {"sockets_per_user": 10_000},
}  # fmt: skip
AWAY = (OSError, WebSocketException, AssertionError, asyncio.TimeoutError)


class Client:
    """A browser that comes back: it watches its counters on one of the sites, and remembers what it last saw."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.chance = world, random.Random(SEED * 1000 + number)
        self.names = self.chance.sample(world.names, 3)
        self.shown: dict[str, tuple[int, int]] = {}
        self.tab: Tab | None = None

    async def live(self) -> None:
        while not self.world.over.is_set():
            try:
                await self._visit()
            except AWAY:
                self.world.tally["reconnects"] += 1
            finally:
                self.tab = None
            await asyncio.sleep(self.chance.uniform(0, 1.0))

    async def _visit(self) -> None:
        site = self.chance.choice(self.world.sites)
        async with connect(site.ws, session_key=self.world.session) as tab:
            since = {f"counter:{name}": version for name, (version, _) in self.shown.items()}
            await tab.watch(*(f"counter:{name}" for name in self.names), since=since)
            self.tab = tab
            seen = 0
            while not self.world.over.is_set():
                for frame in tab.frames[seen:]:
                    if frame["op"] == "update":
                        self._take(frame)
                seen = len(tab.frames)
                if tab._reader.done():
                    raise ConnectionError("the socket closed")
                await tab.send({"op": "ping", "have": {f"counter:{n}": v for n, (v, _) in self.shown.items()}})
                await asyncio.sleep(0.7)

    def _take(self, frame: Any) -> None:
        name = frame["resource"].partition(":")[2]
        version, value = frame["version"], (frame["data"] or {}).get("value")
        before = self.shown.get(name, (0, 0))
        # A stale one says so, and never takes the place of a newer one.
        if version < before[0]:
            self.world.wrong.append(f"{name} went back from version {before[0]} to {version}")
        self.shown[name] = (version, value)

    def behind(self, truth: dict[str, int]) -> list[str]:
        return [name for name in self.names if self.shown.get(name, (0, None))[1] != truth[name]]


class World:
    """The processes, and what may happen to them."""

    def __init__(self, stack: ExitStack, session: str, names: list[str], database: servers.DatabaseServer | None) -> None:
        self.session, self.names, self.tally = session, names, Tally[str]()
        self.wrong: list[str] = []
        self.over = asyncio.Event()
        self.chance = random.Random(SEED)
        self.redis = stack.enter_context(servers.valkey())
        self.proxy = stack.enter_context(Proxy(self.redis.port))
        self.proxies = [self.proxy]
        self.options = {"REDIS_URL": f"redis://127.0.0.1:{self.proxy.port}/0", "visibility": QUICK}
        self.database = database
        if database is not None:
            self.database_proxy = stack.enter_context(Proxy(database.port))
            self.proxies.append(self.database_proxy)
            self.options["VISIBILITY_TEST_DB_URL"] = database.url.replace(f":{database.port}/", f":{self.database_proxy.port}/")
        self.stack = stack
        self.sites = [self._start(servers.asgi("daphne", **self.options)), self._start(servers.asgi("uvicorn", **self.options))]
        self.crew = self._crew()
        self.writers = [self._writer(n) for n in range(WRITERS)]

    def _start(self, context: Any) -> Any:
        return self.stack.enter_context(context)

    def _crew(self) -> Process:
        lanes = ("--lane", "hot=3", "--lane", "cold=1")
        return self._start(servers.command("visibility_worker", *lanes, ready="visibility workers:", **self.options))

    def _writer(self, number: int) -> Process:
        return self._start(servers.python("-m", "tests.chaos.writer", str(SEED * 10 + number), **self.options))

    def faults(self) -> dict[str, Callable[[], object]]:
        """What may happen to the database, if it is a server, and to everything else."""
        own: dict[str, Callable[[], object]] = {}
        if self.database is not None:
            own = {
                "database restart": self.database.restart,
                "database connections cut": self.database_proxy.cut,
                "database connections held": lambda: self._for(1.5, self.database_proxy.hold, self.database_proxy.release),
            }
        return {
            **own,
            "flush": self.redis.flush,
            "redis restart": self._restart_redis,
            "redis paused": lambda: self._for(1.5, self.redis.pause, self.redis.resume),
            "connections cut": self.proxy.cut,
            "connections held": lambda: self._for(1.5, self.proxy.hold, self.proxy.release),
            "delay": self._delay,
            "site killed": self._kill_site,
            "worker killed": lambda: self._signal_worker(signal.SIGKILL),
            "worker stopped": self._stop_worker,
            "crew killed": self._kill_crew,
            "writer killed": self._kill_writer,
        }

    def plan(self) -> Iterator[str]:
        """Names of faults for ever: each once a round, in an order that the seed gives; at first the database's come first."""
        names = list(self.faults())
        for number in itertools.count():
            self.chance.shuffle(names)
            yield from names if number else sorted(names, key=lambda name: not name.startswith("database"))

    def _for(self, seconds: float, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        time.sleep(seconds)
        end()

    def _restart_redis(self) -> None:
        self.redis.kill()
        time.sleep(self.chance.uniform(0, 1))
        self.redis.start()

    def _delay(self) -> None:
        self.proxy.delay = 0.05
        time.sleep(1.5)
        self.proxy.delay = 0.0

    def _kill_site(self) -> None:
        number = self.chance.randrange(2)
        self.sites[number].kill()
        self.sites[number] = self._start(servers.asgi(("daphne", "uvicorn")[number], **self.options))

    def _members(self) -> list[int]:
        return [pid for pid in session_members(self.crew.pid) if pid != self.crew.pid]

    def _signal_worker(self, number: signal.Signals) -> list[int]:
        pids = self._members()
        if not pids:
            return []
        pid = self.chance.choice(pids)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return []
        return [pid]

    def _stop_worker(self) -> None:
        pids = self._signal_worker(signal.SIGSTOP)
        # Longer than the lease of its claims: it wakes up late, and its writes must be refused.
        time.sleep(QUICK["BUILD_LEASE"] + 0.5)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                self.tally["stopped worker gone"] += 1

    def _kill_crew(self) -> None:
        self.crew.kill()
        self.crew = self._crew()

    def _kill_writer(self) -> None:
        number = self.chance.randrange(WRITERS)
        self.writers[number].kill()
        self.writers[number] = self._writer(number + 5)


@pytest.fixture
def database(transactional_db: None, database_server: servers.DatabaseServer | None) -> Iterator[servers.DatabaseServer | None]:
    """The server to restart, if there is one; this process's own connections may be dead at the end, too."""
    yield database_server
    connections.close_all()


@pytest.mark.timeout(SECONDS + 240)
async def test_nothing_is_lost(make_user: Callable[..., User], database: servers.DatabaseServer | None) -> None:
    user = await sync_to_async(make_user)("ann")
    names = [f"c{n}" for n in range(COUNTERS)]
    await Counter.objects.abulk_create([Counter(name=name) for name in names])
    session, others, started = await sync_to_async(session_for)(user), _processes(), time.monotonic()
    with ExitStack() as stack:
        world = await asyncio.to_thread(World, stack, session, names, database)
        faults, plan = world.faults(), world.plan()
        clients = [Client(world, n) for n in range(CLIENTS)]
        tasks = [asyncio.create_task(client.live()) for client in clients]
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            name = next(plan)
            world.tally[name] += 1
            await asyncio.to_thread(faults[name])
            await asyncio.sleep(world.chance.uniform(0.2, 1.5))
        for writer in world.writers:
            await asyncio.to_thread(writer.stop)
        truth = await sync_to_async(_truth)()
        await await_for(lambda: not any(c.behind(truth) for c in clients), 90, "every client's last frame equals the source")
        world.over.set()
        await asyncio.gather(*tasks)
        code, said = await asyncio.to_thread(_read_all, world)
        assert code == 0, said
        answer = json.loads(said.strip().splitlines()[-1])
        assert answer["read"] == answer["truth"] == truth
        with world.redis.client() as redis:
            assert [key for key in redis.keys("{vis*") if redis.ttl(key) == -1] == []
            leases = [f"{{vis:0}}:watchers:counter:{name}" for name in names]
            await await_for(
                lambda: not any(redis.zcount(one, _now_ms(redis), "+inf") for one in leases), 20, "nobody's lease is left"
            )
            # A server that was killed has removed nothing: its ended leases go with their keys, ten leases later.
            await await_for(lambda: redis.exists(*leases) == 0, 10 * QUICK["TTL"] + 5, "nor any that has ended")
            assert redis.zcard("{vis:0}:claimed:hot") == 0
            for process in (world.crew, *(site.process for site in world.sites)):
                await asyncio.to_thread(process.stop)
        for proxy in world.proxies:
            await await_for(lambda proxy=proxy: proxy.living == 0, 10, "no connection to Redis or the database is left")
        assert world.wrong == []
        report = {
            "seed": SEED, "seconds": round(time.monotonic() - started), "database": connection.vendor, "clients": CLIENTS,
            "writes": sum(truth.values()), "faults": dict(world.tally), "losses": 0,
        }  # fmt: skip
    assert _processes() == others, "processes are left"
    print("\n" + json.dumps(report))  # noqa: T201


def _now_ms(redis: Any) -> int:
    seconds, micros = redis.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _processes() -> list[list[str]]:
    return sorted(process.command for process in living())


def _truth() -> dict[str, int]:
    # The connection of this thread may have been cut by a restart.
    connection.close()
    return dict(Counter.objects.values_list("name", "value"))


def _read_all(world: World) -> tuple[int, str]:
    with servers.python("-m", "tests.chaos.reader", **world.options) as process:
        code = process.popen.wait(60)
        return code, process.output
