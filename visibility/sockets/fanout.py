"""From hints to frames: a snapshot is fetched once per process and version, and the same text goes to all of its sessions.

With the snapshots comes the newest number of the access log. What it says is heeded before anything is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from visibility import push
from visibility.builds import look
from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.sockets import frames
from visibility.sockets.state import ASKED, Session, Topic
from visibility.soft import clock, sessions, snapshots
from visibility.soft.snapshots import Stored

logger = logging.getLogger("visibility")
AT_ONCE = 200
# A resource that stays untrusted (nothing builds it) is looked at again after so many seconds.
LOOK_AGAIN = 5.0
# A count is sent to at most this many sessions a second, so that a crowd's coming and going costs little.
COUNTS_PER_SECOND = 500


class Fanout:
    """`topics` is the hub's own table; `heed(known, number)` is called between fetching and sending."""

    def __init__(self, process: str, topics: Mapping[str, Topic], heed: Callable[[bool, int], Awaitable[None]]) -> None:
        self._process, self._topics, self._heed = process, topics, heed
        self._hints: dict[Topic, int] = {}
        self._suspects: dict[Topic, None] = {}
        self._pump: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None
        self.queue_limit = 256

    def stop(self) -> list[asyncio.Task[None] | None]:
        """Forget everything; answers the tasks to cancel."""
        self._hints.clear()
        self._suspects.clear()
        return [self._pump, self._check]

    def hint(self, topic: Topic, version: int, force: bool = False) -> None:
        """There may be this version. `force`: some session lacks even what others have."""
        if version > topic.version or force:
            self._hints[topic] = max(version, self._hints.get(topic, 0))
            self.go()

    def suspect(self, topic: Topic, urgent: bool = False) -> None:
        """Nothing vouches for this resource: read its marks, and have it built if they moved."""
        now = asyncio.get_running_loop().time()
        if urgent or now - topic.looked_at >= LOOK_AGAIN:
            topic.looked_at = now
            self._suspects[topic] = None
            self.go()

    def go(self) -> None:
        """Start what has work and does not run."""
        if self._hints and self._pump is None:
            self._pump = asyncio.create_task(self._pumping())
        if self._suspects and self._check is None:
            self._check = asyncio.create_task(self._checking())

    async def _pumping(self) -> None:
        try:
            while self._hints:
                batch = {topic: self._hints[topic] for topic in list(self._hints)[:AT_ONCE]}
                found, known, number = await sessions.afetch(self._process, [topic.name for topic in batch])
                await self._heed(known, number)
                for topic, version in batch.items():
                    if self._hints.get(topic) == version:
                        del self._hints[topic]
                    self._deliver(topic, found[topic.name])
        except RedisAway as error:
            logger.warning("updates wait: %s", error)
        except Exception:
            logger.exception("the fan-out failed; its hints are tried again at the next tick")
        finally:
            self._pump = None

    async def _checking(self) -> None:
        try:
            while self._suspects:
                batch = {topic.name: topic for topic in list(self._suspects)[:AT_ONCE]}
                for topic in batch.values():
                    del self._suspects[topic]
                shown = await look.alook(name for name, topic in batch.items() if topic.sessions)
                for name, one in shown.items():
                    self.hint(batch[name], one.version)
        except RedisAway as error:
            logger.warning("resources could not be checked: %s", error)
        except Exception:
            # The next heartbeat finds them untrusted again.
            logger.exception("resources could not be checked")
        finally:
            self._check = None

    def _deliver(self, topic: Topic, raw: bytes | None) -> None:
        try:
            stored = snapshots.unpack(raw, topic.type.schema)
            if stored is not None:
                self.deliver(topic, stored)
        except ValueError:
            logger.exception("the snapshot of %s is unreadable; its next version will come", topic.name)

    def deliver(self, topic: Topic, stored: Stored) -> int:
        """Send a snapshot to the sessions that have only older ones; answers to how many."""
        version, text, n = stored.version, "", 0
        for session in topic.sessions:
            if ASKED < session.watches[topic] < version and session.shows(topic):
                text = text or frames.update(topic.name, version, stored.body, "fresh", stored.event_ms, stored.built_ms)
                session.watches[topic] = version
                session.put(text, topic.name, self.queue_limit)
                n += 1
        if version > topic.version:
            topic.version, topic.event_ms, topic.soft_ms = version, stored.event_ms, stored.soft_ms
            if n and stored.event_ms:
                metrics.observe("freshness_sent", max(0.0, (clock.now_ms() - stored.event_ms) / 1000), topic.type.name, n)
        metrics.count("pushes", n, topic.type.name)
        return n

    def catch_up(self, session: Session) -> None:
        """Send what this session missed while nothing was sent to it."""
        for topic, sent in session.watches.items():
            if ASKED < sent < topic.version:
                self.hint(topic, topic.version, force=True)

    async def count(self, every: float) -> None:
        """Tell watchers how many they are, where that changed. Leases that ended by themselves are noticed in `every` seconds."""
        now = asyncio.get_running_loop().time()
        due = [topic for topic in self._topics.values() if self._count_due(topic, now, every)][:AT_ONCE]
        if not due:
            return
        counts = await sessions.atally([topic.name for topic in due])
        elsewhere: list[str] = []
        for topic in due:
            own, topic.changed, topic.told_at = topic.changed == Topic.OWN, 0, now
            count = counts[topic.name]
            if own and count > sum(session.leases(topic) for session in topic.sessions):
                elsewhere.append(topic.name)
            if count != topic.told:
                topic.told = count
                text = frames.watchers(topic.name, count)
                for session, sent in [(session, session.watches[topic]) for session in topic.sessions]:
                    if sent > ASKED:
                        session.put(text, f"#{topic.name}", self.queue_limit)
        await self.tell_elsewhere(elsewhere)

    @staticmethod
    def _count_due(topic: Topic, now: float, every: float) -> bool:
        since = now - topic.told_at
        return since >= every or (topic.changed > 0 and since >= len(topic.sessions) / COUNTS_PER_SECOND)

    async def tell_elsewhere(self, names: Sequence[str]) -> None:
        """Other processes have watchers of these too, and should count again."""
        if not names:
            return
        await push.asend([(name, {"type": push.TYPE, "kind": "watchers", "resource": name}) for name in names])
