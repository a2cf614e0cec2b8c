"""One hub per process and event loop: its sessions, what they watch, and the tick that keeps both true. No ORM is used in it.

| what | how often |
|---|---|
| renew leases of who was heard, answer pings | at a ping, many together; else every tick |
| close who was not heard for `TTL`, or does not read for half of it | every tick |
| count watchers | every tick, where it may have changed; all within a heartbeat |
| join groups again | within a heartbeat |
| ask for rights again | within `RECHECK` |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from visibility.conf import settings
from visibility.exceptions import RedisAway
from visibility.presence import announce_users, asweep, heard_by_anybody
from visibility.push import in_thread
from visibility.sockets import frames
from visibility.sockets.batches import Batches, end_tasks
from visibility.sockets.beats import Beats, whole
from visibility.sockets.fanout import Fanout
from visibility.sockets.frames import HEARTBEAT_LOST, SLOW_READER
from visibility.sockets.groups import Groups
from visibility.sockets.proving import Proving
from visibility.sockets.state import ASKED, Send, Session, Topic
from visibility.sockets.watching import Watcher
from visibility.soft import leases, sessions

logger = logging.getLogger("visibility")
TICK = 1.0
Lease = tuple[str, str, str]


class Hub:
    """Made by `hub_here()`. `node` is the name people see, `process` the one that no other process has."""

    def __init__(self) -> None:
        self.node: str = settings.NODE or f"{socket.gethostname()}:{os.getpid()}"
        self.process = f"{self.node}:{os.getpid()}:{secrets.token_hex(4)}"
        self.sessions: dict[str, Session] = {}
        self.users: dict[str, dict[Session, None]] = {}
        self.topics: dict[str, Topic] = {}
        self.limits: Mapping[str, Any] = settings.LIMITS
        self.beats = Beats(self)
        self.watcher = Watcher(self)
        self.proving = Proving(self)
        self.fanout = Fanout(self.process, self.topics, self.heed)
        self.groups = Groups(self.topics, self.take, self.beats.everybody)
        self.joins: Batches[Session, bool] = Batches(self._join)
        self.leaves: Batches[tuple[Session, list[Lease]], None] = Batches(self._leave)
        self._ticker: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()
        self._sweep_at = 0.0
        self._loose: set[asyncio.Task[Any]] = set()

    # Coming and going

    async def open(self, user: str, key: str | None, account: Any, send: Send) -> Session:
        """A session for a new socket; `joins` then says whether its user may have one more."""
        now = asyncio.get_running_loop().time()
        session = Session(secrets.token_hex(8), user, key, account, send, now, self.limits["frames_burst"])
        self.sessions[session.sid] = session
        self.users.setdefault(user, {})[session] = None
        async with self._running:
            if self._ticker is None:
                await self._start()
        return session

    async def _start(self) -> None:
        _hubs[asyncio.get_running_loop()] = self
        self.limits = settings.LIMITS
        self.beats.start()
        await self.groups.start()
        try:
            await self.beats.attend([])
        except RedisAway as error:
            logger.warning("sockets open without Redis: %s", error)
        self._ticker = asyncio.create_task(self._ticking())

    async def _stop(self) -> None:
        _hubs.pop(asyncio.get_running_loop(), None)
        stopped = [self._ticker, *self.beats.stop(), *self.fanout.stop(), *self.proving.stop()]
        self._ticker = None
        await end_tasks(stopped)
        await asyncio.gather(*self._loose, return_exceptions=True)
        await self.groups.stop()

    async def _join(self, new: Sequence[Session]) -> Sequence[bool]:
        limit = int(self.limits["sockets_per_user"])
        try:
            async with self.beats.leasing:
                refused = await self.beats.attend([whole(session) for session in new], limit)
        except RedisAway:
            # They are written as soon as Redis is back; a limit that cannot be known does not keep anybody out.
            refused = set()
        for session in new:
            session.joined = session.sid not in refused
            self.beats.heard(session)
        return [session.joined for session in new]

    async def leave(self, session: Session) -> None:
        """Everything about a session ends: harmless when repeated, and when it had not joined."""
        if self.sessions.get(session.sid) is session:
            await self.leaves(self._forget(session))
        async with self._running:
            if not self.sessions and self._ticker is not None:
                await self._stop()

    def _forget(self, session: Session) -> tuple[Session, list[Lease]]:
        del self.sessions[session.sid]
        others = self.users[session.user]
        del others[session]
        if not others:
            del self.users[session.user]
        self.beats.forget(session)
        if session.worker is not None:
            session.worker.cancel()
        return session, [row for topic in list(session.watches) for row in self.drop(session, topic)]

    async def _leave(self, left: Sequence[tuple[Session, list[Lease]]]) -> Sequence[None]:
        gone = [(session.user, session.sid) for session, _ in left if session.joined]
        # If Redis is away: their leases end by themselves.
        with contextlib.suppress(RedisAway):
            async with self.beats.leasing:
                await self.release([row for _, rows in left for row in rows])
                offline = await sessions.aleave(gone) if gone else []
            if offline and heard_by_anybody():
                await in_thread(announce_users)(offline=offline)
        return [None] * len(left)

    # Topics and leases

    def topic(self, name: str) -> Topic:
        """The topic of this name, made if nobody here watches it yet."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name)
        return found

    def drop(self, session: Session, topic: Topic) -> list[Lease]:
        """Take a watch away here; answers the leases to release."""
        sent = session.watches.pop(topic, None)
        session.unput(topic.name)
        session.unput(f"#{topic.name}")
        topic.sessions.pop(session, None)
        topic.changed = Topic.OWN
        if not topic.sessions and self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self.groups.leave(topic.name)
        if sent is None or sent == ASKED:
            return []
        kinds = ("watch", "background") if session.hid else ("watch",)
        return [(topic.name, session.member, kind) for kind in kinds]

    async def release(self, rows: Sequence[Lease]) -> None:
        """Release leases, under `leasing`; other processes learn that there are fewer watchers."""
        if not rows:
            return
        left = await leases.arelease(rows)
        self._sweep_at = self._sweep_at or asyncio.get_running_loop().time() + settings.LINGER + 0.1
        if elsewhere := [name for name, n in left.items() if n and name not in self.topics]:
            self.spawn(self.fanout.tell_elsewhere(elsewhere))

    def end(self, session: Session, code: int) -> None:
        """Close a session from here: its leases go now, its socket when the client has answered."""
        if self.sessions.get(session.sid) is session:
            self.spawn(self.leaves(self._forget(session)))
        session.close(code)

    def revoke(self, session: Session, topic: Topic, reason: str) -> None:
        """End one watch and say why; nothing of it is sent after that. One not allowed yet is answered where it was asked."""
        if session.watches.get(topic) == ASKED:
            self.drop(session, topic)
        elif self.drop(session, topic):
            session.put(frames.revoked(topic.name, reason), limit=self.limits["queue"])
            self.let_go(session, topic)

    def let_go(self, session: Session, topic: Topic) -> None:
        """Release, on the side, the lease on a topic that was taken away from a session."""
        self.spawn(self._let_go(session, topic.name))

    async def _let_go(self, session: Session, name: str) -> None:
        with contextlib.suppress(RedisAway):
            async with self.beats.leasing:
                # It may be watched again by now.
                if not any(topic.name == name for topic in session.watches):
                    await self.release([(name, session.member, kind) for kind in ("watch", "background")])
                    await sessions.ainterest([(session.user, session.sid, "-", [name])])

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the side."""
        task = asyncio.create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    # News

    def flushed(self) -> None:
        """Redis lost its memory: every lease is written again now, and every right is asked for again."""
        logger.warning("Redis was flushed; %d sessions are written again", len(self.sessions))
        self.beats.everybody()
        self.groups.again()
        self.proving.question(self.sessions.values())

    async def heed(self, known: bool, number: int) -> None:
        """What a fetch brought along: whether this process's mark stands, and the newest number of the access log.

        Raises:
            RedisAway: the log could not be read; nothing may be sent.
        """
        if self.beats.lost(known):
            self.flushed()
        await self.proving.heed(number)

    async def guard(self) -> None:
        """Look at the access log before something is sent that was not fetched with it."""
        _, known, number = await sessions.afetch(self.process, [])
        await self.heed(known, number)

    def take(self, hint: Mapping[str, Any]) -> None:
        """A hint from the layer; one that is not understood is ignored."""
        topic = self.topics.get(str(hint.get("resource", "")))
        number = hint.get("version", hint.get("number"))
        match hint.get("kind"):
            case "update" if isinstance(number, int):
                if topic is not None:
                    self.fanout.hint(topic, number)
            case "updates" if isinstance(versions := hint.get("versions"), dict):
                for name, version in versions.items():
                    if name in self.topics and isinstance(version, int):
                        self.fanout.hint(self.topics[name], version)
            case "watchers":
                if topic is not None:
                    topic.changed = max(topic.changed, Topic.TOLD)
            case "access" if isinstance(number, int):
                self.proving.news(number)
            case kind:
                logger.info("a hint of the unknown kind %r was ignored", kind)

    # Ticks

    async def _ticking(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            try:
                await self.tick(begin)
            except RedisAway as error:
                logger.warning("a tick did not end: %s", error)
            except Exception:
                logger.exception("a tick failed")
            await asyncio.sleep(max(0.05, TICK - (loop.time() - begin)))

    async def tick(self, now: float) -> None:
        """Everything that time brings; see the module's table."""
        self.limits = settings.LIMITS
        self.fanout.queue_limit = int(self.limits["queue"])
        ttl = settings.TTL
        for session in list(self.sessions.values()):
            if session.closing:
                self.end(session, session.closing)
            elif session.blocked and now - session.blocked >= ttl / 2:
                self.end(session, SLOW_READER)
            elif now - session.heard >= ttl and session.worker is None:
                self.end(session, HEARTBEAT_LOST)
        self.proving.timer(now, settings.RECHECK)
        self.groups.renew(now)
        self.fanout.go()
        await self.beats.renew()
        await self.fanout.count(settings.HEARTBEAT)
        if self._sweep_at and now >= self._sweep_at:
            self._sweep_at = 0.0
            if heard_by_anybody():
                self.spawn(asweep())


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub_here() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub()
    return found
