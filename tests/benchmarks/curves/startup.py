"""What the installed app adds where it is not used: to `import`, to `django.setup()`, to a request.

Each side is a process of its own, by turns, on byte code that is compiled already: `python -m tests.benchmarks.curves.startup
setup|requests [APP …]` answers one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.curves.core import Figures
from tests.benchmarks.stage import Stage

ROOT = Path(__file__).resolve().parents[3]
APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"]
ROUNDS, REQUESTS = 11, 2_000


def imports(stage: Stage) -> Iterator[Figures]:
    """Milliseconds of processor time, modules and memory: of a bare Django project, and what the app adds."""
    own = _median(stage, "import", ["visibility"])
    without, with_app = _both(stage, "setup")
    more = {name: with_app[name] - without[name] for name in without}
    figures = Figures(
        name="import", title="What the installed app adds to the start of a process",
        how="processor time, median of processes by turns; a project with auth, contenttypes and sessions; byte code compiled",
    )  # fmt: skip
    figures.rows += [
        ("import visibility", own["cpu"] * 1e3, "ms", f"{own['modules']:.0f} modules that were not there"),
        ("django.setup() without the app", without["cpu"] * 1e3, "ms", f"{without['modules']:.0f} modules"),
        (
            "the app adds",
            more["cpu"] * 1e3,
            "ms",
            f"{more['modules']:.0f} modules",
        ),
        ("the app adds", more["rss"] / 2**20, "MiB", "resident memory"),
    ]
    yield figures


def requests(stage: Stage) -> Iterator[Figures]:
    """Microseconds of processor time for a request to a view that knows nothing of the app, with sessions and auth middleware."""
    without, with_app = _both(stage, "requests")
    figures = Figures(
        name="request", title="What the installed app adds to a request that does not use it",
        how=f"Django's test client, {stage.size.n(REQUESTS, 20)} requests a process; processor time, median of processes",
    )  # fmt: skip
    figures.rows += [
        ("a request without the app", without["cpu"] * 1e6, "µs", ""),
        ("a request with it", with_app["cpu"] * 1e6, "µs", ""),
        (
            "with it, by without it",
            with_app["ratio"],
            "×",
            f"turns from {with_app['low']:.2f} to {with_app['high']:.2f}",
        ),
    ]
    yield figures


def _both(stage: Stage, what: str) -> tuple[dict[str, float], dict[str, float]]:
    """Medians without and with the app, by turns, and the ratios of the turns: their median and extremes."""
    sides: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    with tempfile.TemporaryDirectory() as cache:
        for n in range(-1, stage.size.times(ROUNDS)):
            for side in (0, 1) if n % 2 == 0 else (1, 0):
                found = _run(cache, what, stage.size.n(REQUESTS, 20), ["visibility"] if side else [])
                # The first compiles.
                if n >= 0:
                    sides[side].append(found)
    ratios = [b["cpu"] / a["cpu"] for a, b in zip(*sides, strict=True)]
    a, b = ({name: median(one[name] for one in side) for name in side[0]} for side in sides)
    return a, {**b, "ratio": median(ratios), "low": min(ratios), "high": max(ratios)}


def _median(stage: Stage, what: str, apps: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        found = [_run(cache, what, 1, apps) for _ in range(stage.size.times(ROUNDS) + 1)][1:]
    return {name: median(one[name] for one in found) for name in found[0]}


def _run(cache: str, what: str, times: int, apps: list[str]) -> dict[str, float]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "tests.benchmarks.curves.startup", what, str(times), *apps]
    done = subprocess.run(
        command, cwd=ROOT, env={**env, "PYTHONPYCACHEPREFIX": cache}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    return dict(json.loads(done.stdout))


def _setup(apps: list[str]) -> None:
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=[*APPS, *apps], SECRET_KEY="for tests only", USE_TZ=True, ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.benchmarks.curves.startup_urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware", "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
    )  # fmt: skip
    import django

    django.setup()


def _requests(times: int) -> float:
    """Processor seconds a request."""
    from django.test import Client

    client = Client()
    for _ in range(50):
        client.get("/")
    begun = time.process_time()
    for _ in range(times):
        if client.get("/").status_code != 200:
            raise AssertionError("no answer")
    return (time.process_time() - begun) / times


def _resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(what: str, times: str, *apps: str) -> None:
    modules, begun = len(sys.modules), time.process_time()
    if what == "import":
        for one in apps:
            __import__(one)
    else:
        _setup(list(apps))
    cpu = time.process_time() - begun
    found = {"modules": len(sys.modules) - modules, "rss": _resident()}
    found["cpu"] = _requests(int(times)) if what == "requests" else cpu
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
