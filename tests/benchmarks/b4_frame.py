"""B4: from a commit to the frame at a socket client, against a plain RQ job that does the same build and a bare `group_send`.

Ours: a model is saved; when the transaction commits, the gate finds the resource watched and wakes its lane; a
`visibility_worker` (a SimpleWorker, the maintenance loop in its parent) claims, builds, stores and publishes; the server process
fetches and sends. Theirs: a job is enqueued on commit; a SimpleWorker builds the same data and calls `group_send`; an
AsyncJsonWebsocketConsumer sends it on. The time runs from just before the COMMIT (ours has an outbox row in it) to the frame in a
client of the `websockets` library; the save itself is before. Each side has an ASGI server and a worker of its own, all alive at
the same time, on one Redis and one database. Their updates come one by one, always in the same order, with a pause after each.

Two paces, because a drain that has emptied its lane waits `idle` = 0.25 s for more. *Apart*: more than that between two changes,
so that each takes an RQ job, as theirs does. *Close*: less, so that most are served by the drain that waits. Both are slower than
the coalesce window of the type (0.05 s): each change is a leading edge, which is built at once; the window adds nothing.

Theirs tells the group with `async_to_sync`, as in Channels' documentation, which opens a connection to Redis a call. A third side
keeps that connection in a thread with an event loop; it is shown, and does not count.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from django.db import transaction
from django_rq import get_queue
from websockets.sync.client import ClientConnection, connect

from tests.app.models import Counter
from tests.benchmarks import live, plain
from tests.benchmarks.harness import Part, at_percentile, say
from tests.benchmarks.stage import Stage, cpu_of
from tests.support import servers

# Seconds between one update and the next; a side comes every third time.
PACES = {"apart": 0.12, "close": 0.03}
SAMPLES = 300
PERCENTS = (50, 99)
WARM = 3


def measure(stage: Stage) -> Iterator[Part]:
    """Seconds from commit to frame, for both servers and two paces: p50 and p99."""
    with ExitStack() as stack:
        ours = stack.enter_context(
            servers.command("visibility_worker", "--lane", "hot", ready="visibility workers", settings=live.SETTINGS)
        )
        theirs = stack.enter_context(servers.rq_worker("plain", settings=live.SETTINGS))
        for kind in live.kinds(stage.size):
            with ExitStack() as sites:
                both = Both(stage, sites, kind)
                for pace in PACES:
                    say(f"  {kind}, {pace}")
                    yield from both.compare(pace, ours.pid, theirs.pid)


class Both:
    """A client on each side's server; ours watches a counter that the plain side does not touch."""

    def __init__(self, stage: Stage, stack: ExitStack, kind: str) -> None:
        self.stage, self.kind = stage, kind
        self.name = f"ours-{kind}"
        Counter.objects.bulk_create([Counter(name=self.name), Counter(name=f"plain-{kind}")])
        self.counter = Counter.objects.get(name=self.name)
        self.value = itertools.count(1)
        self.queue = get_queue("plain", commit_mode="auto")
        (visitor,) = live.visitors(1)
        self.our_site, self.bare_site = (stack.enter_context(live.asgi(kind)) for _ in range(2))
        url = f"ws://127.0.0.1:{self.our_site.port}/ws/visibility/"
        self.ours = stack.enter_context(connect(url, additional_headers={"Cookie": visitor.cookie}, compression=None))
        self.bare = stack.enter_context(connect(f"ws://127.0.0.1:{self.bare_site.port}/ws/group/", compression=None))
        self.ours.send(json.dumps({"op": "watch", "id": 1, "resources": [f"counter:{self.name}"]}))
        while json.loads(self.ours.recv(30))["op"] != "watched":
            pass

    def change(self) -> float:
        """One update through the package; seconds."""
        self.counter.value = next(self.value)
        with transaction.atomic():
            self.counter.save()
            begun = time.perf_counter()
        return _shown(self.ours, self.counter.value) - begun

    def plain(self, job: Callable[..., None]) -> float:
        """One update by a plain job; seconds."""
        value, name = next(self.value), f"plain-{self.kind}"
        with transaction.atomic():
            # Without signals: on this side nobody listens to them.
            Counter.objects.filter(name=name).update(value=value)
            transaction.on_commit(lambda: self.queue.enqueue_call(job, args=("counter", name), result_ttl=0))
            begun = time.perf_counter()
        return _shown(self.bare, value) - begun

    def compare(self, pace: str, our_worker: int, bare_worker: int) -> Iterator[Part]:
        """The parts of one pace."""
        sides: dict[str, Callable[[], float]] = {
            "ours": self.change,
            "plain": lambda: self.plain(plain.build_and_tell),
            "kept": lambda: self.plain(plain.build_and_tell_kept),
        }
        took: dict[str, list[float]] = {name: [] for name in sides}
        samples, chance = self.stage.size.n(SAMPLES, 5), random.Random(5)
        used = [0.0, 0.0]
        for n in range(-WARM, samples):
            if n == 0:
                used = self._cpu(our_worker, bare_worker)
            for name, side in sides.items():
                seconds = side()
                if n >= 0:
                    took[name].append(seconds)
                time.sleep(PACES[pace] * chance.uniform(0.8, 1.2))
            # The tab's heartbeat.
            self.ours.send('{"op":"ping","have":{}}')
        cpu = [now - before for now, before in zip(self._cpu(our_worker, bare_worker), used, strict=True)]
        figures: dict[str, Any] = {"cpu_ours": cpu[0] / samples, "cpu_theirs": cpu[1] / samples / 2}
        for against, name in {
            "a plain RQ job and group_send": "plain",
            "the same with a connection that is kept": "kept",
        }.items():
            for percent in PERCENTS:
                what = f"commit to frame, p{percent}, {pace}, {self.kind}"
                part = at_percentile(took["ours"], took[name], percent, what, 1.5, against, **figures)
                part.counts = name == "plain"
                yield part

    def _cpu(self, *workers: int) -> list[float]:
        """Processor seconds of each side's server and worker so far; Redis and the database serve both."""
        sites = (self.our_site, self.bare_site)
        return [cpu_of(worker) + cpu_of(site.process.pid) for worker, site in zip(workers, sites, strict=True)]


def _shown(client: ClientConnection, value: int) -> float:
    """When the client had the frame with this value."""
    while True:
        frame = json.loads(client.recv(30))
        if "data" in frame and frame["data"]["value"] == value:
            return time.perf_counter()
