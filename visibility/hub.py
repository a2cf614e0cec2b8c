"""One hub per process and event loop: all of its sessions, their leases, and the ticks that keep both true.

The layer brings hints, Redis has the truth. Once a second the leases of all sessions that were heard since are renewed in one
call; what comes back tells of newer versions, of endings, and of a flush. No ORM is used in it.

| what | how often |
|---|---|
| renew leases of who was heard, answer pings | with a ping, at most every `PONG_PAUSE`; else every tick |
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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from visibility import frames, presence
from visibility.batches import Batches
from visibility.conf import settings
from visibility.exceptions import RedisAway
from visibility.fanout import Fanout
from visibility.frames import HEARTBEAT_LOST, SLOW_READER
from visibility.groups import Groups
from visibility.proving import Proving
from visibility.push import in_thread
from visibility.sockets import ASKED, Send, Session, Topic
from visibility.soft import leases, sessions
from visibility.soft.leases import Renewed, Watch
from visibility.soft.sessions import Attending
from visibility.watching import Watcher

logger = logging.getLogger("visibility")
TICK = 1.0
PONG_PAUSE = 0.05
Left = tuple[Session, list[tuple[str, str, str]]]


class Hub:
    """Made by `hub_here()`. `node` is the name people see, `process` the one that no other process has."""

    def __init__(self) -> None:
        self.node: str = settings.NODE or f"{socket.gethostname()}:{os.getpid()}"
        self.process = f"{self.node}:{os.getpid()}:{secrets.token_hex(4)}"
        self.sessions: dict[str, Session] = {}
        self.users: dict[str, dict[Session, None]] = {}
        self.topics: dict[str, Topic] = {}
        self.limits: Mapping[str, Any] = settings.LIMITS
        self.fanout = Fanout(self.process, self.topics, self.heed)
        self.proving = Proving(self)
        self.watcher = Watcher(self)
        self.groups = Groups(self.topics, self.take, self.all_due)
        # Every lease is written under it, so that a renewal cannot overtake the release that follows it.
        self.leasing = asyncio.Lock()
        self.joins: Batches[Session, bool] = Batches(self._join)
        self.leaves: Batches[Left, None] = Batches(self._leave)
        self._due: dict[Session, None] = {}
        self._pings: dict[Session, dict[str, int]] = {}
        self._renewal: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()
        self._known = self._urgent = False
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
        self._known = False
        await self.groups.start()
        try:
            await self._attend([])
        except RedisAway as error:
            logger.warning("sockets open without Redis: %s", error)
        self._ticker = asyncio.create_task(self._ticking())

    async def _stop(self) -> None:
        _hubs.pop(asyncio.get_running_loop(), None)
        tasks = [task for task in (self._ticker, self._renewal, *self.fanout.stop(), *self.proving.stop()) if task is not None]
        self._ticker = self._renewal = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._loose, return_exceptions=True)
        await self.groups.stop()
        self._due.clear()
        self._pings.clear()

    async def _join(self, new: Sequence[Session]) -> Sequence[bool]:
        limit = int(self.limits["sockets_per_user"])
        try:
            refused = await self._attend([self._whole(s) for s in new], limit)
        except RedisAway:
            # They are written as soon as Redis is back; a limit that cannot be known does not keep anybody out.
            refused = set()
        for session in new:
            session.joined = session.sid not in refused
            if session.joined:
                self._due[session] = None
        return [session.joined for session in new]

    async def leave(self, session: Session) -> None:
        """Everything about a session ends: harmless when repeated, and when it had not joined."""
        if self.sessions.get(session.sid) is session:
            await self.leaves(self._forget(session))
        async with self._running:
            if not self.sessions and self._ticker is not None:
                await self._stop()

    def _forget(self, session: Session) -> Left:
        del self.sessions[session.sid]
        others = self.users[session.user]
        del others[session]
        if not others:
            del self.users[session.user]
        self._due.pop(session, None)
        self._pings.pop(session, None)
        if session.worker is not None:
            session.worker.cancel()
        return session, [row for topic in list(session.watches) for row in self.drop(session, topic)]

    def drop(self, session: Session, topic: Topic) -> list[tuple[str, str, str]]:
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

    async def _leave(self, left: Sequence[Left]) -> Sequence[None]:
        rows = [row for _, rows in left for row in rows]
        gone = [(session.user, session.sid) for session, _ in left if session.joined]
        try:
            async with self.leasing:
                await self.release(rows)
                offline = await sessions.aleave(gone) if gone else []
            if offline and presence.heard_by_anybody():
                await in_thread(presence.announce_users)(offline=offline)
        except RedisAway:
            # Their leases end by themselves.
            pass
        return [None] * len(left)

    async def release(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Release leases, under `leasing`; other processes learn that there are fewer watchers."""
        if not rows:
            return
        left = await leases.arelease(rows)
        self._sweep_at = self._sweep_at or asyncio.get_running_loop().time() + settings.LINGER + 0.1
        self.spawn(self.fanout.tell_elsewhere([name for name, n in left.items() if n > 0 and name not in self.topics]))

    def spawn(self, work: Any) -> None:
        """Run a coroutine on the side."""
        task = asyncio.ensure_future(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    def topic(self, name: str) -> Topic:
        """The topic of this name, made if nobody here watches it yet."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name)
        return found

    # What others ask of it

    def end(self, session: Session, code: int) -> None:
        """Close a session from here: its leases go now, its socket when the client has answered."""
        if self.sessions.get(session.sid) is session:
            self.spawn(self.leaves(self._forget(session)))
        session.close(code)

    def revoke(self, session: Session, topic: Topic, reason: str) -> None:
        """End one watch and say why; nothing of this resource is sent after that."""
        allowed = session.watches.get(topic) != ASKED
        rows = self.drop(session, topic)
        session.put(frames.revoked(topic.name, reason), limit=self.limits["queue"])
        if allowed:
            self.spawn(self._revoked(session, topic.name, rows))

    async def _revoked(self, session: Session, name: str, rows: Sequence[tuple[str, str, str]]) -> None:
        try:
            async with self.leasing:
                # It may have been watched again by now.
                if not any(topic.name == name for topic in session.watches):
                    await self.release(rows)
                    await sessions.ainterest([(session.user, session.sid, "-", [name])])
        except RedisAway:
            pass

    def catch_up(self, session: Session) -> None:
        self.fanout.catch_up(session)

    def flushed(self) -> None:
        """Redis lost its memory: every lease is written again now, and every right is asked for again."""
        logger.warning("Redis was flushed; %d sessions are written again", len(self.sessions))
        self._known = False
        self.all_due()
        self.groups.again()
        self.proving.question(self.sessions.values())

    def all_due(self) -> None:
        """Renew every session at once, and so compare every version."""
        self._due.update(dict.fromkeys(session for session in self.sessions.values() if session.joined))
        self._urgent = True
        self._renew_soon()

    async def heed(self, known: bool, number: int) -> None:
        """What a fetch brought along: whether this process's mark stands, and the newest number of the access log."""
        if not known and self._known:
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
            case "watchers":
                if topic is not None and not topic.changed:
                    topic.changed = Topic.TOLD
            case "access" if isinstance(number, int):
                self.spawn(self._heed_hint(number))
            case kind:
                logger.info("a hint of the unknown kind %r was ignored", kind)

    async def _heed_hint(self, number: int) -> None:
        # If Redis is away: the number comes again with the next fetch and the next tick.
        with contextlib.suppress(RedisAway):
            await self.proving.heed(number)

    # Heartbeats

    def heard(self, session: Session, now: float) -> None:
        """A frame came: its leases are renewed at the next tick."""
        session.heard = now
        if session.joined:
            self._due[session] = None

    def ping(self, session: Session, have: dict[str, int]) -> None:
        """Renew now, then answer."""
        self._pings[session] = {**self._pings.get(session, {}), **have}
        self._renew_soon()

    def _renew_soon(self) -> None:
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renewing())

    async def _renewing(self) -> None:
        try:
            await self.renew()
            await asyncio.sleep(PONG_PAUSE)
        except RedisAway as error:
            logger.warning("leases could not be renewed: %s", error)
        except Exception:
            logger.exception("leases could not be renewed")
        finally:
            self._renewal = None
            if self._pings or self._urgent:
                self._renew_soon()

    async def renew(self) -> None:
        """Renew who is due, in one call per shard for sessions and one for leases, and answer pings.

        Raises:
            RedisAway: they stay due. Pings are answered all the same, from what is known here.
        """
        due, self._due = self._due, {}
        pings, self._pings = self._pings, {}
        self._urgent = False
        renewed: dict[str, Renewed] = {}
        try:
            async with self.leasing:
                await self._attend([Attending(s.user, s.sid) for s in due])
                renewed = await leases.arenew(self._watches(s for s in due if s.sid in self.sessions))
        except RedisAway:
            self._due.update((session, None) for session in due if session.sid in self.sessions)
            raise
        finally:
            for session, have in pings.items():
                self._pong(session, have, renewed)
        self.learn(renewed)

    def _watches(self, due: Iterable[Session]) -> list[Watch]:
        return [Watch(t.name, s.member, s.kind(t)) for s in due for t, sent in s.watches.items() if sent > ASKED]

    async def _attend(self, wanted: list[Attending], limit: int = 0) -> set[str]:
        """Write sessions; who was renewed in vain is written whole. Answers the refused."""
        done = await sessions.aattend(self.node, self.process, wanted, limit)
        if done.flushed and self._known:
            self.flushed()
        self._known = True
        online, lapsed = done.online, done.lapsed
        if done.gone:
            again = [self._whole(s) for sid in done.gone if (s := self.sessions.get(sid)) is not None]
            more = await sessions.aattend(self.node, self.process, again)
            online, lapsed = online + more.online, lapsed + more.lapsed
        if online and presence.heard_by_anybody():
            self.spawn(in_thread(presence.announce_users)(online, (), lapsed))
        if self.proving.number is None:
            self.proving.begin(done.access)
        elif done.access > self.proving.number:
            self.spawn(self._heed_hint(done.access))
        return set(done.refused)

    async def write(self, session: Session) -> None:
        """Write a session whole, under `leasing`: its tab's state changed."""
        if session.joined:
            await self._attend([self._whole(session)])

    def owed(self, whom: Iterable[Session]) -> None:
        """Their leases could not be written; the next tick tries again."""
        self._due.update((session, None) for session in whom if session.sid in self.sessions and session.joined)

    @staticmethod
    def _whole(session: Session) -> Attending:
        names = [topic.name for topic, sent in session.watches.items() if sent > ASKED]
        return Attending(session.user, session.sid, "visible" if session.visible else "background", names)

    def announce(self, renewed: Mapping[str, Renewed]) -> None:
        """Send what leases crossed, from a thread; it need not be waited for."""
        crossed = {name: one for name, one in renewed.items() if one.created}
        if crossed and presence.heard_by_anybody():
            self.spawn(in_thread(presence.announce)(crossed))

    def learn(self, renewed: Mapping[str, Renewed]) -> None:
        """What renewals tell: crossings to announce, newer versions to fetch, resources that nobody vouches for."""
        self.announce(renewed)
        for name, one in renewed.items():
            topic = self.topics.get(name)
            if topic is not None:
                self.fanout.hint(topic, one.version)
                if (one.created or not one.fresh or one.soft_ms <= 0) and topic.active:
                    self.fanout.suspect(topic, urgent=one.created)

    def _pong(self, session: Session, have: Mapping[str, int], renewed: Mapping[str, Renewed]) -> None:
        versions: dict[str, int] = {}
        for topic, sent in list(session.watches.items()):
            if sent == ASKED:
                continue
            one = renewed.get(topic.name)
            newest = versions[topic.name] = max(topic.version, one.version if one else 0)
            if topic.name in have:
                session.watches[topic] = sent = have[topic.name]
            if sent < newest and session.shows(topic):
                self.fanout.hint(topic, newest, force=True)
        session.put(frames.pong(versions), limit=self.limits["queue"])

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
            if now - session.heard >= ttl and session.worker is None:
                self.end(session, HEARTBEAT_LOST)
            elif session.blocked and now - session.blocked >= ttl / 2:
                self.end(session, SLOW_READER)
            elif session.closing:
                self.end(session, session.closing)
        self.proving.timer(now, settings.RECHECK)
        self.groups.renew(now)
        self.fanout.go()
        await self.renew()
        await self.fanout.count(settings.HEARTBEAT)
        if self._sweep_at and now >= self._sweep_at:
            self._sweep_at = 0.0
            if presence.heard_by_anybody():
                self.spawn(presence.asweep())


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub_here() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub()
    return found
