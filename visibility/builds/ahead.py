"""The next batch of a lane, claimed while the one before is built: Redis works on it meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from visibility import builds
from visibility.builds import keepalive
from visibility.conf import Lane, settings
from visibility.exceptions import RedisAway
from visibility.soft import claims
from visibility.soft.claims import Claim
from visibility.soft.client import Begun

# Only while a batch takes less than this many seconds: what is claimed waits so long for its build.
QUICK = 0.1
# Where a batch takes longer after all, what was claimed ahead of its end is given back after so many.
PATIENCE = 1.0


class Ahead:
    """At most one claim that is on its way. If it lies too long, the thread that keeps claims alive gives it back."""

    def __init__(self, lane: Lane, shard: int) -> None:
        self._lane, self._shard = lane, shard
        self._lock = threading.Lock()
        self._begun: Begun | None = None
        self._late = 0.0
        self.due = 0.0

    def __bool__(self) -> bool:
        return self._begun is not None

    def begin(self, limit: int) -> None:
        """Claim up to so many. What was begun before has to be taken first.

        Raises:
            RedisAway: the soft state is out of reach.
        """
        now = time.monotonic()
        self._late, self.due = now + settings.BUILD_LEASE / 2, now + min(PATIENCE, settings.BUILD_LEASE / 3)
        self._begun = claims.begin_claim(self._lane.name, self._shard, limit, settings.BUILD_LEASE)
        keepalive.add(self)

    def take(self) -> Claim | None:
        """What was claimed. None: nothing was due, or it has lain too long and was given back.

        Raises:
            RedisAway: the soft state is out of reach; the claims end by their leases.
        """
        begun = self._end()
        owned = claims.begun(self._shard, begun) if begun is not None else None
        if owned is None or not owned.rows:
            return None
        if time.monotonic() < self._late:
            return owned
        builds.give_back(self._lane.name, owned, owned.rows)
        return None

    def drop(self) -> None:
        """Give back what was claimed; harmless where nothing was. Never raises for a Redis that is away."""
        begun = self._end()
        # What has not left yet has claimed nothing.
        if begun is not None and begun.left:
            with suppress(RedisAway):
                owned = claims.begun(self._shard, begun)
                builds.give_back(self._lane.name, owned, owned.rows)

    def renew(self) -> None:
        """Called by the thread that keeps claims alive, once it is `due`."""
        self.drop()

    def _end(self) -> Begun | None:
        with self._lock:
            begun, self._begun = self._begun, None
        keepalive.remove(self)
        return begun
