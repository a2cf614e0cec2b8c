"""A socket client that speaks the protocol as a browser tab does, for tests on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from websockets.asyncio.client import ClientConnection, connect as ws_connect
from websockets.exceptions import ConnectionClosed

from tests.support.wait import await_for

Frame = dict[str, Any]


def session_for(user: User) -> str:
    """A logged-in session of this user; returns its key."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return str(store.session_key)


class Tab:
    """One open socket: `frames` has all that came, `last` the newest update of each resource."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[Frame] = []
        self.last: dict[str, Frame] = {}
        self.close_code: int | None = None
        self._seen = 0
        self._ids = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                frame: Frame = json.loads(text)
                self.frames.append(frame)
                if frame.get("op") == "update":
                    self.last[frame["resource"]] = frame
        except ConnectionClosed:
            pass
        self.close_code = self.socket.close_code

    @property
    def session(self) -> str:
        """The session id, from the hello frame."""
        return str(next(frame for frame in self.frames if frame["op"] == "hello")["session"])

    @property
    def versions(self) -> dict[str, int]:
        """What this tab has, as `ping` and `since` report it."""
        return {resource: frame["version"] for resource, frame in self.last.items()}

    async def send(self, frame: Mapping[str, Any] | str | bytes) -> None:
        """Send a frame; text and bytes go out as they are."""
        await self.socket.send(frame if isinstance(frame, (str, bytes)) else json.dumps(frame))

    async def expect(self, op: str, seconds: float = 5, **fields: Any) -> Frame:
        """The next frame with this op and these fields; frames passed over are not looked at again by a later `expect`."""

        def find() -> Frame | None:
            for n in range(self._seen, len(self.frames)):
                frame = self.frames[n]
                if frame.get("op") == op and all(frame.get(name) == value for name, value in fields.items()):
                    self._seen = n + 1
                    return frame
            return None

        what = f"a frame {op} {fields or ''}; unread: {self.frames[self._seen :]}"
        try:
            frame: Frame = await await_for(find, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; now: {self.frames[self._seen :]}, close code {self.close_code}") from None
        return frame

    async def ask(self, op: str, answer: str, seconds: float = 5, **fields: Any) -> Frame:
        """Send an operation with a fresh id and return its answer."""
        self._ids += 1
        await self.send({"op": op, "id": self._ids, **fields})
        return await self.expect(answer, seconds, id=self._ids)

    async def watch(self, *resources: str, since: Mapping[str, int] | None = None) -> Frame:
        """Watch, and wait for `watched`."""
        more: dict[str, Any] = {} if since is None else {"since": dict(since)}
        return await self.ask("watch", "watched", resources=list(resources), **more)

    async def unwatch(self, *resources: str) -> Frame:
        return await self.ask("unwatch", "unwatched", resources=list(resources))

    async def show(self, visible: bool) -> None:
        """The tab comes to the front, or is hidden."""
        await self.send({"op": "state", "visible": visible})

    async def ping(self, have: Mapping[str, int] | None = None) -> Frame:
        await self.send({"op": "ping", "have": self.versions if have is None else dict(have)})
        return await self.expect("pong")

    async def data(self, resource: str, expected: Any, seconds: float = 5) -> Frame:
        """Wait until the newest update of this resource carries this data (or satisfies the given function)."""
        test: Callable[[Any], Any] = expected if callable(expected) else lambda data: data == expected

        def arrived() -> Frame | None:
            frame = self.last.get(resource)
            return frame if frame is not None and test(frame.get("data")) else None

        try:
            shown: Frame = await await_for(arrived, seconds, f"{resource} shows {expected!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; frames: {self.frames[-5:]}, close code {self.close_code}") from None
        return shown

    async def closed(self, seconds: float = 5) -> int:
        """Wait until the server closes; returns the close code."""
        await asyncio.wait_for(asyncio.shield(self._reader), seconds)
        return self.close_code or 0

    async def close(self) -> None:
        await self.socket.close()
        with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
            await self._reader

    def cut(self) -> None:
        """Drop the connection without a goodbye, as a lost network does."""
        self.socket.transport.abort()

    async def beat(self, every: float) -> None:
        """Ping every so many seconds, until cancelled: run it as a task."""
        while True:
            await asyncio.sleep(every)
            await self.send({"op": "ping", "have": self.versions})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


@asynccontextmanager
async def connect(
    url: str,
    *,
    user: User | None = None,
    session_key: str = "",
    watch: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    origin: str | None = "own",
    hello: bool = True,
) -> AsyncIterator[Tab]:
    """A tab of this user (or of nobody).

    Args:
        session_key: the session to use instead of a new one of `user`.
        watch: watched before the block begins.
        origin: "own" is a page of the same site; None sends none, as a client that is no browser.
        hello: False does not wait for the first frame.
    """
    if origin == "own":
        origin = "http://" + urlsplit(url).netloc
    if user is not None and not session_key:
        session_key = await sync_to_async(session_for)(user)
    own = dict(headers or {})
    if session_key:
        own["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={session_key}"
    socket = await ws_connect(url, additional_headers=own, origin=origin, open_timeout=20, close_timeout=2, ping_interval=None)  # type: ignore[arg-type]
    tab = Tab(socket)
    try:
        if hello:
            await tab.expect("hello", 10)
        if watch:
            await tab.watch(*watch)
        yield tab
    finally:
        await tab.close()
