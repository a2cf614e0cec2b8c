"""Keeping what sessions may see true: the access log is heeded in order, and rights are asked again, at once or on a timer.

A session whose rights are in question gets no data until they are proven.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from visibility import access
from visibility.access import Answer, Asking
from visibility.exceptions import RedisAway
from visibility.push import in_thread
from visibility.sockets.frames import SESSION_ENDED
from visibility.sockets.state import Session
from visibility.soft import sessions

if TYPE_CHECKING:
    from visibility.sockets.hub import Hub

logger = logging.getLogger("visibility")
AT_ONCE = 200
LOG_CHUNK = 1000


class Proving:
    """`number` is the last entry of the access log that was heeded; None until the log was seen once."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.number: int | None = None
        self._asked: dict[Session, None] = {}
        self._due: dict[Session, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    def stop(self) -> list[asyncio.Task[None] | None]:
        """Forget everything; answers the task to cancel."""
        self.number = None
        self._asked.clear()
        self._due.clear()
        return [self._task]

    def begin(self, number: int) -> None:
        """The log was seen for the first time: entries up to here concern nobody who comes from now on, but who came before."""
        self.number = number
        self.question(self._hub.sessions.values())

    def news(self, number: int) -> None:
        """The log has this number: read it on the side, or take it as the beginning."""
        if self.number is None:
            self.begin(number)
        elif number > self.number:
            self._hub.spawn(self._read(number))

    async def _read(self, number: int) -> None:
        # If Redis is away: the number comes again with the next fetch and the next tick.
        with contextlib.suppress(RedisAway):
            await self.heed(number)

    async def heed(self, number: int) -> None:
        """Carry out what the access log says up to this number, before anything more is sent.

        Raises:
            RedisAway: the log could not be read; nothing may be sent.
        """
        if self.number is None:
            self.begin(number)
        async with self._reading:
            while self.number is not None and self.number < number:
                told = await sessions.atold(self.number, LOG_CHUNK)
                if told.missed:
                    self.question(self._hub.sessions.values())
                for at, entry in told.entries:
                    self._apply(entry)
                    self.number = at
                if len(told.entries) < LOG_CHUNK:
                    self.number = max(self.number, number)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        kind, user = entry.get("kind"), entry.get("user")
        everybody = list(self._hub.sessions.values())
        whom = everybody if user is None else list(self._hub.users.get(user, ()))
        if kind == "logout":
            for session in whom:
                if session.key and access.digest(session.key) == entry.get("session"):
                    self._hub.end(session, SESSION_ENDED)
        elif kind == "recheck":
            self.question(whom)
        elif kind in ("revoke", "drop"):
            self._end(whom, entry, str(entry.get("reason") or kind))
        else:
            logger.warning("the access log has an entry of the unknown kind %r; everybody is asked again", kind)
            self.question(everybody)

    def _end(self, whom: Iterable[Session], entry: Mapping[str, Any], reason: str) -> None:
        named, kind, sid, node = (entry.get(part) for part in ("resource", "type", "session", "node"))
        if node is not None and node != self._hub.node:
            return
        for session in whom:
            if sid is None or session.sid == sid:
                for topic in list(session.watches):
                    if named in (None, topic.name) and kind in (None, topic.type.name):
                        self._hub.revoke(session, topic, reason)

    def question(self, whom: Iterable[Session]) -> None:
        """Ask for the rights of these sessions now; until they are proven they get no data."""
        for session in list(whom):
            session.proven = False
            for topic in session.watches:
                if session.unput(topic.name):
                    session.watches[topic] = 0
            self._asked[session] = None
        self.go()

    def timer(self, now: float, every: float) -> None:
        """Ask for those who were last asked `every` seconds ago, a part of them a tick."""
        sessions_ = self._hub.sessions
        due = [session for session in sessions_.values() if now - session.checked >= every and not session.closing]
        for session in due[: max(AT_ONCE, len(sessions_) // 20)]:
            session.checked = now
            self._due[session] = None
        self.go()

    def go(self) -> None:
        """Start asking, if there is anybody to ask for."""
        if (self._asked or self._due) and self._task is None:
            self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        try:
            while self._asked or self._due:
                source = self._asked or self._due
                batch = list(source)[:AT_ONCE]
                for session in batch:
                    del source[session]
                await self._ask_for([session for session in batch if not session.closing])
        finally:
            self._task = None

    async def _ask_for(self, batch: list[Session]) -> None:
        askings = [Asking(s.user, s.key, s.account, [topic.name for topic in s.watches]) for s in batch]
        try:
            answers = await in_thread(access.judge)(askings)
        except Exception:
            # Nobody who was in question is let through by it; they are asked for again at the next tick.
            logger.exception("the rights of %d sessions could not be asked", len(batch))
            self._asked.update((session, None) for session in batch if not session.proven)
            await asyncio.sleep(1.0)
            return
        for session, asking, answer in zip(batch, askings, answers, strict=True):
            self._settle(session, asking, answer)

    def _settle(self, session: Session, asking: Asking, answer: Answer) -> None:
        if session.closing:
            return
        if answer.over:
            self._hub.end(session, SESSION_ENDED)
            return
        for name in asking.resources:
            topic = self._hub.topics.get(name)
            if name not in answer.allowed and topic is not None and topic in session.watches:
                self._hub.revoke(session, topic, "forbidden")
        # Put in question again while it was asked for: that answer is not this one.
        if not session.proven and session not in self._asked:
            session.proven = True
            self._hub.fanout.catch_up(session)
