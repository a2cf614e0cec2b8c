"""Histograms over log-spaced buckets, sparse and mergeable: a mapping of bucket index to count.

Bucket `i` holds durations in `(FIRST * RATIO ** (i - 1), FIRST * RATIO ** i]`, from one millisecond to one day. A quantile is
answered inside its bucket by interpolation, so it is off by less than RATIO - 1 (5 %), whatever the distribution.
Pure: no clock, no Redis, no database.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FIRST = 0.001
LAST = 86_400.0
RATIO = 1.05
_LOG_RATIO = math.log(RATIO)
TOP = math.ceil(math.log(LAST / FIRST) / _LOG_RATIO)


def bucket_of(seconds: float) -> int:
    """The index of the bucket that holds a duration; out of range lands in the first or the last."""
    if seconds <= FIRST:
        return 0
    if seconds >= LAST:
        return TOP
    # The tiny slack keeps a value that lies on an edge in the bucket that the edge closes.
    return min(TOP, math.ceil(math.log(seconds / FIRST) / _LOG_RATIO - 1e-9))


def upper(index: int) -> float:
    """The upper edge of a bucket, in seconds."""
    return float(FIRST * RATIO**index)


def lower(index: int) -> float:
    """The lower edge of a bucket, in seconds; 0 for the first."""
    return 0.0 if index <= 0 else upper(index - 1)


@dataclass
class Histogram:
    """Counts by bucket, and the sum of all durations in seconds."""

    buckets: dict[int, int] = field(default_factory=dict)
    total: float = 0.0

    @classmethod
    def of(cls, samples: Iterable[float]) -> Histogram:
        made = cls()
        # Those of one batch are often alike.
        for seconds, n in Counter(samples).items():
            made.add(seconds, n)
        return made

    @classmethod
    def from_json(cls, data: Mapping[str, int] | None, total: float = 0.0) -> Histogram:
        """From the text keys that JSON and Redis give back; what is no bucket is left out."""
        return cls({int(key): int(n) for key, n in (data or {}).items() if key.isdigit()}, total)

    def to_json(self) -> dict[str, int]:
        return {str(index): n for index, n in sorted(self.buckets.items())}

    def add(self, seconds: float, n: int = 1) -> None:
        index = bucket_of(seconds)
        self.buckets[index] = self.buckets.get(index, 0) + n
        self.total += seconds * n

    def merge(self, other: Histogram) -> Histogram:
        """Add another's counts to this one, and return it."""
        for index, n in other.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + n
        self.total += other.total
        return self

    def at_least(self, other: Histogram) -> Histogram:
        """A new histogram: bucket by bucket the larger of both."""
        keys = self.buckets.keys() | other.buckets.keys()
        merged = {key: max(self.buckets.get(key, 0), other.buckets.get(key, 0)) for key in keys}
        return Histogram(merged, max(self.total, other.total))

    def minus(self, other: Histogram) -> Histogram:
        """A new histogram: what this holds on top of the other, never below zero."""
        more = {key: n - other.buckets.get(key, 0) for key, n in self.buckets.items() if n > other.buckets.get(key, 0)}
        return Histogram(more, max(0.0, self.total - other.total))

    def __bool__(self) -> bool:
        return bool(self.buckets)

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """The duration that the share `q` (0 to 1) does not exceed; None where nothing was counted."""
        wanted = q * self.count
        if not self.count:
            return None
        seen = 0
        for index, n in sorted(self.buckets.items()):
            if seen + n >= wanted:
                inside = min(1.0, max(0.0, (wanted - seen) / n))
                return lower(index) + (upper(index) - lower(index)) * inside
            seen += n
        return upper(max(self.buckets))

    def within(self, seconds: float) -> float:
        """How many durations were at most this long; the bucket that the limit cuts counts by its part."""
        found = 0.0
        for index, n in self.buckets.items():
            if upper(index) <= seconds * (1 + 1e-9):
                found += n
            elif lower(index) < seconds:
                found += n * (seconds - lower(index)) / (upper(index) - lower(index))
        return found

    def cumulative(self, edges: Iterable[float]) -> list[tuple[float, int]]:
        """(edge, how many are at most that long) for ascending edges; an edge counts whole buckets only."""
        out = []
        for edge in edges:
            limit = edge * (1 + 1e-9)
            out.append((edge, sum(n for index, n in self.buckets.items() if upper(index) <= limit)))
        return out
