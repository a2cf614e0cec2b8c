"""Processor time of a block: of this process, and of others with all of their sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from tests.benchmarks.stage import cpu_of


class Meter:
    """`with Meter(pids) as meter: …`, then `meter.own` and `meter.others`, seconds. Looking itself is outside the block."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.own, self.others = pids, 0.0, [0.0] * len(pids)

    def __enter__(self) -> Self:
        self._others = [cpu_of(pid) for pid in self.pids]
        self._own = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.own = time.process_time() - self._own
        self.others = [max(0.0, cpu_of(pid) - before) for pid, before in zip(self.pids, self._others, strict=True)]
