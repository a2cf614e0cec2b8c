"""What a process knows of its live sockets and of what they watch: plain objects in few bytes, no task while they are idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from visibility.datatypes import DataType, registry
from visibility.sockets.frames import SLOW_READER, Frame
from visibility.soft.leases import BEAT, CARRY, WHOLE
from visibility.soft.sessions import member

logger = logging.getLogger("visibility")
Send = Callable[[dict[str, Any]], Awaitable[None]]
DONE = 2
# What `watches` says of a resource that is not allowed yet.
ASKED = -1
# A heartbeat that carries trust on is at most a lease after the one before; keys of leases live for ten.
WHOLE_EVERY = 7
# So long may a server take to put a close frame behind what it has not sent yet.
CLOSE_TIMEOUT = 10.0


class Topic:
    """One resource that sessions of this process watch.

    `version`: the newest delivered, after a change at `event_ms`, to be refreshed from `soft_ms` on; `told`: the count last sent;
    `changed`: it may be another by now, as we were `TOLD` or by an `OWN` session. Times are monotonic, those in ms the server's.
    """

    TOLD, OWN = 1, 2
    __slots__ = ("changed", "event_ms", "looked_at", "name", "sessions", "soft_ms", "told", "told_at", "type", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.type: DataType = registry.get(name.partition(":")[0])
        self.sessions: dict[Session, None] = {}
        self.version = 0
        self.event_ms = self.soft_ms = 0
        self.told = -1
        self.changed = 0
        self.told_at = self.looked_at = 0.0

    @property
    def active(self) -> bool:
        """Whether any tab here makes it visible: in front, or hidden with a rate of its own."""
        return self.type.background is not None or any(session.visible for session in self.sessions)


class Session:
    """One live socket.

    `watches`: the version last sent of each (`ASKED`: not allowed yet). `proven`: its rights stand as asked; without, it gets no
    data. `heard`, `checked`, `blocked`: when a frame came, when rights were asked, since when the reader has not taken the next
    frame (0: it does). `hid`: the tab was out of sight once.
    """

    __slots__ = (
        "account", "blocked", "carried", "carries", "checked", "closing", "filled", "heard", "hid", "joined", "key", "level",
        "ops", "outbox", "proven", "refused", "send", "serial", "sid", "user", "visible", "watches", "worker", "writer",
    )  # fmt: skip

    def __init__(self, sid: str, user: str, key: str | None, account: Any, send: Send, now: float, burst: float) -> None:
        self.sid, self.user, self.key, self.account, self.send = sid, user, key, account, send
        self.watches: dict[Topic, int] = {}
        self.visible = self.proven = True
        self.joined = self.hid = False
        self.heard = self.checked = self.filled = now
        self.level, self.refused, self.serial = burst, 0, 0
        self.closing = self.carries = 0
        self.blocked = self.carried = 0.0
        self.outbox: dict[int | str, str] | None = None
        self.writer: asyncio.Task[None] | None = None
        self.ops: deque[Frame] | None = None
        self.worker: asyncio.Task[None] | None = None

    @property
    def member(self) -> str:
        return member(self.user, self.sid)

    def kind(self, topic: Topic) -> str:
        """The kind of lease this session has on a topic, as its tab is now."""
        if self.visible:
            return "watch"
        return "parked" if topic.type.background is None else "background"

    def leases(self, topic: Topic) -> bool:
        """Whether this session's tab makes the topic visible."""
        return self.watches[topic] > ASKED and (self.visible or topic.type.background is not None)

    def part(self, now: float, ttl: float, heartbeat: float) -> int:
        """How much of its leases is to be renewed now: trust is carried on before it could end ahead of the next heartbeat."""
        if now - self.carried <= ttl - 1.25 * heartbeat:
            return BEAT
        self.carried = now
        self.carries += 1
        return WHOLE if self.carries % WHOLE_EVERY == 1 else CARRY

    def shows(self, topic: Topic) -> bool:
        """Whether updates of this topic are sent to this session now."""
        return self.proven and not self.closing and (self.visible or topic.type.background is not None)

    def allow(self, cost: float, rate: float, burst: float, now: float) -> bool:
        """Token bucket for frames. `refused` counts those that were not allowed since the bucket was last full."""
        self.level = min(burst, self.level + (now - self.filled) * rate)
        self.filled = now
        if self.level >= burst - 1:
            self.refused = 0
        if self.level < cost:
            self.refused += 1
            return False
        self.level -= cost
        return True

    def put(self, text: str, slot: str = "", limit: int = 256) -> None:
        """Queue a frame. One of the same slot that still waits is replaced, so that per resource only the newest is kept.

        A reader who lets more than `limit` others wait is closed.
        """
        if self.closing:
            return
        if self.outbox is None:
            self.outbox = {}
        self.serial += 1
        self.outbox[slot or self.serial] = text
        if len(self.outbox) > limit + 2 * len(self.watches):
            self.close(SLOW_READER)
        elif self.writer is None:
            self.writer = asyncio.create_task(self._write())

    def unput(self, slot: str) -> bool:
        """Take back a frame that still waits."""
        return self.outbox is not None and self.outbox.pop(slot, None) is not None

    def close(self, code: int) -> None:
        """Send what control frames wait (unless the reader is stuck), then close."""
        if self.closing:
            return
        self.closing = code
        if code == SLOW_READER:
            self.outbox = None
            if self.writer is not None:
                self.writer.cancel()
            self.writer = None
        if self.writer is None:
            self.writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Send until nothing waits. One of it at a time, so frames keep their order."""
        loop = asyncio.get_running_loop()
        mine = asyncio.current_task()
        try:
            while self.outbox:
                slot = next(iter(self.outbox))
                text = self.outbox.pop(slot)
                self.blocked = loop.time()
                await self.send({"type": "websocket.send", "text": text})
            if self.closing > DONE:
                code, self.closing = self.closing, DONE
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT):
                        await self.send({"type": "websocket.close", "code": code})
        except Exception as error:
            # The client is gone; the server tells the consumer, which leaves.
            logger.debug("session %s cannot be written to: %r", self.sid, error)
            self.closing, self.outbox = DONE, None
        finally:
            if self.writer is mine:
                self.blocked = 0.0
                self.writer = None
                if not self.outbox:
                    self.outbox = None
