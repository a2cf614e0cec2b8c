"""Counts and durations, kept in Redis by minute; what Prometheus, the SLOs, the admin and the doctor read.

`count` and `observe` only add to a dictionary: no I/O in the caller, so they may stand on any path, the event loop included. A
daemon thread that lives while there is something to send writes the buffer once a second; `flush()` writes it now (at the end
of a drain, at exit). A minute is named by the Redis server's clock. Nothing here raises. While Redis is away the buffer is
kept, up to `MAX_FIELDS` distinct fields; what comes on top is dropped and counted as `metrics_dropped`.

Fields of `{PREFIX:0}:m:<minute>` and, without a minute, of `{PREFIX:0}:totals`:
`name|type|label` for counts, `name|type|~<bucket>` and `name|type|~s` (microseconds) for histograms.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from visibility.insight.histogram import LAST, Histogram, bucket_of

INTERVAL = 1.0
MINUTE_TTL = 3 * 3600
TOTALS_TTL = 35 * 86_400
MAX_FIELDS = 5_000
CHUNK = 400
HORIZON = MINUTE_TTL // 60 - 2
DROPPED = (0, "metrics_dropped||")
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}\Z")


@dataclass
class _Buffer:
    """What this process has counted and not yet sent: (local minute, field) → count."""

    counts: dict[tuple[int, str], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sending: threading.Lock = field(default_factory=threading.Lock)
    sender: threading.Thread | None = None

    def add(self, name: str, n: int) -> None:
        key = (int(time.time() // 60), name)
        with self.lock:
            if key not in self.counts and len(self.counts) >= MAX_FIELDS:
                key = DROPPED
            self.counts[key] = self.counts.get(key, 0) + n
            self.start()

    def add_all(self, amounts: dict[str, int]) -> None:
        minute = int(time.time() // 60)
        with self.lock:
            for name, n in amounts.items():
                key = (minute, name)
                if key not in self.counts and len(self.counts) >= MAX_FIELDS:
                    key = DROPPED
                self.counts[key] = self.counts.get(key, 0) + n
            self.start()

    def start(self) -> None:
        """See that somebody will send; the caller has the lock."""
        if self.sender is None:
            sender = threading.Thread(target=self._send, name="visibility-metrics", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down: atexit has flushed or will
                sender.start()
                self.sender = sender

    def take(self) -> dict[tuple[int, str], int]:
        with self.lock:
            taken, self.counts = self.counts, {}
        return taken

    def give_back(self, taken: dict[tuple[int, str], int]) -> None:
        with self.lock:
            for key, n in taken.items():
                kept = key if key in self.counts or len(self.counts) < MAX_FIELDS else DROPPED
                self.counts[kept] = self.counts.get(kept, 0) + n

    def _send(self) -> None:
        while True:
            time.sleep(INTERVAL)
            flush()
            with self.lock:
                if not self.counts:
                    self.sender = None
                    return


_buffer = _Buffer()
riders: list[Callable[[], None]] = []


def kick() -> None:
    """See that `flush` runs within a second, for what a rider has to send."""
    with _buffer.lock:
        _buffer.start()


def _after_fork() -> None:
    # The parent still holds what it counted and sends it itself; its thread and locks do not exist here.
    global _buffer
    _buffer = _Buffer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _word(text: str) -> str:
    """A label value as it may stand in a field: anything that is no short word becomes `other`, which bounds their number."""
    return text if not text or _WORD.match(text) else "other"


@lru_cache(maxsize=1024)
def _field(name: str, data_type: str, label: str) -> str:
    return f"{name}|{_word(data_type)}|{_word(label)}"


def count(name: str, n: int = 1, data_type: str = "", label: str = "") -> None:
    """Add `n` to a counter. `label` is a result or a lane: a word from a small set, never a key, user or id."""
    if n > 0:
        _buffer.add(_field(name, data_type, label), int(n))


def observe(name: str, seconds: float, data_type: str = "", n: int = 1) -> None:
    """Record a duration in seconds, `n` times. Below a millisecond, and negative ones, count as the smallest."""
    if n <= 0 or math.isnan(seconds):
        return
    kind = _word(data_type)
    _buffer.add(f"{name}|{kind}|~{bucket_of(seconds)}", n)
    _buffer.add(f"{name}|{kind}|~s", max(1, int(min(seconds, LAST) * 1_000_000)) * n)


def observe_all(name: str, seconds: Iterable[float], data_type: str = "") -> None:
    """`observe` for many durations at once."""
    head = f"{name}|{_word(data_type)}|~"
    found = Histogram.of(one for one in seconds if not math.isnan(one))
    if found:
        amounts = {f"{head}{bucket}": n for bucket, n in found.buckets.items()}
        _buffer.add_all({**amounts, f"{head}s": max(1, int(found.total * 1_000_000))})


def flush() -> bool:
    """Send the buffer now. False if Redis did not take it (it is kept for the next time); never raises."""
    buffer = _buffer
    for ride in riders:
        ride()
    with buffer.sending:
        taken = buffer.take()
        if not taken:
            return True
        now = int(time.time() // 60)
        by_age: dict[int, list[tuple[tuple[int, str], int]]] = {}
        for key, n in taken.items():
            age = now - key[0] if key[0] else 0
            by_age.setdefault(min(HORIZON, max(0, age)), []).append((key, n))
        for age, items in by_age.items():
            for start in range(0, len(items), CHUNK):
                chunk = items[start : start + CHUNK]
                try:
                    _write(age, [(key[1], n) for key, n in chunk])
                except Exception:  # whatever it is, a metric must not break its caller
                    buffer.give_back(taken)
                    return False
                for key, _n in chunk:
                    del taken[key]
        return True


def _write(age: int, fields: list[tuple[str, int]]) -> None:
    from visibility.soft.client import run

    args: list[str | int] = [age, MINUTE_TTL, TOTALS_TTL]
    for name, n in fields:
        args += (name, n)
    run("metrics", 0, *args)


atexit.register(flush)


@dataclass
class Figures:
    """Counters and histograms read back from one or many minutes, by (name, data type[, label])."""

    counters: dict[tuple[str, str, str], int] = field(default_factory=dict)
    histograms: dict[tuple[str, str], Histogram] = field(default_factory=dict)

    @classmethod
    def parse(cls, fields: dict[str, int]) -> Figures:
        """From the fields of one hash; fields that are none of ours are left out."""
        made = cls()
        for name, n in fields.items():
            parts = name.split("|")
            if len(parts) != 3:
                continue
            metric, kind, label = parts
            if not label.startswith("~"):
                made.counters[metric, kind, label] = n
                continue
            histogram = made.histograms.setdefault((metric, kind), Histogram())
            if label == "~s":
                histogram.total = n / 1_000_000
            elif label[1:].isdigit():
                histogram.buckets[int(label[1:])] = n
        return made

    def merge(self, other: Figures) -> Figures:
        for key, n in other.counters.items():
            self.counters[key] = self.counters.get(key, 0) + n
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, Histogram()).merge(histogram)
        return self

    def minus(self, other: Figures) -> Figures:
        """What this holds on top of another's counts; nothing goes below zero."""
        out = Figures()
        for series, n in self.counters.items():
            out.counters[series] = max(0, n - other.counters.get(series, 0))
        for name, histogram in self.histograms.items():
            out.histograms[name] = histogram.minus(other.histograms.get(name, Histogram()))
        return out

    def total(self, name: str, data_type: str | None = None, label: str | None = None) -> int:
        """The sum of a counter over everything not asked for."""
        return sum(
            n
            for (metric, kind, word), n in self.counters.items()
            if metric == name and data_type in (None, kind) and label in (None, word)
        )

    def histogram(self, name: str, data_type: str | None = None) -> Histogram:
        """The merged histogram of a metric, over all data types or one."""
        out = Histogram()
        for (metric, kind), histogram in self.histograms.items():
            if metric == name and data_type in (None, kind):
                out.merge(histogram)
        return out
