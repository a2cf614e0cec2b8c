"""B6: what one more idle socket costs the server process in memory, against a bare AsyncJsonWebsocketConsumer on the same server.

Memory is what belongs to the process alone (private pages, `/proc/PID/smaps_rollup`): shared libraries would count for less
the more processes there are. Each side has a server process of its own. Both open sockets by turns, step by step; of each step
the bytes per socket are taken once the process has come to rest, and the first step, which also pays for imports, is not counted.

Two of our sockets are compared, and both count. *Watching* is what a tab is: a user who is logged in, presence, and three
watches, two of the user's own (`feed`, `badge`) and one that all share. *Present* has the user and presence only. The other side
is always the least that Channels offers: no user, no session, no group. What anybody would write instead knows its user and is in
some groups, so the comparison is a harder one than the choice that a project has. No client offers compression: its buffers
(hundreds of kilobytes a socket) would hide what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from tests.benchmarks import live
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import Part, by_turns, say
from tests.benchmarks.stage import Stage

SOCKETS, STEPS = 2_000, 4
PRIVATE = ("Private_Clean:", "Private_Dirty:")


def private_bytes(pid: int) -> int:
    """Memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(PRIVATE))


def measure(stage: Stage) -> Iterator[Part]:
    """Bytes per socket, for both servers: watching, and only present."""
    step = stage.size.n(SOCKETS // STEPS, 10)
    steps = STEPS if stage.size.factor >= 0.1 else 1
    people = live.visitors(step * (steps + 1))
    for kind in live.kinds(stage.size):
        for what, watches in {"watching": True, "present": False}.items():
            say(f"  {kind}, {what}")
            with ExitStack() as stack:
                ours = _ours(stack, kind, people, step, watches=watches)
                bare = _bare(stack, kind, step, "/ws/bare/")
                turns = by_turns(ours, bare, steps, seconds=300)
            yield turns.cost(f"bytes per socket, {what}, {kind}", 1.2, "AsyncJsonWebsocketConsumer", sockets=step * steps)


def _ours(stack: ExitStack, kind: str, people: list[live.Visitor], step: int, *, watches: bool) -> Callable[[], float]:
    site = stack.enter_context(live.asgi(kind))
    crowd = stack.enter_context(Crowd(site.port, "/ws/visibility/"))
    come = iter(people)

    def side() -> float:
        before = private_bytes(site.process.pid)
        some = list(islice(come, step))
        new = crowd.open(step, [one.cookie for one in some])
        if watches:
            for member, one in zip(new, some, strict=True):
                names = [f"feed:{one.pk}", f"badge:{one.pk}", "counter:all"]
                crowd.say({"op": "watch", "id": 1, "resources": names}, [member])
            crowd.expect(b'"watched"', 120, new)
        return (_rested(crowd, site.process.pid) - before) / step

    return side


def _bare(stack: ExitStack, kind: str, step: int, path: str) -> Callable[[], float]:
    site = stack.enter_context(live.asgi(kind))
    crowd = stack.enter_context(Crowd(site.port, path))

    def side() -> float:
        before = private_bytes(site.process.pid)
        crowd.open(step)
        return (_rested(crowd, site.process.pid) - before) / step

    return side


def _rested(crowd: Crowd, pid: int) -> int:
    """The process's memory after a heartbeat of all, once it has not changed for a second."""
    crowd.say({"op": "ping", "have": {}})
    ends, now = time.monotonic() + 30, private_bytes(pid)
    while time.monotonic() < ends:
        crowd.idle(1.2)
        before, now = now, private_bytes(pid)
        if abs(now - before) < 65_536:
            break
    return now
