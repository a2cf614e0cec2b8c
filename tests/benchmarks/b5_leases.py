"""B5: renewing 10,000 sessions with three watches each, as a hub does it for all that it heard since its last tick.

| part | ours | theirs |
|---|---|---|
| leases | `leases.renew` of 30,000 watches of as many resources, so that no two share a command | 30,000 pipelined ZADDs |
| heartbeat | the same and the presence of 10,000 sessions: `sessions.attend` | 40,000 pipelined ZADDs |
| database | that, per session | a committed UPDATE per session: of its rows in three rooms; of one row by primary key |

Heartbeats differ: of fourteen, seven only keep leases, six carry trust on as well, and one writes everything. Each turn measures
one of each kind; what counts is their mean, weighted so. Every resource has a snapshot that is trusted, as those that are watched
have. The raw ZADDs write the same members into as many sorted sets and nothing else: no lifetime, no index of what is visible, no
answer whether something came to life or which version is newest. Both databases wait for the disk at a commit, as they come.

The peers in the database stand in `present`; as many sessions are in as many rooms as on our side, and their connection is kept,
unlike by Django's default. `floor_ratio` says how many times faster than the peer the raw ZADDs are: more, no lease in Redis is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections

from tests.benchmarks.harness import Part, Turns, by_turns, timed
from tests.benchmarks.present import peers
from tests.benchmarks.stage import Stage
from visibility.sockets.state import WHOLE_EVERY
from visibility.soft import claims, leases, sessions
from visibility.soft.claims import Done
from visibility.soft.leases import BEAT, CARRY, WHOLE, Watch
from visibility.soft.sessions import Attending

SESSIONS = 10_000
BATCH = 1_000
NODE, PROCESS = "node", "node:1:a"
TYPES = ("feed", "unread", "badge")
# With the default HEARTBEAT and TTL every second heartbeat carries trust on, and of those every seventh writes everything.
WEIGHTS = {WHOLE: 1, CARRY: WHOLE_EVERY - 1, BEAT: WHOLE_EVERY}
NAMES = {WHOLE: "whole", CARRY: "carry", BEAT: "beat"}


def measure(stage: Stage) -> Iterator[Part]:
    """Seconds per heartbeat of all sessions, and per session."""
    n = stage.size.n(SESSIONS, 50)
    # The first beat of a session carries what it watches, as at a new socket; those after it only renew.
    whole = [Attending(str(user), f"sid{user:012d}", "visible", [f"{kind}:{user}" for kind in TYPES]) for user in range(n)]
    beats = [Attending(one.user, one.sid) for one in whole]
    watches = [Watch(name, f"{one.user}/{one.sid}") for one in whole for name in one.resources]
    sessions.attend(NODE, PROCESS, whole)
    leases.renew(watches)
    _trust([watch.resource for watch in watches])

    def renew(part: int) -> None:
        leases.renew(watches, part=part)

    def beat(part: int) -> None:
        sessions.attend(NODE, PROCESS, beats, light=part != WHOLE)
        leases.renew(watches, part=part)

    sets = [(f"raw:watchers:{watch.resource}", watch.member) for watch in watches]
    presence = [(f"raw:presence:{one.user}", one.sid) for one in beats]
    raw = f"pipelined ZADDs, {BATCH} a pipeline, redis-py"
    rounds = stage.size.times(9)
    for what, ours, rows in (
        ("leases of 30,000 watches", renew, sets),
        ("heartbeat: presence and leases", beat, presence + sets),
    ):
        turns, kinds = _weighed(stage, ours, partial(_zadds, stage.redis, rows), rounds)
        yield turns.cost(what, 1.5, raw, sessions=n, commands=len(rows), **kinds)

    yield from _database(stage, beat, n, median(turns.floor) / n)


def _database(stage: Stage, beat: Callable[[int], None], n: int, floor: float) -> Iterator[Part]:
    """Seconds per session of a heartbeat, against those who keep it in the database. `floor`: of the raw ZADDs."""
    touches = stage.size.n(150, 10)
    found = list(peers(n, TYPES, touches))
    connection.close()
    # Of the thread that the event loop calls the ORM in.
    connections.settings["default"]["CONN_MAX_AGE"] = None
    with asyncio.Runner() as runner:
        runner.run(sync_to_async(_durably)(stage.database))
        for peer in found:
            turns = by_turns(
                lambda: _mean(beat) / n,
                _per(lambda peer=peer: runner.run(peer.touch()), touches),  # type: ignore[misc]
                stage.size.times(7),
                meter=stage.cpu,
                units=(n * len(WEIGHTS), touches),
            )
            part = turns.gain(
                "heartbeat of a session, faster than rows", 100, f"{peer.against}, {stage.database} as it comes",
                sessions=n, touches=touches, floor_ratio=median(turns.floor) / floor,
            )  # fmt: skip
            part.counts = peer.counts
            yield part
        runner.run(sync_to_async(lambda: connection.close())())


def _mean(beat: Callable[[int], None]) -> float:
    """Seconds of a heartbeat of all sessions: the weighted mean of its kinds."""
    return sum(weight * timed(partial(beat, kind))() for kind, weight in WEIGHTS.items()) / sum(WEIGHTS.values())


def _weighed(stage: Stage, ours: Any, floor: Any, rounds: int) -> tuple[Turns, dict[str, float]]:
    """Turns of each kind of heartbeat against the floor: their weighted mean, and each kind's own ratio."""
    found = {kind: by_turns(timed(partial(ours, kind)), timed(floor), rounds, seconds=6, meter=stage.cpu) for kind in WEIGHTS}
    total = sum(WEIGHTS.values())
    # Turn by turn; where the time was over sooner for one kind, the surplus of the others is left out.
    together = zip(*(_rows(found[kind], WEIGHTS[kind] / total) for kind in WEIGHTS), strict=False)
    sides: list[Any] = [tuple(map(sum, zip(*several, strict=True))) for several in together]
    turns = Turns([a for a, *_ in sides], [b for _, b, *_ in sides], [(c, d) for *_, c, d in sides])
    return turns, {NAMES[kind]: median(found[kind].ratios) for kind in WEIGHTS}


def _rows(turns: Turns, weight: float) -> list[tuple[float, ...]]:
    return [
        tuple(weight * one for one in (ours, floor, *cpu))
        for ours, floor, cpu in zip(turns.ours, turns.floor, turns.cpu, strict=True)
    ]


def _trust(names: Sequence[str]) -> None:
    """Give each resource a snapshot that its leases vouch for."""
    soft = int(time.time() * 1000) + 3_600_000
    for start in range(0, len(names), BATCH):
        taken, _ = claims.claim_named("hot", names[start : start + BATCH], 60)
        for owned in taken:
            head = f"v1|{owned.token}|1|1|0|{soft}|1|0.0.0\n{{}}".encode()
            claims.store("hot", owned, [(row, 3_600_000, soft, head, False) for row in owned.rows])
            claims.done("hot", owned, [Done(row, "trust") for row in owned.rows])


def _zadds(redis: Any, rows: Sequence[tuple[str, str]]) -> None:
    ends = int(time.time() * 1000) + 60_000
    for start in range(0, len(rows), BATCH):
        pipe = redis.pipeline(transaction=False)
        for name, member in rows[start : start + BATCH]:
            pipe.zadd(name, {member: ends})
        pipe.execute()


def _per(work: Any, number: int) -> Any:
    side = timed(work)
    return lambda: side() / number


def _durably(database: str) -> None:
    """SQLite as it comes, on this thread's connection: tests run it without waiting for the disk. PostgreSQL was started so."""
    if database == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=DELETE")
            cursor.execute("PRAGMA synchronous=FULL")
