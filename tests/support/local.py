"""Sockets and drains inside the test's own process: the real application, hub, Redis and database, without a network.

Thousands of sockets fit into one test this way, and what the hub knows can be looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from channels.layers import channel_layers
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from redis import RedisError
from websockets.exceptions import ConnectionClosedOK
from websockets.frames import Close

from tests.support.sockets import Tab, session_for
from visibility import dirty, recompute
from visibility.conf import settings as visibility_settings
from visibility.datatypes import parse_resource, registry
from visibility.exceptions import RedisAway
from visibility.routing import application
from visibility.sockets.hub import hub_here
from visibility.soft import claims, clock, leases, pending
from visibility.soft.client import aclose, client
from visibility.soft.pending import Item
from visibility.wake import wake


class LocalSocket:
    """The server's and the client's end in one: what `tests.support.sockets.Tab` needs of a connection.

    With `reading` cleared the client reads nothing, and the server's `send` waits as it does for a full network buffer.
    """

    def __init__(self, app: Any = application, **scope: Any) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[str | None] = asyncio.Queue()
        self.reading = asyncio.Event()
        self.reading.set()
        self.close_code: int | None = None
        self.transport = self
        self.error: BaseException | None = None
        self.inbox.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(self._run(app, {"type": "websocket", "path": "/ws/visibility/", "headers": [], **scope}))

    async def _run(self, app: Any, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self.inbox.get, self._sent)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.close_code = self.close_code or 1006
            self.outbox.put_nowait(None)

    async def _sent(self, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.close":
            self.close_code = message.get("code", 1000)
            self.outbox.put_nowait(None)
            self.inbox.put_nowait({"type": "websocket.disconnect", "code": self.close_code})
            return
        await self.reading.wait()
        if message["type"] == "websocket.send":
            self.outbox.put_nowait(message["text"])

    async def __aiter__(self) -> AsyncIterator[str]:
        while (text := await self.outbox.get()) is not None:
            yield text

    async def send(self, text: str | bytes) -> None:
        if self.close_code is not None:
            raise ConnectionClosedOK(Close(self.close_code, "by the server"), None)
        self.inbox.put_nowait({"type": "websocket.receive", "text" if isinstance(text, str) else "bytes": text})

    async def close(self) -> None:
        self.reading.set()
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(asyncio.shield(self.task), 10)

    def abort(self) -> None:
        """As when the server cancels the application: no disconnect message comes."""
        self.task.cancel()


class Sockets:
    """Opens tabs of this process; `close()` ends them all and what they used of the event loop. Repeated, it does nothing."""

    def __init__(self) -> None:
        self.tabs: list[Tab] = []
        self.closed = False

    async def __call__(
        self, user: User | None = None, *, session_key: str = "", hello: bool = True, app: Any = application, **scope: Any
    ) -> Tab:
        """A tab of this user (or of nobody)."""
        if user is not None and not session_key:
            session_key = await sync_to_async(session_for)(user)
        headers = list(scope.pop("headers", []))
        if session_key:
            headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={session_key}".encode()))
        tab = Tab(LocalSocket(app, headers=headers, **scope))  # type: ignore[arg-type]
        self.tabs.append(tab)
        if hello:
            await tab.expect("hello", 20)
        return tab

    async def close(self) -> None:
        if self.closed:
            # Its Redis may have ended since.
            return
        self.closed = True
        await asyncio.gather(*(tab.close() for tab in self.tabs))
        hub = hub_here()
        assert not hub.sessions, "sessions are left"
        assert not hub.topics, "topics are left"
        await aclose()
        assert not immortal(), "keys without a lifetime are left"
        # A core Redis layer that was left while it received keeps a lock of this event loop; the next loop gets a new layer.
        channel_layers.backends.clear()


def immortal() -> list[str]:
    """The package's keys in Redis that nothing would ever remove."""
    try:
        redis = client()
        return [key.decode() for key in redis.scan_iter(f"{{{visibility_settings.PREFIX}:*") if redis.ttl(key) == -1]
    except (RedisError, RedisAway):
        # A test has ended it; what it held is gone.
        return []


def no_traceback(tab: Tab) -> bool:
    """Whether the application of a local tab lives, or ended without an error."""
    socket: Any = tab.socket
    return socket.error is None


def change(*resources: str, write: Callable[[], object] | None = None) -> None:
    """A committed change, as the gate deals with it: the visible become pending, the hidden are marked, and looked at again."""
    if write is not None:
        write()
    for name in resources:
        kind, key = parse_resource(name)
        if not leases.visible_among(kind, [key]):
            dirty.mark(kind, {key: 1})
        if leases.visible_among(kind, [key]):
            lane = visibility_settings.lane(registry.get(kind).lane)
            window = registry.get(kind).coalesce
            wake(lane.name, pending.pend(lane, [Item(name, clock.now_ms(), "", window=window)]).wake)


achange = sync_to_async(change)


@contextmanager
def draining(lanes: tuple[str, ...] = ("hot", "cold")) -> Iterator[Mapping[str, int]]:
    """A thread that does what a worker's jobs do, for all lanes; yields how many it built, by lane."""
    over, built = threading.Event(), dict.fromkeys(lanes, 0)

    def work() -> None:
        try:
            while not over.is_set():
                done = 0
                for lane in lanes:
                    for shard in range(visibility_settings.SHARDS):
                        try:
                            done += (n := _drain(lane, shard))
                            built[lane] += n
                        except RedisAway:
                            continue
                if not done:
                    over.wait(0.02)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work, name="test-drain", daemon=True)
    thread.start()
    try:
        yield built
    finally:
        over.set()
        thread.join(20)


def _drain(lane: str, shard: int) -> int:
    options = visibility_settings.lane(lane)
    owned = claims.claim(lane, shard, options.batch, visibility_settings.BUILD_LEASE)
    return recompute.work(options, owned) if owned.rows else 0
