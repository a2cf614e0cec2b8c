"""B8: a storm of changes to one watched resource: few builds, the last version shown, one job in the queue at most.

Each change is the gate's hot step, `pending.pend`: it raises the generation and joins what is pending. A save each would measure
the database. A worker drains beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.app.models import Counter
from tests.benchmarks.harness import Part
from tests.benchmarks.stage import Stage
from tests.support import servers
from visibility import recompute
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.read import read
from visibility.soft import leases, looks, pending
from visibility.soft.pending import Item
from visibility.wake import wake

RATE, SECONDS = 10_000, 10.0


def measure(stage: Stage) -> Iterator[Part]:
    """Builds against the bound that coalescing promises; the deepest the queue was; whether the last change is shown."""
    seconds = max(1.0, SECONDS * stage.size.factor)
    data_type, lane = registry.get("counter"), settings.lane("hot")
    Counter.objects.bulk_create([Counter(name="storm", value=0)])
    leases.renew([leases.Watch("counter:storm", "1/tab", "watch", 600)])
    queue = recompute.queue(lane.queue)
    with servers.rq_worker(lane.queue):
        changes, deepest, versions = 0, 0, set()
        begun = time.monotonic()
        while (now := time.monotonic()) < begun + seconds:
            behind = int((now - begun) * RATE) - changes
            if behind <= 0:
                time.sleep(0.001)
                continue
            batch = [Item("counter:storm", int(time.time() * 1000), window=data_type.coalesce) for _ in range(min(behind, 200))]
            wake(lane.name, pending.pend(lane, batch).wake)
            changes += len(batch)
            deepest = max(deepest, queue.count)
            versions.add(looks.look("hot", ["counter:storm"])["counter:storm"].version)
        took = time.monotonic() - begun
        Counter.objects.filter(name="storm").update(value=changes)
        wake(lane.name, pending.pend(lane, [Item("counter:storm", int(time.time() * 1000), window=data_type.coalesce)]).wake)
        ends = time.monotonic() + 10
        while looks.look("hot", ["counter:storm"])["counter:storm"].pending and time.monotonic() < ends:
            time.sleep(0.005)
        shown = read("counter", "storm")
    builds = len(versions - {0})
    allowed = took / data_type.coalesce + 1
    figures = {"changes": changes, "per_second": changes / took, "builds": builds, "coalesce": data_type.coalesce}
    yield Part(what="builds in the storm", ratio=float(builds), limit=allowed, against="seconds / coalesce + 1", figures=figures)
    yield Part(what="jobs in the queue at most", ratio=float(deepest), limit=1.0, against="one")
    yield Part(
        what="the last change is shown", ratio=float(shown.data["value"] == changes), limit=1.0, least=True, against="the source"
    )
