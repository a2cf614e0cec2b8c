"""Where a bar is measured: a Valkey and a database of its own, Django set up on both, in this very process.

    with on_stage("postgres", SIZES["full"]) as stage: stage.redis, stage.size.n(1_000)

Import what needs Django inside the functions that get a stage, or in modules that are imported after it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Part, Size


@dataclass
class Stage:
    """`redis`: a client (bytes) to the stage's own server. `database`: sqlite or postgres. `stack` ends with the stage."""

    size: Size
    database: str
    redis: Any
    server: Any
    stack: ExitStack
    pids: list[int]

    def cpu(self) -> float:
        """Processor seconds used so far: by this process with its ended children, and by the servers with all of theirs."""
        own = os.times()
        return own.user + own.system + own.children_user + own.children_system + sum(cpu_of(pid) for pid in self.pids)

    def versions(self) -> dict[str, str]:
        """What the figures were taken on."""
        from django.db import connection

        found = {"Python": platform.python_version()}
        for name in ("Django", "channels", "channels-redis", "rq", "django-rq", "redis", "hiredis", "uvicorn"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        info = self.redis.info("server")
        kind = "Valkey" if "valkey_version" in info else "Redis"
        found[kind] = info.get("valkey_version") or info["redis_version"]
        connection.ensure_connection()
        number = ".".join(map(str, connection.get_database_version()))
        found[{"sqlite": "SQLite", "postgresql": "PostgreSQL"}[connection.vendor]] = number
        return found


@contextmanager
def on_stage(database: str, size: Size, visibility: Mapping[str, Any] | None = None, *, durable: bool = False) -> Iterator[Stage]:
    """Start the servers and set Django up. Once per process: settings are read once.

    Args:
        visibility: merged into `settings.VISIBILITY`, here and in child processes.
        durable: PostgreSQL as it comes, with fsync; else tuned for tests.
    """
    os.environ["VISIBILITY_TEST_DB"] = database
    os.environ["VISIBILITY_TEST_SETTINGS"] = json.dumps(dict(visibility or {}))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
    from django.conf import settings

    from tests.support import servers

    with ExitStack() as stack:
        port = int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
        server = stack.enter_context(servers.valkey(port=port))
        pids = [server.process.pid] if server.process else []
        if database == "postgres":
            sql = stack.enter_context(servers.postgres(port=int(settings.DATABASES["default"]["PORT"]), durable=durable))
            pids += [sql.process.pid] if sql.process else []
        else:
            stack.callback(_remove, str(settings.DATABASES["default"]["NAME"]))
        import django

        django.setup()
        logging.disable(logging.WARNING)
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        stack.callback(_close)
        client = stack.enter_context(server.client(decode_responses=False, socket_timeout=30))
        yield Stage(size, database, client, server, stack, pids)


def cpu_of(leader: int) -> float:
    """Processor seconds of a process, its session and its children, ended ones too: PostgreSQL's lead sessions of their own."""
    from tests.support.processes import session_members

    try:
        # Of the thread that starts them: the kernel keeps children by it.
        children = {int(pid) for pid in Path(f"/proc/{leader}/task/{leader}/children").read_text().split()}
    except OSError:
        children = set()
    try:
        ended = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[13:15]
        total = sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
    except OSError:
        total = 0.0
    for pid in {*session_members(leader), *children}:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(thread.read_text().split()[0]) / 1e9
            except (OSError, ValueError, IndexError):
                continue
    return total


def _close() -> None:
    from django.db import connections

    from visibility import push
    from visibility.insight import metrics
    from visibility.soft import client

    metrics.flush()
    push.close()
    client.close()
    connections.close_all()


def _remove(name: str) -> None:
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(name + ending):  # noqa: PTH110
            os.unlink(name + ending)  # noqa: PTH108


def run(where: str, stage: Stage) -> Iterator[Part]:
    """The parts of one bar on this stage, named by its database, as they are measured; `where` may name several places."""
    for place in where.split():
        module, _, function = place.partition(":")
        for part in getattr(importlib.import_module(f"tests.benchmarks.{module}"), function)(stage):
            part.database = stage.database
            yield part
