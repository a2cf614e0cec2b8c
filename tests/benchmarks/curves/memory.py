"""What one session, watch, resource and event take up: in Redis, in the socket server's process, in the database.

Redis: differences of `used_memory`, with `MEMORY USAGE` of its keys as a cross-check. Process: private memory of a server process
before and after. Database: bytes of a table with its indexes, over its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, models, transaction

from tests.app.models import Counter, Post
from tests.benchmarks import live
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.curves.core import Figures
from tests.benchmarks.curves.resources import build, wait, watch
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage
from visibility.models import DirtyFlag, Event, ScopeMark
from visibility.soft import leases, sessions
from visibility.soft.leases import Watch
from visibility.soft.sessions import Attending

NUMBER, SOCKETS, EVENTS = 20_000, 1_000, 20_000
Row = tuple[str, float, str, str]


def table(stage: Stage) -> Iterator[Figures]:
    """All of it; what no database has a part in, once."""
    figures = Figures(name="memory", title="What one more takes up", how="differences over thousands; see the module for each")
    if stage.database == "postgres":
        figures.rows += _redis(stage)
        figures.rows += _process(stage)
    figures.rows += _database(stage)
    yield figures


def _redis(stage: Stage) -> Iterator[Row]:
    number, redis = stage.size.n(NUMBER, 50), stage.redis
    names = [f"counter:r{n:07d}" for n in range(number)]
    everybody = [Attending(str(n), f"sid{n:013d}", "visible") for n in range(number)]
    steps: list[tuple[str, Callable[[], object], str]] = [
        ("a session (one a user)", lambda: sessions.attend("node", "node:1:a", everybody), "*sid0000000000001"),
        ("a watch of a resource of its own", lambda: watch(names), "*:counter:r0000001"),
        ("a snapshot of 300 bytes, and trust", lambda: build(names), "*:counter:r0000001"),
        ("a resource that waits in the lane", lambda: wait(names), "*:counter:r0000001"),
        ("one more watcher of a resource", lambda: _watch_again(names), "*:counter:r0000001"),
    ]
    # Scripts and tables of a server that has worked before.
    for _what, work, _keys in steps:
        work()
    redis.execute_command("FLUSHALL", "SYNC")
    for what, work, keys in steps:
        before, usage = _used(redis), _usage(redis, keys)
        work()
        grown = (_used(redis) - before) / number
        note = f"MEMORY USAGE of its own keys: {_usage(redis, keys) - usage:,} more; the rest is indexes that all share"
        yield f"Redis: {what}", grown, "bytes", note
        say(f"  {what}: {grown:.0f} bytes in Redis")
    redis.execute_command("FLUSHALL", "SYNC")


def _watch_again(names: list[str]) -> None:
    leases.renew([Watch(one, f"{one[9:]}/other") for one in names])


def _used(redis: Any) -> int:
    return int(redis.info("memory")["used_memory"])


def _usage(redis: Any, pattern: str) -> int:
    return sum(int(redis.memory_usage(key, samples=0) or 0) for key in redis.scan_iter(pattern, count=10_000))


def private(pid: int) -> int:
    """Bytes of memory that this process shares with nobody."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Private_"))


def _process(stage: Stage) -> Iterator[Row]:
    number = stage.size.n(SOCKETS, 20)
    people_ = live.visitors(number)
    Counter.objects.bulk_create([Counter(name=f"own{n}") for n in range(number)] + [Counter(name="shared")])
    for kind in live.KINDS:
        with live.asgi(kind) as site, Crowd(site.port, "/ws/visibility/") as crowd:
            warm = crowd.open(20, [people_[0].cookie])
            _watch(crowd, warm, lambda n: f"counter:own{n}")
            crowd.idle(2)
            before = private(site.process.pid)
            members = crowd.open(number, [one.cookie for one in people_])
            crowd.expect(b'"hello"', 60, members)
            crowd.idle(2)
            opened = private(site.process.pid)
            yield f"process, {kind}: a session", (opened - before) / number, "bytes", "a logged-in socket that watches nothing"
            _watch(crowd, members, lambda _: "counter:shared")
            crowd.idle(2)
            shared = private(site.process.pid)
            yield f"process, {kind}: a watch of a resource that others watch", (shared - opened) / number, "bytes", ""
            _watch(crowd, members, lambda n: f"counter:own{n}")
            crowd.idle(2)
            own = private(site.process.pid)
            yield (
                f"process, {kind}: a watch of a resource of its own",
                (own - shared) / number,
                "bytes",
                "its group in the channel layer too",
            )
        say(f"  {kind}: {(opened - before) / number:.0f} bytes a session")


def _watch(crowd: Crowd, members: list[Any], name: Callable[[int], str]) -> None:
    for n, member in enumerate(members):
        crowd.say({"op": "watch", "id": 1, "resources": [name(n)]}, [member])
    crowd.expect(b'"watched"', 120, members)


def _database(stage: Stage) -> Iterator[Row]:
    where = {"postgres": "PostgreSQL", "sqlite": "SQLite"}[stage.database]
    number = stage.size.n(EVENTS, 100)
    author = User.objects.create(username="author")
    for start in range(0, number, 500):
        with transaction.atomic():
            for _ in range(min(500, number - start)):
                Post(author=author, text="x").save()
    yield f"{where}: an event", _bytes(Event) / Event.objects.count(), "bytes", "indexes with it; kept for EVENT_TTL"
    Counter.objects.bulk_create([Counter(name=f"flag{n:07d}") for n in range(number)])
    for start in range(0, number, 500):
        with transaction.atomic():
            for one in Counter.objects.filter(name__startswith="flag").order_by("pk")[start : start + 500]:
                one.save()
    yield f"{where}: a dirty flag", _bytes(DirtyFlag) / DirtyFlag.objects.count(), "bytes", "one a hidden resource that changed"
    authors = User.objects.bulk_create([User(username=f"scope{n}") for n in range(number // 10)])
    for start in range(0, len(authors), 500):
        with transaction.atomic():
            for one in authors[start : start + 500]:
                Post(author=one, text="x").save()
    yield (
        f"{where}: a scope mark",
        _bytes(ScopeMark) / ScopeMark.objects.count(),
        "bytes",
        "one a source that changed, whatever its audience",
    )


def _bytes(model: type[models.Model]) -> int:
    """Bytes of a table and its indexes."""
    name = model._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_total_relation_size(%s)", [name])
            return int(cursor.fetchone()[0])
        cursor.execute("SELECT count(*) FROM pragma_compile_options WHERE compile_options = 'ENABLE_DBSTAT_VTAB'")
        if not cursor.fetchone()[0]:
            raise AssertionError("this SQLite has no dbstat")
        cursor.execute(
            "SELECT sum(pgsize) FROM dbstat WHERE name IN (SELECT name FROM sqlite_master WHERE tbl_name = %s)", [name]
        )
        return int(cursor.fetchone()[0])
