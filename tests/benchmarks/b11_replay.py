"""B11: a real trace through the whole path: what was computed against fan-out to everybody, and whether everything was right.

The trace is `--trace` or $BENCHMARK_TRACE; without one, a made one of a few people who talk in bursts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.harness import Part
from tests.benchmarks.stage import Stage

ROOT = Path(__file__).resolve().parents[2]


def made(lines: int) -> str:
    """Bursts of talk between twenty people."""
    chance, now, out = random.Random(5), 1_000_000, []
    while len(out) < lines:
        pair = chance.sample(range(20), 2)
        now += chance.randrange(600)
        for _ in range(chance.randrange(1, 8)):
            now += chance.randrange(1, 40)
            out.append(f"{pair[0]} {pair[1]} {now}")
            pair.reverse()
    return "\n".join(out[:lines])


def measure(stage: Stage) -> Iterator[Part]:
    """Replay by the demo's own command, on servers and workers of its own."""
    limit = stage.size.n(2_000, 20)
    with tempfile.TemporaryDirectory() as folder:
        given = os.environ.get("BENCHMARK_TRACE")
        trace = Path(given) if given else Path(folder) / "trace.txt"
        if not given:
            trace.write_text(made(limit))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("VISIBILITY_", "DJANGO_", "REDIS_"))}
        command = [sys.executable, "manage.py", "replay", str(trace), "--limit", str(limit), "--json"]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    figures = {**found, **{f"freshness_{name}": value for name, value in found.pop("freshness").items()}}
    figures.pop("freshness", None)
    against = "fan-out to everybody"
    yield Part(
        what="work done by work for everybody", ratio=found["work_done"] / found["work_everybody"], limit=1.0, against=against,
        figures=figures,
    )  # fmt: skip
    yield Part(what="stale reads", ratio=float(found["stale_reads"]), limit=0.0, against="none")
    equal = float(found["last_frame_equal"])
    yield Part(what="every watcher's last frame equals the source", ratio=equal, limit=1.0, least=True, against="the source")
