"""Back-pressure where the server has none: Daphne takes any amount of frames for a client that does not read them.

uvicorn's `send` waits while a client's buffer is full. Daphne's returns at once; but its protocol object, which is an argument of
the `send` that it hands over, can tell when the buffer is full (a Twisted push producer). Behind middleware that wraps `send`,
nothing is known, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger("visibility")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Paced:
    """A `send` that returns once the buffer has room again. The other methods are Twisted's."""

    __slots__ = ("_room", "_send")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._room: asyncio.Future[None] | None = None

    async def __call__(self, message: dict[str, Any]) -> None:
        await self._send(message)
        if self._room is not None:
            await asyncio.shield(self._room)

    def pauseProducing(self) -> None:  # noqa: N802
        """The buffer is full."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()

    def resumeProducing(self) -> None:  # noqa: N802
        """The buffer has room."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def stopProducing(self) -> None:  # noqa: N802
        """The connection is gone; nobody waits for it any more."""
        self.resumeProducing()


def paced(send: Send) -> Send:
    """This `send`, or one that waits for the client where it would not."""
    for protocol in getattr(send, "args", ()):
        if hasattr(protocol, "registerProducer") and hasattr(protocol, "unregisterProducer"):
            pace = Paced(send)
            try:
                # What stands there is left over from the HTTP request that became this socket.
                protocol.unregisterProducer()
                protocol.registerProducer(pace, True)
            except Exception as error:
                logger.debug("no back-pressure for this socket: %r", error)
                return send
            return pace
    return send
