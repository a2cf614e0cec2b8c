"""Ends what a test process leaves running when it is killed itself; a child of it, started as a script.

It reads lines from its standard input: `+PID` for a session that began, `-PID` for one that ended. At the end of the input, which
comes with the death of the test process however that dies, it kills the sessions that are left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path


def session_members(leader: int) -> list[int]:
    """The living processes of the session that `leader` began. RQ's work horses leave its group, but not its session."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                members.append(int(stat.parent.name))
    return members


def main() -> None:
    """Keep the list until the input ends, then kill."""
    # A Ctrl-C is for the tests, which then end their servers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        if line[0] == "+":
            sessions.add(int(line[1:]))
        else:
            sessions.discard(int(line[1:]))
    for leader in sessions:
        for pid in session_members(leader):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
