"""The gate's time for one saved Post: over the size of the audience, and over how many of it watch.

The time is what `event_processed` reports, as in B1: from the commit until everything is pended, marked, woken and noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from django.contrib.auth.models import User

from tests.benchmarks import people
from tests.benchmarks.b1_gate import Gate
from tests.benchmarks.curves.core import Curve, Point, Series, by_turns
from tests.benchmarks.curves.meter import Meter
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage
from visibility.read import read_many
from visibility.soft import leases

AUDIENCES = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
WATCHERS = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000]
FOLLOWERS = 20_000
NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}


class _Saves:
    """Saves with an empty lane before each: milliseconds of the gate, and of processor time of all who take part, by x."""

    def __init__(self, stage: Stage) -> None:
        self.gate, self.pids = Gate(stage), stage.pids
        self.used: dict[float, list[float]] = {}

    def one(self, author: User, x: float) -> float:
        self.gate.empty()
        with Meter(self.pids) as meter:
            took = self.gate.save(author)
        self.used.setdefault(x, []).append(meter.own * 1000 + sum(meter.others) * 1000)
        return took * 1000

    def series(self, stage: Stage, points: list[Point]) -> list[Series]:
        where = NAMES[stage.database]
        used = [(x, median(values)) for x, values in sorted(self.used.items())]
        return [Series(name=where, points=points), Series(name=f"{where}, processor time of the whole save", points=used)]


def audience(stage: Stage) -> Iterator[Curve]:
    """A hundred watch; the audience grows."""
    sizes = sorted({stage.size.n(size, 100) for size in AUDIENCES})
    authors = people.grow(sizes)
    people.look(sizes[0])
    saves = _Saves(stage)
    for author in authors:
        saves.one(author, 0)
    saves.used.clear()
    sides: dict[float, Callable[[], float]] = {
        size: partial(saves.one, author, float(size)) for size, author in zip(sizes, authors, strict=True)
    }
    points = by_turns(sides, stage.size.times(15))
    yield Curve(
        name="audience", title="One change, a hundred watchers: the gate over the audience",
        x="followers of the author", y="ms",
        how="median by turns of the time that `event_processed` reports for one saved post",
        series=saves.series(stage, points),
    )  # fmt: skip


def watchers(stage: Stage) -> Iterator[Curve]:
    """The audience stays; more and more of it watch."""
    counts = sorted({stage.size.n(count, 1) for count in WATCHERS})
    (author,) = people.grow([max(counts[-1], stage.size.n(FOLLOWERS, 100))])
    saves, points, known = _Saves(stage), [], 0
    for count in counts:
        keys = [str(people.FIRST + n) for n in range(known, count)]
        leases.renew([leases.Watch(f"feed:{key}", f"{key}/tab", "watch") for key in keys])
        for start in range(0, len(keys), 500):
            read_many("feed", keys[start : start + 500])
        known = count
        saves.one(author, count)
        saves.used.pop(count)
        times = stage.size.times(11 if count < 3_000 else 5)
        points.append((float(count), median(saves.one(author, float(count)) for _ in range(times))))
        if (pended := saves.gate.pended()) != count:
            raise AssertionError(f"{pended} feeds went hot, not {count}")
        say(f"  {count} watching: {points[-1][1]:.2f} ms")
    yield Curve(
        name="watchers", title="One change to 20,000 followers: the gate over those who watch",
        x="followers who watch", y="ms", how="median of the time that `event_processed` reports for one saved post",
        series=saves.series(stage, points),
    )  # fmt: skip
