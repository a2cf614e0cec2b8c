"""A small TCP proxy on the loopback interface that can delay, hold, cut and refuse.

with Proxy(redis_server.port) as proxy:
    proxy.delay = 0.2      # seconds before each chunk goes on, both ways
    proxy.hold()           # bytes wait, connections stay: a black hole
    proxy.release()
    proxy.cut()            # every connection is reset now
    proxy.refuse()         # new ones are refused, until accept()
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tests.ports import free_port


class Proxy:
    """Forwards `127.0.0.1:proxy.port` to `127.0.0.1:target`. Its methods may be called from any thread."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.connections = 0
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.port = free_port()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        self.release()
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._shut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def hold(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self) -> int:
        """Reset every connection; returns how many there were."""
        return int(self._do(self._cut))

    @property
    def living(self) -> int:
        """How many connections go through it now."""
        return len(self._pairs)

    def refuse(self) -> None:
        """Refuse new connections; those that live go on (`cut` ends them)."""
        self._do(self._unlisten)

    def accept(self) -> None:
        self._do(self._listen)

    def _do(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)

    async def _unlisten(self) -> None:
        if self._server is not None:
            # Not wait_closed(): since Python 3.12 that waits for the living connections too.
            self._server.close()
            self._server = None

    async def _cut(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            for writer in pair:
                # With a linger of zero the peer sees a reset, not an orderly end.
                if (raw := writer.get_extra_info("socket")) is not None:
                    with contextlib.suppress(OSError):
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        return len(pairs)

    async def _shut(self) -> None:
        await self._unlisten()
        await self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, to_writer)
        self._pairs.add(pair)
        pumps = {
            asyncio.ensure_future(self._pump(reader, to_writer)),
            asyncio.ensure_future(self._pump(to_reader, writer)),
        }
        self._tasks |= pumps
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pairs.discard(pair)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._tasks -= pumps
            for end in pair:
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._open.wait()
                writer.write(chunk)
                await writer.drain()
