"""Measured costs carried on, on paper: what a deployment of some size needs. `python -m tests.benchmarks.curves.scale`.

Reads `docs/images/curves.json`, which a run of the curves wrote, rewrites the tables of `docs/scaling.md` between their markers,
and draws the pictures anew; `--check` only says whether the tables are what the figures say. The arithmetic is `need`; nothing
here measures.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.curves.core import Curve, Figures, Result, result_of, rise, told
from tests.benchmarks.curves.svg import draw
from tests.benchmarks.harness import number

ROOT = Path(__file__).resolve().parents[3]
FILE, PAGE = ROOT / "docs" / "images" / "curves.json", ROOT / "docs" / "scaling.md"
HEARTBEAT = 20.0
# A core that is busy half of the time answers soon.
BUSY = 0.5


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Microseconds of processor time, and bytes. Each names the curve and the point that it is read from in `costs`."""

    sockets: float
    socket_bytes: float
    beat_process: float
    beat_redis: float
    push: float
    event_application: float
    event_database: float
    event_redis: float
    together_application: float
    together_database: float
    together_redis: float
    event_bytes: float
    build_worker: float
    build_database: float
    build_redis: float
    resource_bytes: float
    session_bytes: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a deployment carries. `hot`: changed resources a second that somebody watches; `reach`: sockets that watch one."""

    name: str
    sessions: float
    events: float
    hot: float
    reach: float
    resources: float


# Three watches a session, one of them shared; one event in a hundred changes something that is watched, by ten sockets.
LOADS = [
    Load(name=f"{name} sessions, {rate} events/s", sessions=n, events=n / 10, hot=n / 1_000, reach=10, resources=n * 2)
    for name, rate, n in (("10k", "1k", 1e4), ("100k", "10k", 1e5), ("1M", "100k", 1e6), ("10M", "1M", 1e7))
]


def need(load: Load, costs: Costs) -> dict[str, float]:
    """Cores are of the machine that was measured on, each used by half."""

    def cores(microseconds: float) -> float:
        return microseconds / 1e6 / BUSY

    beats = load.sessions / HEARTBEAT
    sockets = beats * costs.beat_process + load.hot * load.reach * costs.push
    return {
        "ASGI processes": math.ceil(max(load.sessions / costs.sockets, cores(sockets))),
        "memory of ASGI, GiB": load.sessions * costs.socket_bytes / 2**30,
        "workers": math.ceil(cores(load.hot * costs.build_worker)),
        "cores of Redis": cores(beats * costs.beat_redis + load.events * costs.event_redis + load.hot * costs.build_redis),
        "the same, events 100 together": cores(
            beats * costs.beat_redis + load.events * costs.together_redis + load.hot * costs.build_redis
        ),
        "memory of Redis, GiB": (load.sessions * costs.session_bytes + load.resources * costs.resource_bytes) / 2**30,
        "cores that write events": cores(load.events * costs.event_application),
        "the same, 100 together": cores(load.events * costs.together_application),
        "cores of the database": cores(load.events * costs.event_database + load.hot * costs.build_database),
        "cores of the database, events 100 together": cores(
            load.events * costs.together_database + load.hot * costs.build_database
        ),
        "event rows a day, GiB": load.events * 86_400 * costs.event_bytes / 2**30,
    }


def costs(results: Mapping[str, Result]) -> Costs:
    """The measured costs, each from a named point.

    Raises:
        LookupError: a curve was not measured.
    """

    def points(curve: str, series: str) -> list[tuple[float, float]]:
        found = results[curve]
        if not isinstance(found, Curve):
            raise LookupError(curve)
        return next(one.points for one in found.series if one.name == series)

    def at(curve: str, series: str, x: float | None = None) -> float:
        rows = points(curve, series)
        return dict(rows)[x] if x is not None else rows[-1][1]

    def row(name: str) -> float:
        found = results["memory"]
        if not isinstance(found, Figures):
            raise LookupError("memory")
        return next(value for what, value, *_ in found.rows if what == name)

    return Costs(
        sockets=points("sockets-memory", "uvicorn")[-1][0],
        socket_bytes=rise(points("sockets-memory", "uvicorn")) * 2**20,
        beat_process=at("sockets-heartbeat", "uvicorn, the process"),
        beat_redis=at("sessions", "Redis"),
        push=at("sockets-fanout-cpu", "uvicorn"),
        event_application=at("events", "application", 1.0),
        event_database=at("events", "database", 1.0),
        event_redis=at("events", "Redis", 1.0),
        together_application=at("events", "application", 100.0),
        together_database=at("events", "database", 100.0),
        together_redis=at("events", "Redis", 100.0),
        event_bytes=row("PostgreSQL: an event"),
        build_worker=at("builds", "worker", 100.0),
        build_database=at("builds", "database", 100.0),
        build_redis=at("builds", "Redis", 100.0),
        resource_bytes=rise(points("resources-memory", "used_memory")),
        session_bytes=row("Redis: a session (one a user)"),
    )


SOURCES = {
    "sockets": ("the most sockets that were measured in one process", "", "sockets-memory, uvicorn, last point"),
    "socket_bytes": ("memory of an ASGI process for one more socket with two watches", "bytes", "sockets-memory, uvicorn, rise"),
    "beat_process": ("a heartbeat of one socket, in its process", "µs", "sockets-heartbeat, uvicorn, last point"),
    "beat_redis": ("a heartbeat of a session with three watches, in Redis", "µs", "sessions, Redis, last point"),
    "push": ("one update to one socket, in its process", "µs", "sockets-fanout-cpu, uvicorn, last point"),
    "event_application": (
        "an event that nobody watches, where it is written, its own save included",
        "µs",
        "events, application, at 1",
    ),
    "event_database": ("the same, in PostgreSQL", "µs", "events, database, at 1"),
    "event_redis": ("the same, in Redis", "µs", "events, Redis, at 1"),
    "together_application": (
        "an event of 100 in a transaction, where it is written",
        "µs",
        "events, application, at 100",
    ),
    "together_database": ("the same, in PostgreSQL", "µs", "events, database, at 100"),
    "together_redis": ("the same, in Redis", "µs", "events, Redis, at 100"),
    "event_bytes": ("an event's row with its indexes", "bytes", "memory, PostgreSQL"),
    "build_worker": ("one resource of a drain, in the worker, besides your build", "µs", "builds, worker, at 100"),
    "build_database": ("the same, in PostgreSQL", "µs", "builds, database, at 100"),
    "build_redis": ("the same, in Redis", "µs", "builds, Redis, at 100"),
    "resource_bytes": ("Redis for a watched resource with a snapshot of 300 bytes", "bytes", "resources-memory, rise"),
    "session_bytes": ("Redis for a session", "bytes", "memory, Redis"),
}


def cost_table(known: Costs) -> str:
    """The costs, what they are, and where they come from."""
    rows = ["| figure | value | what | curve |", "|---|---|---|---|"]
    for name, (what, unit, where) in SOURCES.items():
        value = f"{number(getattr(known, name))} {unit}".strip()
        rows.append(f"| `{name}` | {value} | {what} | {where} |")
    return "\n".join(rows)


def need_table(known: Costs, loads: Sequence[Load] = LOADS) -> str:
    """What each load needs."""
    needs = [need(load, known) for load in loads]
    head = ["| |" + "".join(f" {load.name} |" for load in loads), "|---|" + "---|" * len(loads)]
    return "\n".join(head + [f"| {what} |" + "".join(f" {_short(one[what])} |" for one in needs) for what in needs[0]])


def limits(known: Costs) -> list[tuple[str, float, str, str]]:
    """What one unit carries when half of its core is used: `(unit, amount, of what, from which figures)`."""
    half = BUSY * 1e6
    built = known.build_worker + known.build_database + known.build_redis
    return [
        ("one ASGI process", half * HEARTBEAT / known.beat_process, "sockets, by their heartbeats", "`beat_process`"),
        ("one ASGI process", half / known.push, "frames a second, and no heartbeats", "`push`"),
        ("one worker", 1e6 / built, "resources a second, as it waits for both", "`build_worker + build_database + build_redis`"),
        ("one Redis process", half * HEARTBEAT / known.beat_redis, "sessions, by their heartbeats", "`beat_redis`"),
        ("one Redis process", half / known.event_redis, "events a second that nobody watches", "`event_redis`"),
        ("one Redis process", half / known.build_redis, "resources built a second", "`build_redis`"),
        ("one core of the database", half / known.event_database, "events a second", "`event_database`"),
        ("one core of the database", half / known.together_database, "events a second, 100 together", "`together_database`"),
        ("one core that writes", half / known.event_application, "events a second", "`event_application`"),
        ("one core that writes", half / known.together_application, "events a second, 100 together", "`together_application`"),
    ]


def limit_table(known: Costs) -> str:
    """The limits as rows."""
    rows = [f"| {unit} | {number(_round(amount))} {what} | {source} |" for unit, amount, what, source in limits(known)]
    return "\n".join(["| unit | carries | from |", "|---|---|---|", *rows])


def _round(value: float) -> float:
    """Two digits: more would say more than is known."""
    return float(f"{value:.2g}")


def slope_table(results: Mapping[str, Result]) -> str:
    """Every line of every curve: its slope, and its first and last point."""
    rows = ["| curve | line | slope | first point | last point |", "|---|---|---|---|---|"]
    for curve in results.values():
        for one in curve.series if isinstance(curve, Curve) else ():
            ends = " | ".join(f"{x:,.0f}: {number(y)}" for x, y in (one.points[0], one.points[-1]))
            rows.append(f"| {curve.name} | {one.name} | {told(one.slope).removeprefix('slope ')} | {ends} |")
    return "\n".join(rows)


def figure_table(results: Mapping[str, Result]) -> str:
    """Rows of everything that is no curve."""
    rows = ["| | figure | |", "|---|---|---|"]
    for found in results.values():
        for what, value, unit, note in found.rows if isinstance(found, Figures) else ():
            rows.append(f"| {what} | {number(value)} {unit} | {note} |")
    return "\n".join(rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def fill(page: str, results: Mapping[str, Result]) -> str:
    """The page with its tables as the figures say. A table stands between `<!-- NAME -->` and `<!-- end -->`."""
    known = costs(results)
    tables = {
        "costs": cost_table(known), "limits": limit_table(known), "needs": need_table(known), "slopes": slope_table(results),
        "figures": figure_table(results),
    }  # fmt: skip
    for name, rows in tables.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page = re.sub(pattern, lambda match, rows=rows: f"{match[1]}\n{rows}\n\n{match[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
    return page


def load(file: Path) -> dict[str, Result]:
    """The results of a file that the curves wrote, by name."""
    found: dict[str, Any] = json.loads(file.read_text())
    return {row["name"]: result_of(row) for row in found["results"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the page, or say with 1 that it is not what the figures say."""
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.curves.scale", description="Tables of docs/scaling.md.")
    made.add_argument("--check", action="store_true", help="change nothing; 1 if a table is not what the figures say")
    options = made.parse_args(arguments)
    page = PAGE.read_text()
    filled = fill(page, load(FILE))
    if options.check:
        return int(filled != page)
    PAGE.write_text(filled)
    for name, one in load(FILE).items():
        if isinstance(one, Curve):
            (FILE.parent / f"curve-{name}.svg").write_text(draw(one))
    return 0


if __name__ == "__main__":
    sys.exit(main())
