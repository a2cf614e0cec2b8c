"""A process that outlives its parent by a moment: when the parent is gone, however it went, it kills the parent's children.

Started as `python keeper.py FAMILY`, with a pipe as its standard input. It reads process ids, one a line; each leads a session of
its own. At the end of the input (the kernel closes the pipe even after SIGKILL) it kills those sessions, and on Linux also every
process whose environment names the family: a child started in the last instant, or a work horse whose worker was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

MARK = "VISIBILITY_DEMO_FAMILY"


def relatives(family: str) -> list[int]:
    """The processes whose environment names this family (Linux; elsewhere none are found)."""
    needle = f"{MARK}={family}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(environ.parent.name)
            if pid != os.getpid() and needle in environ.read_bytes().split(b"\0"):
                found.append(pid)
    return found


def kill(pids: set[int], family: str) -> None:
    """SIGKILL these sessions, and what else belongs to the family."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for _round in range(20):
        rest = relatives(family)
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not rest:
            return


def main() -> None:
    family = sys.argv[1]
    os.environ.pop(MARK, None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pids: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word == "bye":
            return
        if word.startswith("-"):
            pids.discard(int(word[1:]))
        else:
            pids.add(int(word))
    kill(pids, family)


if __name__ == "__main__":
    main()
