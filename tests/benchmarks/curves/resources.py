"""What one call costs beside 1k to 1M resources that are visible, have a snapshot that is trusted, and a million more that wait.

What is told is processor time of the Redis process, its end of the network included. The population is
spread over `visible` (an index), `pending` (the lane) and the keys of each resource: lease, state, snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.benchmarks.curves.core import Curve, Series, rise
from tests.benchmarks.curves.meter import Meter
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage
from visibility.conf import settings
from visibility.read import read
from visibility.soft import claims, leases, pending
from visibility.soft.claims import Done
from visibility.soft.leases import Watch
from visibility.soft.pending import Item

POPULATIONS = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
BODY = b'{"rows":"' + b"x" * 280 + b'"}'
PAGE = 1_000
CALLS = 400
# What waits is not trusted; so reads are of these beside it, which do not wait.
READ = [f"counter:f{n}" for n in range(CALLS)]


def names(start: int, end: int) -> list[str]:
    return [f"counter:r{n:07d}" for n in range(start, end)]


def watch(resources: list[str]) -> None:
    """Leases of a session each."""
    leases.renew([Watch(one, f"{one[9:]}/tab") for one in resources])


def wait(resources: list[str]) -> None:
    """A change each: pending in the lane, due at once."""
    now, lane = int(time.time() * 1000), settings.lane("hot")
    pending.pend(lane, [Item(one, now, "", window=0.0) for one in resources])


def build(resources: list[str], body: bytes = BODY) -> None:
    """Claim by name, store a snapshot of some 300 bytes for two hours, and end the claim with trust."""
    soft = int(time.time() * 1000) + 7_200_000
    for start in range(0, len(resources), PAGE):
        taken, _ = claims.claim_named("hot", resources[start : start + PAGE], 600)
        for owned in taken:
            head = f"v1|{owned.token}|1|1|0|{soft}|1|0.0.0\n".encode() + body
            claims.store("hot", owned, [(row, 7_200_000, soft, head, False) for row in owned.rows])
            claims.done("hot", owned, [Done(row, "trust") for row in owned.rows])


def server_time(stage: Stage, work: Callable[[], object]) -> float:
    """Microseconds of processor time that Redis used while this ran."""
    with Meter(stage.pids[:1]) as meter:
        work()
    return meter.others[0] * 1e6


def _calls(stage: Stage, size: int) -> dict[str, Callable[[], float]]:
    """Microseconds of Redis for one of each, beside a population of this size."""
    number = min(CALLS, size // 2)
    step = max(1, size // number)
    some = [f"counter:r{n:07d}" for n in range(0, size, step)][:number]
    lane = settings.lane("hot")

    def each(work: Callable[[str], object]) -> float:
        return server_time(stage, lambda: [work(one) for one in some]) / len(some)

    def claim(count: int) -> float:
        """Claim what is due longest, and end the claims with the work still to do, so that as much waits as before."""

        def work() -> None:
            owned = claims.claim("hot", 0, count, 60)
            if len(owned.rows) != count:
                raise AssertionError(f"{len(owned.rows)} of {count} claimed")
            claims.done("hot", owned, [Done(row, "back") for row in owned.rows])

        times = max(1, number // count)
        return server_time(stage, lambda: [work() for _ in range(times)]) / (times * count)

    def fresh(one: str) -> None:
        if read("counter", one[8:]).state != "fresh":
            raise AssertionError(f"{one} is not fresh")

    now = int(time.time() * 1000)
    return {
        "pend one": lambda: each(lambda one: pending.pend(lane, [Item(one, now, "", window=0.0)])),
        "claim one and end it": lambda: claim(1),
        "claim and end, of 100 together": lambda: claim(min(100, number)),
        "read one": lambda: server_time(stage, lambda: [fresh(one) for one in READ]) / len(READ),
        "renew one lease": lambda: each(lambda one: leases.renew([Watch(one, f"{one[9:]}/tab")])),
    }


def population(stage: Stage) -> Iterator[Curve]:
    """Grow the population, and at each size measure by turns."""
    found: dict[str, list[tuple[float, float]]] = {}
    memory: list[tuple[float, float]] = []
    watch(READ)
    build(READ)
    wait(READ)
    stage.redis.execute_command("FLUSHALL", "SYNC")
    watch(READ)
    build(READ)
    # From here on a server that has worked before: scripts are compiled, its own tables made.
    before, known = stage.redis.info("memory")["used_memory"], 0
    for size in sorted({stage.size.n(size, 40) for size in POPULATIONS}):
        for start in range(known, size, 10_000):
            part = names(start, min(size, start + 10_000))
            watch(part)
            build(part)
            wait(part)
        known = size
        memory.append((float(size), float(stage.redis.info("memory")["used_memory"] - before)))
        calls, values = _calls(stage, size), {}
        for _round in range(stage.size.times(3)):
            for what, call in calls.items():
                values.setdefault(what, []).append(call())
        for what, some in values.items():
            found.setdefault(what, []).append((float(size), sorted(some)[len(some) // 2]))
        say(f"  {size} resources: " + ", ".join(f"{what} {points[-1][1]:.1f} µs" for what, points in found.items()))
    yield Curve(
        name="resources", title="One call beside many visible, waiting resources: Redis's processor time",
        x="resources in Redis, all visible and pending", y="µs of processor time",
        how="processor time of Redis for one call, median of three rounds of up to 400 calls",
        series=[Series(name=what, points=points) for what, points in found.items()],
    )  # fmt: skip
    yield Curve(
        name="resources-memory", title=f"Memory of Redis: {rise(memory):,.0f} bytes a resource",
        x="resources: watched, with a 300-byte snapshot, and pending", y="used_memory, bytes above empty",
        how="used_memory of the server above what it was when empty",
        series=[Series(name="used_memory", points=memory)],
    )  # fmt: skip
