"""`manage.py replay TRACE`: real messages, real sockets, real workers; what was computed, how fresh, and whether it was right."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from project.demo.management.commands.demo import Stopped, stop_on_signals
from project.replay.trace import BadTrace, followers, read_graph, read_trace
from project.running import parts
from project.running.family import ChildFailed, Family

PACE = 45.0
INSIDE = "VISIBILITY_REPLAY"
# The trace is compressed in time, so leases and lingering are too.
COMPRESSED = {"HEARTBEAT": 5, "TTL": 15, "LINGER": 0.5}


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise ArgumentTypeError(f"a number above 0, not {text!r}")
    return value


def factor(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.01 <= float(text) <= 1000:
            return float(text)
    raise ArgumentTypeError(f"a number from 0.01 to 1000, not {text!r}")


class Command(BaseCommand):
    help = (
        "Replay a trace (lines of `source target seconds`): each line is a message in a room of two and a post to followers. "
        "Works on a temporary database and a Valkey of its own, so the demo's data stays as it is."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="the file to replay")
        parser.add_argument("--graph", type=Path, help="a file of friendships, two names a line: who reads whose posts")
        parser.add_argument("--limit", type=positive, help="only the first LIMIT messages")
        parser.add_argument("--speed", type=factor, default=1.0, help=f"1 is about {PACE:.0f} messages a second (default: 1)")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        parser.add_argument("--kill-worker", action="store_true", help="SIGKILL a worker of the hot lane halfway")
        parser.add_argument("--server", choices=parts.SERVERS, default="uvicorn", help="ASGI server (default: uvicorn)")
        parser.add_argument("--database-url", default="", help="work in this database instead of a temporary SQLite file")
        parser.add_argument("--redis-url", default="", help="use this Redis instead of an embedded Valkey")

    def handle(self, *args: Any, **options: Any) -> None:
        stop_on_signals()
        try:
            lines = read_trace(options["trace"], options["limit"])
            graph = read_graph(options["graph"]) if options["graph"] else None
            if os.environ.get(INSIDE):
                self.inside(lines, graph, options)
                return
            code = self.outside(options)
        except Stopped:
            raise CommandError("Stopped before the end; no process is left.", returncode=130) from None
        except (BadTrace, parts.CannotStart, ChildFailed) as error:
            raise CommandError(str(error)) from None
        if code:
            raise CommandError(f"The replay ended with code {code}.", returncode=code)

    def outside(self, options: dict[str, Any]) -> int:
        """Start the parts, then this same command again among them; answers its exit code."""
        begun = time.time()
        with contextlib.ExitStack() as stack:
            scratch = tempfile.TemporaryDirectory(prefix="visibility-replay-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(scratch))
            listener = stack.enter_context(contextlib.closing(parts.listen("127.0.0.1", 0)))
            listener.set_inheritable(True)
            if options["redis_url"] and not parts.answers(options["redis_url"]):
                raise parts.CannotStart(f"No Redis answers at {options['redis_url']}.")
            valkey = None if options["redis_url"] else parts.Valkey()
            if valkey:
                stack.callback(valkey.close)
            overrides = {**json.loads(os.environ.get("VISIBILITY_OVERRIDES", "{}")), **COMPRESSED}
            env = {
                **os.environ,
                "REDIS_URL": valkey.url if valkey else options["redis_url"],
                "DATABASE_URL": options["database_url"] or f"sqlite:///{folder / 'replay.sqlite3'}",
                "VISIBILITY_OVERRIDES": json.dumps(overrides),
            }
            family = stack.enter_context(Family(env, folder / "log", self.stderr.write))
            if valkey:
                valkey.start(family)
            family.run("migrate", parts.manage("migrate", "--verbosity", "0", "--no-input"))
            server = family.start("server", parts.asgi(options["server"], listener), pass_fds=[listener.fileno()])
            family.start("workers", parts.workers())
            parts.wait_for_http(server, *listener.getsockname()[:2])
            family.env[INSIDE] = json.dumps({"port": listener.getsockname()[1], "begun": begun})
            replay = family.start("replay", parts.manage("replay", *_again(options)), on_death="ignore", console=True)
            del family.env[INSIDE]
            while replay.alive:
                family.check()
                time.sleep(0.1)
            return int(replay.process.returncode)

    def inside(self, lines: list[Any], graph: list[tuple[str, str]] | None, options: dict[str, Any]) -> None:
        """Replay, among running parts, and print what came of it."""
        from project.replay import report
        from project.replay.driver import Driver, Progress
        from project.replay.trace import plan
        from project.replay.watching import Watchers
        from project.replay.world import World

        inner = json.loads(os.environ[INSIDE])
        host = f"127.0.0.1:{inner['port']}"
        world = World(lines, followers(lines, graph))
        watchers = Watchers(f"ws://{host}/ws/visibility/", f"http://{host}")
        try:
            driver = Driver(world, watchers, Progress(len(lines)), options["kill_worker"])
            outcome = driver.run(plan(lines, len(lines) / (PACE * options["speed"])), len(lines))
        finally:
            watchers.close()
        found = report.figures(outcome, watchers.samples, time.time() - inner["begun"])
        if options["json"]:
            self.stdout.write(json.dumps(found))
            return
        more = {
            "people": len(world.users),
            "sockets": watchers.sockets,
            "cut_off": watchers.cut_off,
            "problems": watchers.problems,
        }
        self.stdout.write(report.text(found, outcome, watchers.samples, more))


def _again(options: dict[str, Any]) -> list[str]:
    """The arguments that matter to the inner run."""
    out = [str(options["trace"]), "--speed", str(options["speed"])]
    out += ["--graph", str(options["graph"])] if options["graph"] else []
    out += ["--limit", str(options["limit"])] if options["limit"] else []
    return out + [f"--{name.replace('_', '-')}" for name in ("json", "kill_worker") if options[name]]
