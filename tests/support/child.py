"""A process that does one thing at a time on this test's database and Redis, and may stop, die or flush at a named point.

`python -m tests.support.child drain hot 0` and the like, with `CHILD_POINT=build.store CHILD_DO=kill`. What it did is the
last line of its output, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import django


def hook(name: str) -> None:
    """At the point that the environment names, do what it says, once."""
    if name != os.environ.get("CHILD_POINT"):
        return
    what = os.environ.pop("CHILD_DO", "")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "flush":
        from visibility.soft.client import client

        client().flushall()
    elif what == "raise":
        raise SystemExit(1)


def readers(data_type: str, key: str, threads: int) -> list[Any]:
    """What so many readers at once get: data, or the name of the error."""
    from django.db import connection

    from visibility.read import read

    out: list[Any] = []
    gate = threading.Barrier(threads)

    def one() -> None:
        gate.wait()
        try:
            out.append(read(data_type, key).data)
        except Exception as error:
            out.append(type(error).__name__)
        finally:
            connection.close()

    crowd = [threading.Thread(target=one) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return out


def main(what: str, *args: str) -> Any:
    from tests.support import probe
    from visibility import maintain, points, recompute

    points.hook = hook
    match what:
        case "drain":
            return recompute.drain(args[0], int(args[1]))
        case "readers":
            print("ready", flush=True)  # noqa: T201
            while not (probe.folder() / "go").exists():
                time.sleep(0.001)
            return readers(args[0], args[1], int(args[2]))
        case "tick":
            return maintain.tick()
    raise ValueError(what)


if __name__ == "__main__":
    django.setup()
    print(json.dumps(main(*sys.argv[1:])), flush=True)  # noqa: T201
