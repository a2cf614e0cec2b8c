"""What a client asks for, in its order: watch, unwatch, and the tab's coming to the front or going out of sight.

A watch: limits → join the group → may it? → lease (rule 1: before any mark is read) → look → the access log once more → send.
The requests of many sessions that come together, as after a deploy, go through as one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from visibility import access
from visibility.access import Asking
from visibility.builds import look
from visibility.builds.look import Shown
from visibility.exceptions import RedisAway
from visibility.points import reach
from visibility.push import in_thread
from visibility.sockets import frames
from visibility.sockets.batches import Batches
from visibility.sockets.beats import whole
from visibility.sockets.frames import SESSION_ENDED, TRY_LATER, Ack, Frame, Ping, State, Unwatch, Watch, Watching
from visibility.sockets.state import ASKED, Session, Topic
from visibility.soft import leases, sessions

if TYPE_CHECKING:
    from visibility.sockets.hub import Hub

logger = logging.getLogger("visibility")
TRIES = 4


class Request(NamedTuple):
    """One watch frame, with the topics of it that may be watched as far as the limits go."""

    session: Session
    frame: Watch
    topics: list[Topic]


class Watcher:
    """Carries out what sessions of a hub ask for."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._watches: Batches[Request, None] = Batches(self._watch_many, limit=200)

    def ask(self, session: Session, frame: Frame) -> None:
        """Queue an operation. A session's operations are carried out one after the other; its heartbeats do not wait for them."""
        if session.ops is None:
            session.ops = deque()
        if len(session.ops) >= self._hub.limits["queue"]:
            self._put(session, frames.error("limit", "too many operations wait", getattr(frame, "id", None)))
            return
        session.ops.append(frame)
        if session.worker is None:
            session.worker = asyncio.create_task(self._work(session))

    async def _work(self, session: Session) -> None:
        try:
            while session.ops and not session.closing and session.sid in self._hub.sessions:
                frame = session.ops.popleft()
                try:
                    await self._one(session, frame)
                except RedisAway as error:
                    # Leases and versions are made good by the next heartbeat that finds Redis.
                    logger.warning("an operation ended early: %s", error)
                except Exception:
                    logger.exception("an operation of session %s failed", session.sid)
                    session.close(TRY_LATER)
        finally:
            session.worker = None
            session.ops = None

    async def _one(self, session: Session, frame: Frame) -> None:
        match frame:
            case Watch():
                await self._watch(session, frame)
            case Unwatch():
                await self._unwatch(session, frame)
            case State():
                await self._state(session, frame.visible)
            case Ping() | Ack():
                raise TypeError(f"{type(frame).__name__} is no operation")

    def _put(self, session: Session, text: str, slot: str = "") -> None:
        session.put(text, slot, self._hub.limits["queue"])

    def refuse(self, session: Session, bad: frames.BadFrame) -> None:
        """Answer with an error frame."""
        self._put(session, frames.error(bad.code, bad.detail, bad.id, bad.resource))

    # Watch

    async def _watch(self, session: Session, frame: Watch) -> None:
        for bad in frame.refused:
            self.refuse(session, bad)
        topics: list[Topic] = []
        limit = int(self._hub.limits["watches_per_socket"])
        for name in frame.resources:
            known = self._hub.topics.get(name)
            if (known is None or known not in session.watches) and len(session.watches) >= limit:
                self.refuse(session, frames.BadFrame("limit", f"at most {limit} watches on a socket", frame.id, name))
                continue
            topic = self._hub.topic(name)
            # Asked for from here on, so that a revocation finds it.
            session.watches.setdefault(topic, ASKED)
            topic.sessions[session] = None
            topics.append(topic)
        if topics or not frame.resources:
            await self._watches(Request(session, frame, topics))

    async def _watch_many(self, requests: Sequence[Request]) -> Sequence[None]:
        hub = self._hub
        await hub.groups.join({topic.name: None for request in requests for topic in request.topics})
        allowed = await self._allowed(requests)
        # What Redis or the database does not answer is left out; the next heartbeats look at it again.
        shown: Mapping[str, Shown] = {}
        counts: Mapping[str, int] = {}
        try:
            names = await self._lease(allowed)
            counts = await sessions.atally(names)
            found = await look.alook(name for name, front in names.items() if front)
            await hub.guard()
            shown = found
        except RedisAway as error:
            logger.warning("%d watches wait for Redis: %s", len(requests), error)
            hub.beats.owed(request.session for request in requests)
        except Exception:
            logger.exception("%d watches were answered without their data", len(requests))
        for request, topics in allowed:
            self._answer(request, topics, shown, counts)
        return [None] * len(requests)

    async def _lease(self, allowed: Sequence[tuple[Request, list[Topic]]]) -> dict[str, bool]:
        """Write the leases; answers the resources, and whether a tab makes them visible."""
        names: dict[str, bool] = {}
        wanted: list[leases.Watch] = []
        rows: list[tuple[str, str, str, list[str]]] = []
        async with self._hub.beats.leasing:
            for request, topics in allowed:
                session = request.session
                live = [topic for topic in topics if topic in session.watches]
                rows.append((session.user, session.sid, "+", [topic.name for topic in live]))
                for topic in live:
                    kind = session.kind(topic)
                    wanted.append(leases.Watch(topic.name, session.member, kind))
                    names[topic.name] = names.get(topic.name, False) or kind != "parked"
            renewed = await leases.arenew(wanted)
            reach("watch.leased")
            await sessions.ainterest(row for row in rows if row[3])
        self._hub.beats.announce(renewed)
        return names

    async def _allowed(self, requests: Sequence[Request]) -> list[tuple[Request, list[Topic]]]:
        """Ask `can_watch` for all, with patience for a database that is away; who cannot be judged then may come again later."""
        askings = [Asking(r.session.user, r.session.key, r.session.account, [t.name for t in r.topics]) for r in requests]
        for attempt in range(TRIES):
            try:
                answers = await in_thread(access.judge)(askings)
                break
            except Exception:
                logger.exception("%d watches could not be judged", len(askings))
                await asyncio.sleep(2.0**attempt * random.uniform(0.25, 0.5))  # noqa: S311
        else:
            for request in requests:
                self._hub.end(request.session, TRY_LATER)
            return []
        out: list[tuple[Request, list[Topic]]] = []
        for request, answer in zip(requests, answers, strict=True):
            session = request.session
            if answer.over:
                self._hub.end(session, SESSION_ENDED)
                continue
            may: list[Topic] = []
            for topic in request.topics:
                # What was revoked meanwhile is gone from `watches`.
                if topic in session.watches and topic.name in answer.allowed:
                    may.append(topic)
                else:
                    self._forbid(session, topic, request.frame.id)
            out.append((request, may))
        return out

    def _forbid(self, session: Session, topic: Topic, id_: frames.Id) -> None:
        if topic in session.watches:
            self._hub.revoke(session, topic, "forbidden")
        self.refuse(session, frames.BadFrame("forbidden", f"you may not watch {topic.name}", id_, topic.name))

    def _answer(self, request: Request, topics: list[Topic], shown: Mapping[str, Shown], counts: Mapping[str, int]) -> None:
        session, frame = request.session, request.frame
        live = [topic for topic in topics if topic in session.watches]
        for topic in topics:
            if topic not in session.watches:
                # Revoked while it was leased.
                self._hub.let_go(session, topic)
                self._forbid(session, topic, frame.id)
        if not live and frame.resources:
            return
        answer: dict[str, Watching] = {}
        for topic in live:
            one = shown.get(topic.name)
            answer[topic.name] = {
                "watchers": counts.get(topic.name, 0),
                "version": max(topic.version, one.version if one else 0),
            }
        self._put(session, frames.watched(frame.id, answer))
        for topic in live:
            session.watches[topic] = frame.since.get(topic.name, 0)
            topic.changed = Topic.OWN
            one = shown.get(topic.name)
            if one is not None:
                self._show(session, topic, one)
            if session.watches[topic] < topic.version:
                # A newer one was sent to others since it was looked at.
                self._hub.fanout.hint(topic, topic.version, force=True)

    def _show(self, session: Session, topic: Topic, one: Shown) -> None:
        stored = one.stored
        if stored is None or stored.version < topic.version:
            return
        if stored.version > session.watches[topic] and session.shows(topic):
            text = frames.update(topic.name, stored.version, stored.body, one.state, stored.event_ms, stored.built_ms, one.missed)
            session.watches[topic] = stored.version
            self._put(session, text, topic.name)
        if stored.version > topic.version:
            if any(ASKED < sent < stored.version for sent in (other.watches[topic] for other in topic.sessions)):
                self._hub.fanout.hint(topic, stored.version)
            else:
                topic.version = stored.version
        if stored.version == topic.version:
            topic.soft_ms = stored.soft_ms

    # Unwatch, and the tab's state

    async def _unwatch(self, session: Session, frame: Unwatch) -> None:
        hub = self._hub
        topics = [topic for topic in session.watches if topic.name in frame.resources]
        rows = [row for topic in topics for row in hub.drop(session, topic)]
        try:
            if rows:
                async with hub.beats.leasing:
                    await hub.release(rows)
                    await sessions.ainterest([(session.user, session.sid, "-", [topic.name for topic in topics])])
        finally:
            self._put(session, frames.unwatched(frame.id, frame.resources))

    async def _state(self, session: Session, visible: bool) -> None:
        if session.visible == visible:
            return
        hub = self._hub
        session.visible = visible
        session.hid = session.hid or not visible
        async with hub.beats.leasing:
            # What was left or revoked while this waited is not leased again.
            if session.sid not in hub.sessions:
                return
            topics = [topic for topic, sent in session.watches.items() if sent > ASKED]
            for topic in topics:
                topic.changed = Topic.OWN
            if session.joined:
                await hub.beats.attend([whole(session)])
            # Tabs that go out of sight and keep a rate only change their role: no crossing. Parked ones leave.
            wanted = [leases.Watch(t.name, session.member, session.kind(t), None, session.kind(t) != "parked") for t in topics]
            renewed = await leases.arenew(wanted)
            parked = [(t.name, session.member, "watch") for t in topics if session.kind(t) == "parked"]
            await hub.release(parked)
        if visible:
            hub.beats.learn(renewed)
            for topic in topics:
                newest = max(topic.version, renewed[topic.name].version)
                if topic in session.watches and session.watches[topic] < newest:
                    hub.fanout.hint(topic, newest, force=True)
