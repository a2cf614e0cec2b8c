"""Keeps claims alive while their resources are built: one thread a process, however many builds run in it.

It looks once a second and ends when nothing was held for a while, so that holding a claim for a moment starts no thread and
wakes none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from visibility.exceptions import RedisAway
from visibility.soft import claims
from visibility.soft.claims import Claim

LOOK = 1.0
IDLE = 30.0


class _Held:
    """Claims to renew every third of their lease. `lost`: those that turned out to be another's by now."""

    __slots__ = ("due", "lane", "lease", "lost", "names", "owned")

    def __init__(self, lane: str, owned: Claim, lease: float) -> None:
        self.lane, self.owned, self.lease = lane, owned, lease
        self.names = [row.resource for row in owned.rows]
        self.lost: set[str] = set()
        self.due = time.monotonic() + lease / 3

    def renew(self) -> None:
        # Without an answer it is unknown whether the claim lives; the store compares the owner in any case.
        with suppress(RedisAway):
            self.lost.update(claims.extend(self.lane, self.owned, self.lease, self.names))
        self.due = time.monotonic() + self.lease / 3


class Kept(Protocol):
    """What the thread looks after: `renew` is called once `due`, a time of `time.monotonic`, has come."""

    due: float

    def renew(self) -> None: ...


class _Keeper:
    """The thread and what it looks after."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held: dict[Kept, None] = {}
        self.thread: threading.Thread | None = None
        self.next = self.until = 0.0

    def add(self, one: Kept) -> None:
        with self.changed:
            self.held[one] = None
            if self.thread is None or not self.thread.is_alive():
                self.until = self.next = time.monotonic() + LOOK
                self.thread = threading.Thread(target=self._run, name="visibility-keepalive", daemon=True)
                self.thread.start()
            if one.due < self.next:
                self.changed.notify()

    def remove(self, one: Kept) -> None:
        with self.changed:
            self.held.pop(one, None)

    def _run(self) -> None:
        while True:
            with self.changed:
                now = time.monotonic()
                due = [one for one in self.held if one.due <= now]
                if self.held:
                    self.until = now + IDLE
                elif now >= self.until:
                    self.thread = None
                    return
                if not due:
                    self.next = min([now + LOOK, *(one.due for one in self.held)])
                    self.changed.wait(self.next - now)
            for one in due:
                one.renew()


_keeper = _Keeper()


def _after_fork() -> None:
    # The parent's thread does not exist here, and what it holds is the parent's.
    global _keeper
    _keeper = _Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def add(one: Kept) -> None:
    """Look after this until it is removed."""
    _keeper.add(one)


def remove(one: Kept) -> None:
    """No longer; harmless where it is not looked after."""
    _keeper.remove(one)


@contextmanager
def kept(lane: str, owned: Claim, lease: float) -> Iterator[set[str]]:
    """Renew these claims as long as the block runs; yields the set of those that were lost on the way.

    A renewal that is under way when the block ends does no harm: it renews only what this claim still owns.
    """
    one, keeper = _Held(lane, owned, lease), _keeper
    keeper.add(one)
    try:
        yield one.lost
    finally:
        keeper.remove(one)
