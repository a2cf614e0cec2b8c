"""What is measured of a running deployment: its processes, its Redis, its database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps
from django.db import connection

from tests.support.processes import session_members

MIB = float(2**20)


class Sample(NamedTuple):
    """One figure. `least`: growth below it does not matter; None: it must be 0."""

    name: str
    unit: str
    value: float
    least: float | None


def processes(leaders: dict[str, int]) -> Iterator[Sample]:
    """Memory of each process, its children apart, and the open files of all of them together."""
    files = 0
    for name, leader in leaders.items():
        for pid in sorted(session_members(leader)):
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                files += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except OSError:
                continue
            role = name if pid == leader else f"{name}, {_role(pid)}"
            yield Sample(f"RSS {role}", "MiB", pages * 4096 / MIB, 1.0)
    yield Sample("open files of them all", "", float(files), 5.0)


def _role(pid: int) -> str:
    """What a child is, from its arguments."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return "child"
    for n, word in enumerate(words):
        if word == "--child" and n + 1 < len(words):
            return words[n + 1]
        if word.startswith("--child="):
            return word.partition("=")[2]
    return "child"


def redis(client: Any) -> Iterator[Sample]:
    """Redis's memory, less the minutes' metrics (which stay for three hours, whatever happens), and its keys."""
    info = client.info("memory")
    minutes = without = own = 0
    batch: list[bytes] = []
    for key in client.scan_iter(b"{vis:*", count=1_000):
        own += 1
        batch.append(key)
    for start in range(0, len(batch), 500):
        part = batch[start : start + 500]
        pipe = client.pipeline(transaction=False)
        for key in part:
            pipe.pttl(key)
        # -2: it ended meanwhile.
        without += sum(left == -1 for left in pipe.execute())
    for key in batch:
        if b":m:" in key or b":rolled:" in key:
            minutes += int(client.memory_usage(key, samples=0) or 0)
    yield Sample("Redis used_memory, without metrics", "MiB", (info["used_memory"] - minutes) / MIB, 0.3)
    yield Sample("Redis metrics by minute", "MiB", minutes / MIB, 1e9)
    yield Sample("RSS Redis", "MiB", info["used_memory_rss"] / MIB, 1.0)
    yield Sample("keys of the package", "", float(own), 50.0)
    yield Sample("of these without a lifetime", "", float(without), None)
    yield Sample("keys of RQ and the channel layer", "", float(client.dbsize() - own), 20.0)
    yield Sample("pending in lanes", "", float(sum(client.zcard(f"{{vis:0}}:pending:{lane}") for lane in ("hot", "cold"))), 50.0)
    yield Sample("clients of Redis", "", float(client.info("clients")["connected_clients"]), 5.0)


def database() -> Iterator[Sample]:
    """Rows of the package's tables, and connections."""
    for model in apps.get_app_config("visibility").get_models():
        if not model._meta.managed:
            continue
        yield Sample(f"rows of {model.__name__}", "", float(model._default_manager.count()), 100.0)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            yield Sample("database connections", "", float(cursor.fetchone()[0]), 3.0)


def once(client: Any, leaders: dict[str, int]) -> Iterable[Sample]:
    """Everything, now."""
    yield from processes(leaders)
    yield from redis(client)
    yield from database()
