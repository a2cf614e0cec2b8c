"""What one event costs, by who pays: the application's process, the database, Redis; over how many come in one transaction.

The event is a saved Post of an author with a thousand followers, nobody watching: the model's own row, an outbox row, the gate,
and one scope mark for all of them. The plain side saves the same rows with the package's receivers disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

from django.contrib.auth.models import User
from django.db import transaction

from tests.app.models import Post
from tests.benchmarks import people
from tests.benchmarks.b10_save import without_receivers
from tests.benchmarks.curves.core import Curve, Series
from tests.benchmarks.curves.meter import Meter
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage

TOGETHER = [1, 3, 10, 30, 100, 300, 1_000]
EVENTS = 300
WHO = ("application", "database", "Redis")


def costs(stage: Stage) -> Iterator[Curve]:
    """Processor time per event of each; both sides by turns."""
    (author,) = people.grow([stage.size.n(1_000, 100)])
    found: dict[str, list[tuple[float, float]]] = {}
    for together in sorted({stage.size.n(one) for one in TOGETHER}):
        number = max(together, stage.size.n(EVENTS, 20) // together * together)
        rows: dict[str, list[float]] = {}
        for n in range(stage.size.times(3) + 1):
            for side, around in (("", nullcontext), ("plain save: ", without_receivers)):
                with around():
                    spent = _spent(stage, lambda: _save(author, number, together))  # noqa: B023
                if n:
                    for who, seconds in spent.items():
                        rows.setdefault(side + who, []).append(seconds * 1e6 / number)
        for who, values in rows.items():
            found.setdefault(who, []).append((float(together), sorted(values)[len(values) // 2]))
        say(f"  {together} together: " + ", ".join(f"{who} {points[-1][1]:.0f} µs" for who, points in found.items()))
    yield Curve(
        name="events", title="One event that nobody watches: processor time, by who pays",
        x="events in one transaction", y="per event, µs of processor time",
        how="saved posts with their outbox rows, gate and marks, PostgreSQL; and the same saves without the package",
        series=[Series(name=who, points=points) for who, points in found.items() if who != "plain save: Redis"],
    )  # fmt: skip


def _save(author: User, number: int, together: int) -> None:
    for _ in range(number // together):
        with transaction.atomic():
            for _ in range(together):
                Post(author=author, text="x").save()


def _spent(stage: Stage, work: Callable[[], object]) -> dict[str, float]:
    """Processor seconds of this process, the database and Redis for this."""
    with Meter(stage.pids) as meter:
        work()
    redis, *database = meter.others
    return dict(zip(WHO, (meter.own, sum(database), redis), strict=True))
