"""A double of the server: speaks the frames of the socket protocol, keeps versions, and misbehaves when told to.

For what belongs to the client alone: its reconnects, versions, tabs and elements. What client and server do together is
tested on the real one (test_site.py).

    with Double() as double:
        double.publish("feed:1", {"n": 1})
        double.site        # http://127.0.0.1:…/ serves pages and visibility.js with a strict policy
        double.sockets     # every connection so far; `double.live` only those that are open
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

import visibility
from tests.support.processes import free_port

SCRIPT = Path(visibility.__path__[0]) / "static/visibility/visibility.js"
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; worker-src 'self'; img-src data:"


class Socket:
    """One connection: what was said on it, and what it watches now. `version` 0 in `since`: nothing was claimed."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection, self.number = connection, number
        self.frames: list[dict[str, Any]] = []
        self.watching: set[str] = set()
        self.visible: bool | None = None
        self.code: int | None = None
        self.open = True

    def said(self, op: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["op"] == op]

    @property
    def acks(self) -> list[tuple[str, int]]:
        return [(frame["resource"], frame["version"]) for frame in self.said("ack")]


class Double:
    """See the module. Attributes may be changed from the test at any time."""

    def __init__(self, heartbeat: float = 0.3) -> None:
        self.port = free_port()
        self.site = f"http://127.0.0.1:{self.port}/"
        self.hello: dict[str, Any] = {"heartbeat": heartbeat, "limits": {"frames_per_second": 100}}
        self.pages: dict[str, str] = {}
        self.policy = POLICY
        self.sockets: list[Socket] = []
        self.versions: dict[str, int] = {}
        self.data: dict[str, Any] = {}
        self.forbidden: set[str] = set()
        self.deaf = False  # reads, never answers
        self.lossy = False  # updates get lost on their way
        self.slow = 0.0  # seconds before each answer
        self.no_worker = False  # the script is not found where it is asked for as a worker
        self.greet_with: int | None = None  # accept, then close with this code
        self.answer: Callable[[Socket, dict[str, Any]], dict[str, Any] | None] = lambda socket, frame: None
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="double", daemon=True)
        self._server: Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    # --- for the test -------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[Socket]:
        return [socket for socket in self.sockets if socket.open]

    @property
    def watching(self) -> set[str]:
        """What is watched over all sockets."""
        return set().union(*(socket.watching for socket in self.live))

    def page(self, body: str, options: Any = None, path: str = "") -> str:
        """Serve this body with the script, which connects by itself unless options is False; returns the address."""
        tag = "" if options is False else f"data-visibility-connect='{json.dumps(options or {})}'"
        script = f'<script type="module" src="/visibility.js" {tag}></script>'
        self.pages["/" + path] = f"<!doctype html><title>{path}</title><link rel=icon href=data:,>{script}<body>{body}"
        return self.site + path

    def publish(self, resource: str, data: Any, version: int | None = None) -> int:
        """A new snapshot; those who watch it are told."""
        version = self.versions.get(resource, 100) + 1 if version is None else version
        self.versions[resource] = max(version, self.versions.get(resource, 0))
        self.data[resource] = data
        if not self.lossy:
            self.push({**self._update(resource), "version": version}, to=resource)
        return version

    def push(self, frame: dict[str, Any], to: str | None = None) -> None:
        """Send a frame to all sockets, or to those that watch `to`."""

        async def send() -> None:
            for socket in self.live:
                if to is None or to in socket.watching:
                    await socket.connection.send(json.dumps(frame))

        self._do(send())

    def drop(self, code: int | None = None) -> None:
        """Close every connection with this code; None cuts the line without a word."""

        async def close() -> None:
            for socket in self.live:
                if code is None:
                    socket.connection.transport.abort()
                else:
                    await socket.connection.close(code)

        self._do(close())

    def stop(self) -> None:
        self.drop()

        async def shut() -> None:
            if self._server is not None:
                self._server.close()
                await self._server.wait_closed()
                self._server = None

        self._do(shut())

    def start(self) -> None:
        async def listen() -> None:
            self._server = await serve(
                self._socket, "127.0.0.1", self.port, process_request=self._http, ping_interval=None, close_timeout=1
            )

        self._do(listen())

    # --- the server ---------------------------------------------------------------------------------------------------

    def _do(self, step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(10)

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        if "Upgrade" in request.headers:
            return None
        path = request.path.partition("?")[0]
        if path == "/visibility.js" and not (self.no_worker and "worker" in request.headers.get("Sec-Fetch-Dest", "")):
            return self._response(SCRIPT.read_text(), "text/javascript")
        if path in self.pages:
            return self._response(self.pages[path], "text/html")
        return Response(404, "Not Found", Headers({"Connection": "close"}), b"")

    def _response(self, text: str, kind: str) -> Response:
        body = text.encode()
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Connection": "close"}
        return Response(200, "OK", Headers({**headers, "Content-Security-Policy": self.policy}), body)

    async def _socket(self, connection: ServerConnection) -> None:
        socket = Socket(connection, next(self._numbers))
        self.sockets.append(socket)
        try:
            if self.greet_with:
                return await connection.close(self.greet_with)
            if not self.deaf:
                await self._send(socket, {"op": "hello", "session": f"s{socket.number}", **self.hello})
            async for text in connection:
                frame = json.loads(text)
                socket.frames.append(frame)
                if not self.deaf:
                    await asyncio.sleep(self.slow)
                    await self._answer(socket, frame)
        except ConnectionClosed:
            pass
        finally:
            await connection.wait_closed()
            socket.open, socket.code = False, connection.close_code

    async def _send(self, socket: Socket, *frames: dict[str, Any]) -> None:
        for frame in frames:
            await socket.connection.send(json.dumps(frame))

    async def _answer(self, socket: Socket, frame: dict[str, Any]) -> None:
        if (special := self.answer(socket, frame)) is not None:
            return await self._send(socket, special)
        match frame["op"]:
            case "watch":
                await self._watch(socket, frame)
            case "unwatch":
                socket.watching -= set(frame["resources"])
                await self._send(socket, {"op": "unwatched", "id": frame["id"], "resources": frame["resources"]})
            case "state":
                socket.visible = frame["visible"]
            case "ping":
                versions = self._versions(socket.watching)
                await self._send(socket, {"op": "pong", "versions": versions})
                if not self.lossy:
                    late = [name for name, have in frame["have"].items() if versions.get(name, 0) > have]
                    await self._send(socket, *map(self._update, late))

    async def _watch(self, socket: Socket, frame: dict[str, Any]) -> None:
        names = [name for name in frame["resources"] if name not in self.forbidden]
        for name in self.forbidden.intersection(frame["resources"]):
            refusal = {"op": "error", "id": frame["id"], "code": "forbidden", "detail": "not yours", "resource": name}
            await self._send(socket, refusal)
        socket.watching |= set(names)
        versions = self._versions(names)
        watched = {name: {"watchers": 1, "version": version} for name, version in versions.items()}
        await self._send(socket, {"op": "watched", "id": frame["id"], "resources": watched})
        for name, version in versions.items():
            if version > frame.get("since", {}).get(name, 0):
                await self._send(socket, self._update(name))

    def _versions(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self.versions.get(name, 0) for name in names}

    def _update(self, resource: str) -> dict[str, Any]:
        times = {"event_at": 1.5, "built_at": 2.0, "missed": 0}
        return {
            "op": "update", "resource": resource, "version": self.versions[resource], "data": self.data[resource],
            "state": "fresh", **times,
        }  # fmt: skip
