"""Renewing all sessions of a deployment, as hubs do it for what they heard: per session, over how many there are.

Heartbeats of three kinds, weighted as they come with the default HEARTBEAT and TTL (see B5); three watches a session, each of a
resource of its own, whose snapshot is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.b5_leases import NODE, PROCESS, TYPES, WEIGHTS
from tests.benchmarks.curves.core import Curve, Series
from tests.benchmarks.curves.meter import Meter
from tests.benchmarks.curves.resources import build
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage
from visibility.soft import leases, sessions
from visibility.soft.leases import WHOLE, Watch
from visibility.soft.sessions import Attending

POPULATIONS = [10_000, 20_000, 50_000, 100_000]
# As many as a process with ten thousand sockets hears in a tick of a second, at a heartbeat of 20 s.
TICK = 500


def renewal(stage: Stage) -> Iterator[Curve]:
    """Microseconds of processor time per session: of Redis, and of who renews."""
    server: list[tuple[float, float]] = []
    caller: list[tuple[float, float]] = []
    everybody: list[tuple[list[Attending], list[Watch]]] = []
    known = 0
    for size in sorted({stage.size.n(size, 100) for size in POPULATIONS}):
        for start in range(known, size, TICK):
            users = [str(user) for user in range(start, min(size, start + TICK))]
            whole = [Attending(user, f"sid{user:0>12}", "visible", [f"{kind}:{user}" for kind in TYPES]) for user in users]
            watches = [Watch(name, f"{one.user}/{one.sid}") for one in whole for name in one.resources]
            sessions.attend(NODE, PROCESS, whole)
            leases.renew(watches)
            everybody.append(([Attending(one.user, one.sid) for one in whole], watches))
        for _beats, watches in everybody[known // TICK :]:
            build([watch.resource for watch in watches], b"{}")
        known = size
        spent, used = _beat(stage, everybody)
        server.append((float(size), spent / size))
        caller.append((float(size), used / size))
        say(f"  {size} sessions: {server[-1][1]:.1f} µs in Redis, {caller[-1][1]:.1f} µs in the caller")
    yield Curve(
        name="sessions", title="One heartbeat of a session with three watches: cost over all sessions",
        x="sessions in the lease store", y="per heartbeat, µs of processor time",
        how="all sessions renewed once by each kind of heartbeat, 500 a call, the kinds weighted as they come",
        series=[Series(name="Redis", points=server), Series(name="who renews", points=caller)],
    )  # fmt: skip


def _beat(stage: Stage, everybody: list[tuple[list[Attending], list[Watch]]]) -> tuple[float, float]:
    """Microseconds of processor time for one heartbeat of all: of Redis, and of this process."""
    redis = own = 0.0
    for part, weight in WEIGHTS.items():
        share = weight / sum(WEIGHTS.values())
        with Meter(stage.pids[:1]) as meter:
            for beats, watches in everybody:
                sessions.attend(NODE, PROCESS, beats, light=part != WHOLE)
                leases.renew(watches, part=part)
        redis += share * meter.others[0] * 1e6
        own += share * meter.own * 1e6
    return redis, own
