"""B3: how many keys one worker recomputes in a second: a drain of the lane, against one RQ job per key.

Both sides build the same resources (`counter`, one indexed row) with the same worker class, in burst mode; putting the work into
Redis is outside the time on both, and so are a worker's start and end: at the end RQ waits for the thread that listens for
commands, now for nothing, now for a whole second. The drain, in batches of 500, does all that it always does: marks are read,
snapshots stored under a fence, claims ended, watchers told over the channel layer. The plain job builds and stores, and tells
nobody. With the batches that a lane has by default (100) it is measured as well and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from django.conf import settings as django_settings
from django.test import override_settings
from django_rq import get_queue
from rq import SimpleWorker, Worker

from tests.app.models import Counter
from tests.benchmarks import plain
from tests.benchmarks.harness import Part, by_turns
from tests.benchmarks.stage import Stage
from visibility import recompute
from visibility.conf import DEFAULTS, settings
from visibility.soft import leases, levels, pending
from visibility.soft.pending import Item

LIMITS = {SimpleWorker: 50.0, Worker: 150.0}
KEYS = 8_000
JOBS = {SimpleWorker: 150, Worker: 50}


def measure(stage: Stage) -> Iterator[Part]:
    """Keys per second, for each worker class."""
    keys = [f"c{n}" for n in range(stage.size.n(KEYS, 20))]
    Counter.objects.bulk_create([Counter(name=key, value=n) for n, key in enumerate(keys)])
    for kind in (SimpleWorker, Worker):
        yield _against_jobs(stage, kind, keys)
    lanes = django_settings.VISIBILITY["LANES"]
    lanes = {**lanes, "hot": {**lanes["hot"], "batch": DEFAULTS["LANES"]["hot"]["batch"]}}
    with override_settings(VISIBILITY={**django_settings.VISIBILITY, "LANES": lanes}):
        part = _against_jobs(stage, SimpleWorker, keys)
    part.what += ", batches as by default"
    part.counts = False
    yield part


def _against_jobs(stage: Stage, kind: Any, keys: list[str]) -> Part:
    jobs = stage.size.n(JOBS[kind], 3)
    turns = by_turns(
        partial(_work, kind, "visibility-hot", len(keys)),
        partial(_work, kind, "plain", jobs),
        stage.size.times(7),
        before=(partial(_pend, keys), partial(_enqueue, keys[:jobs])),
        meter=stage.cpu,
        units=(len(keys), jobs),
    )
    left = levels.lane_state("hot")
    if left.pending or left.claimed:
        raise AssertionError(f"the drains left {left}")
    return turns.gain(
        f"keys per second, {kind.__name__}", LIMITS[kind], f"one RQ job per key, {kind.__name__}",
        ours_per_second=1 / median(turns.ours), theirs_per_second=1 / median(turns.floor), keys=len(keys), jobs=jobs,
    )  # fmt: skip


class _Clock:
    """Beside a worker class: when its work began and ended."""

    begun = ended = 0.0

    def bootstrap(self, *args: Any, **named: Any) -> None:
        super().bootstrap(*args, **named)  # type: ignore[misc]
        self.begun = time.perf_counter()

    def teardown(self) -> None:
        self.ended = time.perf_counter()
        super().teardown()  # type: ignore[misc]


def _work(kind: Any, name: str, keys: int) -> float:
    """Seconds per key of one worker in burst mode."""
    queue = get_queue(name)
    worker = type(kind.__name__, (_Clock, kind), {})([queue], connection=queue.connection)
    worker.work(burst=True, logging_level="ERROR")
    return float(worker.ended - worker.begun) / keys


def _pend(keys: list[str]) -> None:
    resources = [f"counter:{key}" for key in keys]
    leases.renew([leases.Watch(name, "1/tab") for name in resources])
    now = int(time.time() * 1000)
    pending.pend(settings.lane("hot"), [Item(name, now, window=0.0) for name in resources])
    recompute.enqueue_drain("hot", 0)


def _enqueue(keys: list[str]) -> None:
    queue = get_queue("plain")
    for key in keys:
        queue.enqueue_call(plain.build_one, args=("counter", key), result_ttl=0)
