"""B9: one update to a thousand sockets of one process, against a bare `group_send` of the same payload to a thousand consumers.

From `push.publish` (theirs: `group_send`, over a connection that is kept, as ours) until the last client has its frame. Our side
publishes a hint, fetches the snapshot and sends one text to all; that the snapshot is built and stored is before the time. Their
side sends the very same frame, as a dictionary through the layer and `send_json`. Each side has a server process of its own, both
live; the clients of both are one thread with raw sockets. `server_cpu`: processor time of the server process for one update.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from unittest.mock import patch

from channels.layers import get_channel_layer

from tests.app.models import Message, Room
from tests.benchmarks import live, plain
from tests.benchmarks.crowd import Crowd
from tests.benchmarks.harness import Part, by_turns, say
from tests.benchmarks.site import GROUP
from tests.benchmarks.stage import Stage, cpu_of
from visibility import push, recompute
from visibility.conf import settings
from visibility.read import read
from visibility.soft import pending
from visibility.soft.pending import Item
from visibility.soft.snapshots import Snapshot

SOCKETS, ROUNDS = 1_000, 40
BODIES = {"300 bytes": 200, "3 KB": 2_900}


def measure(stage: Stage) -> Iterator[Part]:
    """Seconds from publishing to the last client, for both servers and two sizes of the data."""
    for kind in live.kinds(stage.size):
        with ExitStack() as stack:
            both = Both(stage, stack, kind)
            for what, length in BODIES.items():
                say(f"  {kind}, {what}")
                yield both.compare(what, length)


class Both:
    """The two crowds, each on its server. Ours watch a room, whose only message is as long as it should be."""

    def __init__(self, stage: Stage, stack: ExitStack, kind: str) -> None:
        self.stage, self.kind, self.sockets = stage, kind, stage.size.n(SOCKETS, 10)
        (visitor,) = live.visitors(1)
        room = Room.objects.create(name="crowded")
        room.members.add(visitor.pk)
        self.room = str(room.pk)
        self.message = Message.objects.create(room=room, author_id=visitor.pk, text="")
        self.told: list[tuple[str, int]] = []
        self.our_site, self.bare_site = (stack.enter_context(live.asgi(kind)) for _ in range(2))
        self.ours = stack.enter_context(Crowd(self.our_site.port, "/ws/visibility/"))
        self.bare = stack.enter_context(Crowd(self.bare_site.port, "/ws/group/"))
        self.loop = plain.Loop()
        stack.callback(self.loop.stop)
        self.ours.open(self.sockets, [visitor.cookie])
        self.ours.say({"op": "watch", "id": 1, "resources": [f"room:{self.room}"]})
        self.ours.expect(b'"watched"', 60)
        self.bare.open(self.sockets)
        self.ours.idle(1.5)

    def compare(self, what: str, length: int) -> Part:
        """The part for a message of this length."""
        cpu: tuple[list[float], list[float]] = [], []

        def our_side() -> float:
            one = self.store(length)
            used, begun = cpu_of(self.our_site.process.pid), time.perf_counter()
            push.publish(self.told)
            took = self.ours.expect(str(one.version).encode(), 30) - begun
            cpu[0].append(cpu_of(self.our_site.process.pid) - used)
            return took

        def bare_side() -> float:
            version, data = time.time_ns() // 1000, {"messages": [str(time.time()).ljust(length, "x")]}
            frame = {
                "op": "update", "resource": f"room:{self.room}", "version": version, "data": data, "state": "fresh",
                "event_at": time.time(), "built_at": time.time(), "missed": 0,
            }  # fmt: skip
            used, begun = cpu_of(self.bare_site.process.pid), time.perf_counter()
            self.loop.run(get_channel_layer().group_send(GROUP, {"type": "bare.update", "frame": frame}))
            took = self.bare.expect(str(version).encode(), 30) - begun
            cpu[1].append(cpu_of(self.bare_site.process.pid) - used)
            return took

        turns = by_turns(our_side, bare_side, self.stage.size.times(ROUNDS), warm=2, seconds=40, before=(self.rest, self.rest))
        ours, theirs = median(cpu[0]), median(cpu[1])
        return turns.cost(
            f"to {self.sockets} sockets, {what}, {self.kind}", 1.0, "group_send and send_json",
            server_cpu_ours=ours, server_cpu_theirs=theirs, server_cpu_ratio=ours / theirs if theirs else 0.0,
        )  # fmt: skip

    def store(self, length: int) -> Snapshot:
        """A newer snapshot, of which nobody was told."""
        text = str(time.time()).ljust(length, "x")
        Message.objects.filter(pk=self.message.pk).update(text=text)
        self.told.clear()
        resource = f"room:{self.room}"
        with patch.object(push, "publish", self.told.extend):
            pending.pend(settings.lane("hot"), [Item(resource, int(time.time() * 1000), window=0.0)])
            recompute.drain("hot")
        if [name for name, _ in self.told] != [resource]:
            raise AssertionError(f"{resource} was not built: {self.told}")
        return read("room", self.room)

    def rest(self) -> None:
        """A tab that says nothing for 60 s is closed: both sides are asked, and answer what they answer."""
        for crowd in (self.ours, self.bare):
            crowd.say({"op": "ping", "have": {}})
            crowd.idle(0.2)
