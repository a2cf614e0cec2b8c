"""The next batch of a lane, claimed while the one before is built: Redis works on it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from visibility import builds
from visibility.conf import Lane, settings
from visibility.exceptions import RedisAway
from visibility.soft import claims
from visibility.soft.claims import Claim

# Only while a batch takes less than this many seconds: what is claimed waits so long for its build, and nobody extends it.
QUICK = 0.1


class Ahead:
    """At most one claim that is on its way."""

    def __init__(self, lane: Lane, shard: int) -> None:
        self._lane, self._shard = lane, shard
        self._answer: Callable[[], Claim] | None = None
        self._late = 0.0

    def __bool__(self) -> bool:
        return self._answer is not None

    def begin(self, limit: int) -> None:
        """Claim up to so many. What was begun before has to be taken first.

        Raises:
            RedisAway: the soft state is out of reach.
        """
        self._late = time.monotonic() + settings.BUILD_LEASE / 2
        self._answer = claims.begin_claim(self._lane.name, self._shard, limit, settings.BUILD_LEASE)

    def take(self) -> Claim | None:
        """What was claimed. None: half of its lease has gone by, and it was given back.

        Raises:
            RedisAway: the soft state is out of reach; the claims end by their leases.
        """
        answer, self._answer = self._answer, None
        owned = answer() if answer is not None else None
        if owned is None or time.monotonic() < self._late:
            return owned
        builds.give_back(self._lane.name, owned, owned.rows)
        return None

    def drop(self) -> None:
        """Give back what was claimed; harmless where nothing was. Never raises for a Redis that is away."""
        with suppress(RedisAway):
            self._late = 0.0
            self.take()
