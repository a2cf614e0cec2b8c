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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks import live
from tests.benchmarks.crowd import AT_ONCE, Crowd
from tests.benchmarks.harness import Part, Turns, say
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
        took: dict[str, list[float]] = {}
        with ExitStack() as stack:
            sides = {name: Side(stack, kind, name) for name in ("watching", "present", "bare")}
            for n in range(steps + 1):
                say(f"  {kind}, {(n + 1) * step} sockets a side")
                for name in sides if n % 2 else reversed(sides):
                    cost = sides[name].grow(people[n * step : (n + 1) * step], sides.values())
                    if n:
                        took.setdefault(name, []).append(cost)
        for name in ("watching", "present"):
            turns = Turns(took[name], took["bare"])
            yield turns.cost(f"bytes per socket, {name}, {kind}", 1.2, "AsyncJsonWebsocketConsumer", sockets=step * steps)


class Side:
    """One server process and its clients, which are `watching`, `present` or `bare`."""

    def __init__(self, stack: ExitStack, kind: str, name: str) -> None:
        self.name = name
        self.site = stack.enter_context(live.asgi(kind))
        self.crowd = stack.enter_context(Crowd(self.site.port, "/ws/bare/" if name == "bare" else "/ws/visibility/"))

    def grow(self, people: Sequence[live.Visitor], sides: Iterable[Side]) -> float:
        """Open a socket for each of these; answers the bytes that one cost. All sides' clients are kept alive meanwhile."""
        pid = self.site.process.pid
        before = private_bytes(pid)
        for start in range(0, len(people), AT_ONCE):
            part = people[start : start + AT_ONCE]
            new = self.crowd.open(len(part), [one.cookie for one in part] if self.name != "bare" else [""])
            if self.name == "watching":
                for member, one in zip(new, part, strict=True):
                    names = [f"feed:{one.pk}", f"badge:{one.pk}", "counter:all"]
                    self.crowd.say({"op": "watch", "id": 1, "resources": names}, [member])
                self.crowd.expect(b'"watched"', 60, new)
            for side in sides:
                side.crowd.keep()
        return (self._rested() - before) / len(people)

    def _rested(self) -> int:
        """The process's memory after a heartbeat of all, once it does not change for a second."""
        pid = self.site.process.pid
        self.crowd.say({"op": "ping", "have": {}})
        ends, now = time.monotonic() + 15, private_bytes(pid)
        while time.monotonic() < ends:
            self.crowd.idle(1.2)
            before, now = now, private_bytes(pid)
            if abs(now - before) < 65_536:
                break
        return now
