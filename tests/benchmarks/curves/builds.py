"""What a worker does for one resource, over how many it takes together: a drain of the lane in this process.

`counter`, one indexed row each: marks read, snapshots stored under a fence, claims ended, watchers told over the channel layer.
The build itself is as cheap as one is, so this is what the package adds to yours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tests.app.models import Counter
from tests.benchmarks.curves.core import Curve, Series
from tests.benchmarks.curves.meter import Meter
from tests.benchmarks.curves.resources import wait, watch
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage
from tests.support.declared import configured
from visibility import recompute
from visibility.conf import settings

BATCHES = [1, 3, 10, 30, 100, 300]
RESOURCES = 3_000


def drain(stage: Stage) -> Iterator[Curve]:
    """Processor time per resource, by who pays."""
    found: dict[str, list[tuple[float, float]]] = {}
    most = stage.size.n(RESOURCES, 40)
    Counter.objects.bulk_create([Counter(name=f"r{n:07d}", value=n) for n in range(most)])
    for batch in BATCHES:
        number = min(most, batch * 100)
        names = [f"counter:r{n:07d}" for n in range(number)]
        hot: dict[str, Any] = {**settings.LANES["hot"], "batch": batch, "idle": 0.0, "budget": 60.0}
        rows: list[tuple[float, ...]] = []
        with configured(LANES={**settings.LANES, "hot": hot}):
            for _ in range(stage.size.times(3)):
                watch(names)
                wait(names)
                with Meter(stage.pids) as meter:
                    begun = time.perf_counter()
                    built = recompute.drain("hot", 0)
                    took = time.perf_counter() - begun
                    # The drain has closed its connection; PostgreSQL counts that process once it has seen it end.
                    time.sleep(0.1)
                if built != number:
                    raise AssertionError(f"{built} of {number} built")
                redis, *database = meter.others
                rows.append(tuple(one * 1e6 / number for one in (meter.own, sum(database), redis, took)))
        middle = sorted(rows)[len(rows) // 2]
        for what, value in zip(("worker", "database", "Redis", "worker's clock"), middle, strict=True):
            found.setdefault(what, []).append((float(batch), value))
        say(f"  batches of {batch}: " + ", ".join(f"{what} {points[-1][1]:.0f} µs" for what, points in found.items()))
    yield Curve(
        name="builds", title="A worker's drain: cost of one resource over the batch",
        x="resources a batch", y="per resource, µs",
        how="processor time for one resource of a drained lane, PostgreSQL; the clock is what the worker took for it",
        series=[Series(name=what, points=points) for what, points in found.items() if any(y > 0 for _, y in points)],
    )  # fmt: skip
