"""The people who watch: real sockets to the real server, on a loop in a thread of its own, and what they are shown when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

RETRY = 0.25


class Watcher:
    """One person's open tab: what it watches, the last frame of each resource, and changes it has not been shown yet."""

    def __init__(self, person: str, cookie: str) -> None:
        self.person, self.cookie = person, cookie
        self.resources: list[str] = []
        self.versions: dict[str, int] = {}
        self.data: dict[str, Any] = {}
        self.waiting: dict[str, list[float]] = {}
        self.open = True
        self.task: asyncio.Task[None] | None = None
        self.socket: ClientConnection | None = None


class Watchers:
    """All open tabs. Its methods are called from the thread that writes; the sockets live on a loop of their own."""

    def __init__(self, url: str, origin: str) -> None:
        self.url, self.origin = url, origin
        self.online: dict[str, Watcher] = {}
        self.by_resource: dict[str, set[Watcher]] = {}
        self.samples: dict[str, list[float]] = {}
        self.cut_off = 0
        self.frames = 0
        self.sockets = 0
        self.problems: dict[str, int] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="watchers", daemon=True)
        self._thread.start()

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def come(self, person: str, cookie: str, resources: Iterable[str]) -> None:
        """Open a tab that watches these resources; returns at once."""
        watcher = Watcher(person, cookie)
        watcher.resources = list(resources)
        self.online[person] = watcher
        with self._lock:
            for resource in watcher.resources:
                self.by_resource.setdefault(resource, set()).add(watcher)
        self._submit(self._live(watcher))

    def go(self, person: str) -> None:
        """Close the person's tab."""
        watcher = self.online.pop(person, None)
        if watcher is None:
            return
        with self._lock:
            self.cut_off += sum(1 for waiting in watcher.waiting.values() if waiting)
            watcher.waiting.clear()
            for resource in watcher.resources:
                self.by_resource[resource].discard(watcher)
        self._submit(self._leave(watcher))

    def changed(self, resources: Iterable[str], at: float) -> None:
        """A change of these was committed at `at` (seconds of the wall clock): who watches them now waits for it.

        Only tabs that have been shown a first frame count: before, they are being connected, not refreshed.
        """
        with self._lock:
            for resource in resources:
                for watcher in self.by_resource.get(resource, ()):
                    if resource in watcher.versions:
                        watcher.waiting.setdefault(resource, []).append(at)

    async def _live(self, watcher: Watcher) -> None:
        watcher.task = asyncio.current_task()
        while watcher.open:
            try:
                await self._session(watcher)
            except (OSError, WebSocketException, TimeoutError) as error:
                self._problem(type(error).__name__)
            if watcher.open:
                await asyncio.sleep(RETRY)

    async def _session(self, watcher: Watcher) -> None:
        self.sockets += 1
        async with connect(
            self.url,
            additional_headers={"Cookie": watcher.cookie},
            origin=self.origin,  # type: ignore[arg-type]
            open_timeout=30,
            close_timeout=2,
            ping_interval=None,
            compression=None,
            max_size=2**22,
        ) as socket:
            watcher.socket = socket
            hello = json.loads(await socket.recv())
            frame = {"op": "watch", "id": 1, "resources": watcher.resources, "since": watcher.versions}
            await socket.send(json.dumps(frame))
            beat = asyncio.create_task(self._beat(watcher, socket, float(hello.get("heartbeat", 20))))
            try:
                async for text in socket:
                    self._receive(watcher, json.loads(text), time.time())
            finally:
                beat.cancel()
                with contextlib.suppress(asyncio.CancelledError, WebSocketException):
                    await beat

    async def _beat(self, watcher: Watcher, socket: ClientConnection, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await socket.send(json.dumps({"op": "ping", "have": watcher.versions}))

    async def _leave(self, watcher: Watcher) -> None:
        watcher.open = False
        if watcher.socket is not None:
            await watcher.socket.close()
        if watcher.task is not None:
            watcher.task.cancel()

    def _receive(self, watcher: Watcher, frame: dict[str, Any], now: float) -> None:
        if frame["op"] == "error":
            self._problem(f"{frame['code']}: {frame.get('detail', '')}"[:120])
        if frame["op"] != "update":
            return
        resource, version = frame["resource"], frame["version"]
        with self._lock:
            self.frames += 1
            watcher.versions[resource], watcher.data[resource] = version, frame["data"]
            waiting = watcher.waiting.get(resource, [])
            # A version is the moment, in microseconds, at which its build began: it shows every change committed before.
            still = [at for at in waiting if at * 1_000_000 > version]
            if len(still) < len(waiting):
                self.samples.setdefault(resource.partition(":")[0], []).append(now - waiting[0])
                watcher.waiting[resource] = still

    def _problem(self, what: str) -> None:
        self.problems[what] = self.problems.get(what, 0) + 1

    def shown(self) -> dict[tuple[str, str], Any]:
        """{(person, resource): data of the last frame} of every open tab; None where no frame has come."""
        with self._lock:
            return {
                (person, resource): watcher.data.get(resource)
                for person, watcher in self.online.items()
                for resource in watcher.resources
            }

    def close(self) -> None:
        """Close every tab and end the thread."""
        leaving = [self._submit(self._leave(watcher)) for watcher in self.online.values()]
        for one in leaving:
            with contextlib.suppress(Exception):
                one.result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
