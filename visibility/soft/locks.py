"""Owner-token locks for the host's own jobs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from socket import gethostname

from visibility.conf import settings
from visibility.exceptions import LockLost
from visibility.soft.client import run
from visibility.soft.clock import check_seconds
from visibility.soft.keys import shard_of


class Lock:
    """A lock held under a token of its own. `fence` only grows: let what you write to refuse a lower one."""

    def __init__(self, name: str, seconds: float) -> None:
        check_seconds(f"lock {name!r}", seconds)
        self.name, self.seconds, self.fence = name, seconds, 0
        # People see the part before the slash.
        self._owner = f"{settings.NODE or gethostname()}:{os.getpid()}/{token_hex(16)}"

    def _call(self, what: str, seconds: float) -> int:
        # Upwards: 0 ms would end what it is to hold.
        return int(run("lock", shard_of(self.name), what, self.name, self._owner, math.ceil(seconds * 1000)))

    def acquire(self, wait: float = 0) -> bool:
        """Take the lock, trying for `wait` seconds; False if somebody else has it."""
        deadline = time.monotonic() + wait
        while True:
            self.fence = self._call("acquire", self.seconds)
            if self.fence:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(0.02, max(0.0, deadline - time.monotonic())))

    def extend(self, seconds: float | None = None) -> None:
        """Hold it for `seconds` from now (not in addition).

        Raises:
            LockLost: it had ended; stop without writing.
            ValueError: not above 0, or more than ten years.
        """
        span = self.seconds if seconds is None else seconds
        check_seconds(f"extend lock {self.name!r}", span)
        if not self._call("extend", span):
            raise LockLost(f"lock {self.name!r} ended before it was extended")

    def release(self) -> bool:
        """Give it back; False (and nothing else) if it had ended or belongs to another by now."""
        return self._call("release", 1) != 0


@contextmanager
def lock(name: str, seconds: float = 15, wait: float = 0) -> Iterator[Lock | None]:
    """Hold a lock for a block of code. Yields None where somebody else has it.

    Example::

        with visibility.lock("report:7", seconds=30) as held:
            if held:
                write_report(fence=held.fence)
    """
    held = Lock(name, seconds)
    if not held.acquire(wait):
        yield None
        return
    try:
        yield held
    finally:
        held.release()
