"""`python -m tests.benchmarks.soak --minutes 10 [--json FILE] [--svg FILE]`. Ctrl-C ends it early, with its report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.curves.core import Curve, Point, Series
from tests.benchmarks.curves.svg import draw
from tests.benchmarks.harness import SIZES, say
from tests.benchmarks.soak.judge import Verdict, judge, table

# Short lifetimes, so that what is to come and go does so within the run.
SHORT = {"HEARTBEAT": 5, "TTL": 15, "RECHECK": 15, "EVENT_TTL": 60}
DRAWN = 5
# Twice the longest of these lifetimes: a session's keys, ten leases; an event, EVENT_TTL and the turn of pruning.
ENOUGH = 480


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description="Steady load, watched for growth.")
    made.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    made.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="between samples (default: 10)")
    made.add_argument("--sockets", type=int, default=200, help="open at a time, over both servers (default: 200)")
    made.add_argument("--writes", type=float, default=30.0, metavar="RATE", help="changes a second (default: 30)")
    made.add_argument("--reads", type=float, default=20.0, metavar="RATE", help="rounds of six reads a second (default: 20)")
    made.add_argument("--churn", type=float, default=2.0, metavar="RATE", help="sockets that go and come a second (default: 2)")
    made.add_argument("--database", choices=("sqlite", "postgres"), default="postgres")
    made.add_argument("--json", type=Path, metavar="FILE", help="write samples and verdicts here")
    made.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of the memory over time here")
    made.add_argument("--strict", action="store_true", help="exit with 1 if anything grows or a process ended")
    return made


class Soak:
    """The samples of one run: `(seconds, value)` by name, with unit and the growth that does not matter."""

    def __init__(self) -> None:
        self.series: dict[str, list[Point]] = {}
        self.about: dict[str, tuple[str, float | None]] = {}
        self.load: dict[str, Any] = {}
        self.ended: list[str] = []
        self.versions: dict[str, str] = {}

    def take(self, at: float, samples: Any) -> None:
        """Note what was measured."""
        for one in samples:
            self.series.setdefault(one.name, []).append((round(at, 2), one.value))
            self.about[one.name] = (one.unit, one.least)

    def verdicts(self) -> list[Verdict]:
        """Of every series that lasted."""
        return [judge(name, self.about[name][0], points, self.about[name][1]) for name, points in self.series.items()]

    def as_json(self) -> dict[str, Any]:
        return {
            "verdicts": [one.as_json() for one in self.verdicts()],
            "load": self.load, "ended": self.ended, "versions": self.versions,
            "samples": {name: [[at, round(value, 4)] for at, value in points] for name, points in self.series.items()},
        }  # fmt: skip

    def picture(self) -> str:
        """The memory of processes and Redis over time."""
        names = [name for name in self.series if self.about[name][0] == "MiB" and "metrics by" not in name]
        names = sorted(names, key=lambda name: -max(y for _, y in self.series[name]))
        kept = [name for name in names if name.startswith("RSS ") and name != "RSS Redis"][: DRAWN - 1]
        kept.append("Redis used_memory, without metrics")
        series = [Series(name=name, points=[(x / 60, y) for x, y in self.series[name]]) for name in kept]
        curve = Curve(name="soak", title="Memory under steady load", x="minutes", y="MiB", how="", series=series)
        return draw(curve, linear=True)


def prepare(sockets: int, ports: Sequence[int], file: Path) -> None:
    """People, who follow each other, the rows that change, and what the process with the sockets must know."""
    from django.contrib.auth.models import User

    from tests.app.models import Counter, Follow
    from tests.benchmarks import live
    from tests.benchmarks.soak.load import KEYS, PEOPLE

    people = live.visitors(PEOPLE)
    users = list(User.objects.order_by("pk"))
    Follow.objects.bulk_create(
        [Follow(follower=a, author=b) for n, a in enumerate(users) for b in users[n + 1 : n + 11]], ignore_conflicts=True
    )
    Counter.objects.bulk_create([Counter(name=f"c{n}") for n in range(KEYS)])
    told = {"ports": list(ports), "cookies": [one.cookie for one in people], "sockets": sockets, "heartbeat": SHORT["HEARTBEAT"]}
    file.write_text(json.dumps(told))


def run(options: argparse.Namespace, over: threading.Event, soak: Soak) -> None:
    """Start everything, sample until the time or the run is over, and end everything."""
    from tests.benchmarks.stage import on_stage

    with ExitStack() as stack:
        stage = stack.enter_context(on_stage(options.database, SIZES["full"], SHORT))
        soak.versions = stage.versions()
        from tests.benchmarks import live
        from tests.benchmarks.soak import watch
        from tests.support import servers

        sites = {kind: stack.enter_context(live.asgi(kind)) for kind in live.KINDS}
        command = ["-m", "django", "visibility_worker", "--lane", "hot=1", "--lane", "cold=1"]
        worker = stack.enter_context(servers.python(*command, settings=live.SETTINGS))
        worker.wait_until(lambda: "visibility workers:" in worker.output, 60, "the workers start")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare(options.sockets, [site.port for site in sites.values()], folder / "sockets.json")
        loads = {
            "write": [str(options.writes)], "read": [str(options.reads)],
            "sockets": [str(folder / "sockets.json"), str(options.churn)],
        }  # fmt: skip
        started = {
            kind: stack.enter_context(servers.python("-m", "tests.benchmarks.soak.load", kind, *args, settings=live.SETTINGS))
            for kind, args in loads.items()
        }
        running = {**{f"asgi {kind}": site.process for kind, site in sites.items()}, "workers": worker}
        watched = {**running, **{f"load {kind}": process for kind, process in started.items()}}
        leaders = {name: process.pid for name, process in running.items()}
        begun = time.monotonic()
        ends, due = begun + options.minutes * 60, begun
        while not over.is_set() and time.monotonic() < ends:
            over.wait(max(0.0, min(due, ends) - time.monotonic()))
            if over.is_set() or time.monotonic() < due:
                continue
            try:
                soak.take(time.monotonic() - begun, list(watch.once(stage.redis, leaders)))
            except Exception as error:
                # A sample that could not be taken must not end a long run; it is reported.
                soak.ended.append(f"a sample after {time.monotonic() - begun:.0f} s: {error!r}"[:500])
            due += options.every
            for name, process in watched.items():
                if not process.alive and not any(one.startswith(f"{name}:") for one in soak.ended):
                    soak.ended.append(f"{name}: ended with {process.popen.returncode}: {process.output[-500:]}")
            if int((time.monotonic() - begun) / 60) != int((time.monotonic() - begun - options.every) / 60):
                say(f"  {(time.monotonic() - begun) / 60:.1f} min: {_brief(soak)}")
        for kind, process in started.items():
            process.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(20)
            soak.load[kind] = _last_json(process.output)


def _last_json(output: str) -> Any:
    for line in reversed(output.strip().splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return output[-300:]


def _brief(soak: Soak) -> str:
    shown = [name for name in soak.series if name.startswith(("RSS asgi", "Redis used", "rows of Event"))]
    return ", ".join(f"{name} {soak.series[name][-1][1]:.1f}" for name in shown)


def report(soak: Soak) -> str:
    """What the run came to, for people."""
    verdicts = soak.verdicts()
    grown = [one.name for one in verdicts if one.grows]
    lines = [table(verdicts), "", f"load: {json.dumps(soak.load)}", *(f"! {one}" for one in soak.ended)]
    lines.append("on " + ", ".join(f"{name} {version}" for name, version in soak.versions.items()))
    lasted = max(points[-1][0] for points in soak.series.values())
    if lasted < ENOUGH:
        lines.append(f"{lasted:.0f} s are too short to judge by: what lives for ten leases and for EVENT_TTL is still coming up")
    lines.append(f"grows: {', '.join(grown)}" if grown else "no growth")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, report, and answer the exit code."""
    options = parser().parse_args(arguments)
    for name in ("REDIS_URL", "DJANGO_SETTINGS_MODULE"):
        os.environ.pop(name, None)
    over, soak = threading.Event(), Soak()
    handler: Callable[..., None] = lambda *_: over.set()  # noqa: E731
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run(options, over, soak)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    if not soak.series:
        print("ended before the first sample")
        return 1
    print(report(soak))
    if options.json:
        options.json.write_text(json.dumps(soak.as_json(), indent=1) + "\n")
    if options.svg:
        options.svg.write_text(soak.picture())
    return int(options.strict and (bool(soak.ended) or any(one.grows for one in soak.verdicts())))


if __name__ == "__main__":
    sys.exit(main())
