"""Heartbeats: the leases of all sessions that were heard are renewed in one call, and what comes back is made use of.

The answer tells of newer versions, of resources that nobody vouches for, of crossings, of news in the access log, and of a flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from visibility.conf import settings
from visibility.exceptions import RedisAway
from visibility.presence import announce, announce_users, heard_by_anybody
from visibility.push import in_thread
from visibility.sockets import frames
from visibility.sockets.state import ASKED, Session
from visibility.soft import clock, leases, sessions
from visibility.soft.leases import BEAT, CARRY, WHOLE, Found, Watch
from visibility.soft.sessions import Attending

if TYPE_CHECKING:
    from visibility.sockets.hub import Hub

logger = logging.getLogger("visibility")
# Pings that come within this time are answered together.
PAUSE = 0.05


class Beats:
    """Who is due, who waits for a pong, and the one task that serves them; without pings, the hub's tick does."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._due: dict[Session, None] = {}
        self._pings: dict[Session, dict[str, int]] = {}
        self._urgent = False
        self._known = False
        self._task: asyncio.Task[None] | None = None
        # Every lease is written under it, so that a renewal cannot overtake the release that follows it.
        self.leasing = asyncio.Lock()

    def start(self) -> None:
        """This process has written nothing yet: a missing mark is no flush."""
        self._known = False

    def stop(self) -> list[asyncio.Task[None] | None]:
        """Forget everything; answers the task to cancel."""
        self._due.clear()
        self._pings.clear()
        self._urgent = False
        return [self._task]

    def heard(self, session: Session) -> None:
        """A frame came: its leases are renewed at the next tick."""
        if session.joined:
            self._due[session] = None

    def owed(self, whom: Iterable[Session]) -> None:
        """Their leases could not be written; the next tick tries again."""
        self._due.update((session, None) for session in whom if session.joined and session.sid in self._hub.sessions)

    def forget(self, session: Session) -> None:
        """This session is over."""
        self._due.pop(session, None)
        self._pings.pop(session, None)

    def ping(self, session: Session, have: dict[str, int]) -> None:
        """Renew soon, then answer."""
        self._pings[session] = {**self._pings.get(session, {}), **have}
        self._soon()

    def everybody(self) -> None:
        """Renew every session at once, and so compare every version."""
        self.owed(self._hub.sessions.values())
        self._urgent = True
        self._soon()

    def lost(self, known: bool) -> bool:
        """Whether this process's mark, missing or not, tells of a flush; told once."""
        flushed = self._known and not known
        if flushed:
            self._known = False
        return flushed

    def _soon(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.renew()
            await asyncio.sleep(PAUSE)
        except RedisAway as error:
            logger.warning("leases could not be renewed: %s", error)
        except Exception:
            logger.exception("leases could not be renewed")
        finally:
            self._task = None
            if self._pings or self._urgent:
                self._soon()

    async def renew(self) -> None:
        """Renew who is due, in one call a shard for sessions and one for leases, and answer pings.

        Raises:
            RedisAway: they stay due. Pings are answered all the same, from what is known here.
        """
        due, self._due = self._due, {}
        pings, self._pings = self._pings, {}
        self._urgent = False
        renewed = Found()
        try:
            async with self.leasing:
                renewed = await self._write(due)
        except RedisAway:
            self.owed(due)
            raise
        finally:
            for session, have in pings.items():
                self._pong(session, have, renewed)
        self.learn(renewed)

    async def _write(self, due: Iterable[Session]) -> Found:
        """Renew these, each as far as it is its turn: most heartbeats are light, every few carry trust on or write it all."""
        now, ttl, heartbeat = asyncio.get_running_loop().time(), settings.TTL, settings.HEARTBEAT
        parts: dict[int, list[Session]] = {WHOLE: [], CARRY: [], BEAT: []}
        for session in due:
            parts[session.part(now, ttl, heartbeat)].append(session)
        if parts[WHOLE]:
            await self.attend([Attending(s.user, s.sid) for s in parts[WHOLE]])
        if light := parts[CARRY] + parts[BEAT]:
            await self.attend([Attending(s.user, s.sid) for s in light], light=True)
        elif not parts[WHOLE]:
            await self.attend([])
        renewed = Found()
        for part, some in parts.items():
            if some:
                renewed.join(await leases.arenew(self._watches(some), part=part))
        return renewed

    def _watches(self, due: Iterable[Session]) -> list[Watch]:
        return [Watch(t.name, s.member, s.kind(t)) for s in due for t, sent in s.watches.items() if sent > ASKED]

    async def attend(self, wanted: Sequence[Attending], limit: int = 0, *, light: bool = False) -> set[str]:
        """Write sessions, under `leasing`; who was renewed in vain is written whole. Answers the refused."""
        hub = self._hub
        done = await sessions.aattend(hub.node, hub.process, wanted, limit, light=light, flushed=self._flushed)
        self._known = True
        online, lapsed = done.online, done.lapsed
        if done.gone:
            again = [whole(s) for sid in done.gone if (s := hub.sessions.get(sid)) is not None]
            more = await sessions.aattend(hub.node, hub.process, again)
            online, lapsed = online + more.online, lapsed + more.lapsed
        if online and heard_by_anybody():
            hub.spawn(in_thread(announce_users)(online, (), lapsed))
        hub.proving.news(done.access)
        return set(done.refused)

    def _flushed(self) -> None:
        if self.lost(False):
            self._hub.flushed()

    def learn(self, renewed: Found) -> None:
        """What renewals tell: crossings to announce, newer versions to fetch, resources that nobody vouches for."""
        self.announce(renewed)
        now = clock.now_ms()
        for name, one in renewed.items():
            topic = self._hub.topics.get(name)
            if topic is not None:
                self._hub.fanout.hint(topic, one.version)
                old = one.soft_ms <= 0 or 0 < topic.soft_ms <= now
                if (one.created or not one.fresh or old) and topic.active:
                    self._hub.fanout.suspect(topic, urgent=one.created)

    def announce(self, renewed: Found) -> None:
        """Send what leases crossed, from a thread; it need not be waited for."""
        crossed = renewed.created()
        if crossed and heard_by_anybody():
            self._hub.spawn(in_thread(announce)(crossed))

    def _pong(self, session: Session, have: Mapping[str, int], renewed: Found) -> None:
        versions: dict[str, int] = {}
        for topic, sent in list(session.watches.items()):
            if sent == ASKED:
                continue
            one = renewed.get(topic.name)
            newest = versions[topic.name] = max(topic.version, one.version if one else 0)
            if topic.name in have:
                session.watches[topic] = sent = have[topic.name]
            if sent < newest and session.shows(topic):
                self._hub.fanout.hint(topic, newest, force=True)
        session.put(frames.pong(versions), limit=self._hub.limits["queue"])


def whole(session: Session) -> Attending:
    """A session as it is written whole."""
    names = [topic.name for topic, sent in session.watches.items() if sent > ASKED]
    return Attending(session.user, session.sid, "visible" if session.visible else "background", names)
