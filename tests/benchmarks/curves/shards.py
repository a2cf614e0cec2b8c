"""Work per resource on a Redis Cluster of three masters, as keys are spread over 1 to 16 shards.

On one machine more masters are not faster: what counts is the share of the busiest one, for that is what a cluster of real
machines waits for. The measure is what the busiest master spends on one resource's way (watch, change, claim, store,
done), and beside it the whole of all masters, which must not grow, and what the caller uses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.benchmarks.curves.core import Curve, Point, Series
from tests.benchmarks.curves.meter import Meter
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage
from tests.support.declared import configured
from tests.support.needs import lacking
from tests.support.servers import RedisCluster, redis_cluster
from visibility.conf import settings
from visibility.soft import claims, client, leases, pending
from visibility.soft.claims import Done
from visibility.soft.keys import by_shard
from visibility.soft.leases import Watch
from visibility.soft.pending import Item

SHARDS = [1, 2, 4, 8, 16]
RESOURCES = 6_000
BODY = b'{"rows":"' + b"x" * 280 + b'"}'


def _way(names: list[str]) -> None:
    """Watch, change, claim as a drain does, store and end."""
    lane, now = settings.lane("hot"), int(time.time() * 1000)
    leases.renew([Watch(name, "1/tab") for name in names])
    pending.pend(lane, [Item(name, now, "", window=0.0) for name in names])
    for shard in by_shard(names):
        while (owned := claims.claim("hot", shard, 100, 60)).rows:
            soft = owned.now_ms + 600_000
            head = f"v1|{owned.token}|1|1|0|{soft}|1|0.0.0\n".encode() + BODY
            claims.store("hot", owned, [(row, 600_000, soft, head, False) for row in owned.rows])
            claims.done("hot", owned, [Done(row, "trust") for row in owned.rows])


def spread(stage: Stage) -> Iterator[Curve]:
    """Each number of shards by turns."""
    number = stage.size.n(RESOURCES, 60)
    kind = "valkey" if not lacking("valkey") else "redis7"
    with redis_cluster(kind) as cluster:
        busiest, whole, caller = _measure(stage, cluster, number)
    yield Curve(
        name="shards", title="A resource's whole way on a cluster of three masters, over its shards",
        x="SHARDS", y="per resource, µs of processor time",
        how=f"{number} resources watched, changed, claimed, stored, ended; processor time",
        series=[
            Series(name="busiest master", points=busiest), Series(name="all masters", points=whole),
            Series(name="caller", points=caller),
        ],
    )  # fmt: skip


def _measure(stage: Stage, cluster: RedisCluster, number: int) -> tuple[list[Point], list[Point], list[Point]]:
    rows: dict[int, list[tuple[float, float, float]]] = {}
    nodes = cluster.masters()
    pids = [node.process.pid for node in nodes if node.process]
    masters = [node.client() for node in nodes]
    try:
        for turn in range(stage.size.times(3) + 1):
            for shards in SHARDS if turn % 2 == 0 else SHARDS[::-1]:
                with configured(REDIS_URL=cluster.url, SHARDS=shards):
                    client.client()
                    for one in masters:
                        one.flushall()
                    with Meter(pids) as meter:
                        _way([f"counter:s{turn}x{n}" for n in range(number)])
                    used, spent = meter.own * 1e6, [one * 1e6 for one in meter.others]
                    # The first turn loads the scripts.
                    if turn:
                        rows.setdefault(shards, []).append((max(spent) / number, sum(spent) / number, used / number))
    finally:
        client.close()
        for one in masters:
            one.close()
    for shards, some in sorted(rows.items()):
        say(f"  {shards} shards: busiest {sorted(some)[len(some) // 2][0]:.1f} µs a resource")
    middle = [[(float(n), sorted(row[k] for row in some)[len(some) // 2]) for n, some in sorted(rows.items())] for k in range(3)]
    return middle[0], middle[1], middle[2]
