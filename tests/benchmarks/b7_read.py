"""B7: `read()` of a watched, fresh resource against a raw GET and `json.loads`; and how often 200 readers build an expired key.

Both sides end with the decoded data in hand: `read(…).data` against `json.loads(client.get(…))`, on snapshots of 300 bytes,
3 KB and 60 KB. The peers cache the same data under the same client library; they say nothing about whether it is current.

The 200 readers are four processes with fifty asynchronous readers each, that start together; and fifty threads in one process.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from django.core.cache import caches
from django.db import connections

from tests.benchmarks.harness import Part, by_turns, timed
from tests.benchmarks.herd import register_herd
from tests.benchmarks.stage import Stage
from tests.support import servers, wait_for
from visibility.read import read
from visibility.soft import leases

READS = 400
SIZES = {"300 bytes": 1, "3 KB": 10, "60 KB": 200}
PROCESSES, READERS = 4, 50


def measure(stage: Stage) -> Iterator[Part]:
    """Seconds per read, at three sizes; then builds."""
    from visibility.datatypes import DataType, register

    @register
    class Page(DataType):
        """Rows of about 300 bytes, as many as the key says."""

        name = "page"
        ttl, soft_ttl = 3600, 3600

        def build(self, key: str) -> Any:
            return {"rows": [{"id": n, "text": "x" * 240, "who": "somebody", "at": 1.5} for n in range(int(key))]}

    times = stage.size.n(READS, 5)
    leases.renew([leases.Watch(f"page:{rows}", "1/tab", "watch", 3600) for rows in SIZES.values()])
    for what, rows in SIZES.items():
        data = read("page", rows).data
        stage.redis.set(f"raw:{rows}", json.dumps(data, separators=(",", ":")))
        if read("page", rows).state != "fresh":
            raise AssertionError("the resource is not fresh")
        turns = by_turns(
            timed(lambda rows=rows: read("page", rows).data, times),  # type: ignore[misc]
            timed(lambda rows=rows: json.loads(stage.redis.get(f"raw:{rows}")), times),  # type: ignore[misc]
            stage.size.times(25), seconds=5, meter=stage.cpu,
        )  # fmt: skip
        yield turns.cost(f"a fresh read, {what}", 1.5, "GET and json.loads, redis-py", reads=times)
    yield from _peers(stage, times)
    yield from _herd(stage)


def _peers(stage: Stage, times: int) -> Iterator[Part]:
    rows = SIZES["3 KB"]
    data = read("page", rows).data
    for name, made in PEERS.items():
        try:
            get = made(stage, data)
        except ImportError:
            continue
        turns = by_turns(
            timed(lambda: read("page", rows).data, times), timed(get, times), stage.size.times(15), seconds=3, meter=stage.cpu
        )
        part = turns.cost("a fresh read, 3 KB", 1.0, name, reads=times)
        part.counts = False
        yield part


def _django(stage: Stage, data: Any) -> Callable[[], Any]:
    cache = caches.create_connection("redis")
    cache.set("page", data)
    return lambda: cache.get("page")


def _dogpile(stage: Stage, data: Any) -> Callable[[], Any]:
    region = import_module("dogpile.cache").make_region().configure("dogpile.cache.redis", arguments={"url": _url(stage)})
    region.set("page", data)
    return lambda: region.get_or_create("page", lambda: data)


def _url(stage: Stage) -> str:
    return str(stage.server.url)


PEERS = {"django.core.cache, RedisCache": _django, "dogpile.cache, redis backend": _dogpile}


def _herd(stage: Stage) -> Iterator[Part]:
    """Builds of a key that 200 readers ask for at the same moment, its snapshot being gone."""
    readers = stage.size.n(READERS, 5)
    processes = PROCESSES if stage.size.factor >= 1 else 2
    rounds = stage.size.times(5)
    builds = [_together(stage, n, processes, readers) for n in range(rounds)]
    worst = max(builds)
    yield Part(
        what=f"builds for {processes * readers} readers of {processes} processes",
        ratio=float(worst), limit=1.0, against="one build",
        figures={"rounds": rounds, "builds": str(builds)},
    )  # fmt: skip
    builds = [_threads(stage, n, readers) for n in range(rounds)]
    yield Part(
        what=f"builds for {readers} threads of one process", ratio=float(max(builds)), limit=1.0, against="one build",
        figures={"rounds": rounds, "builds": str(builds)},
    )  # fmt: skip


def _built(stage: Stage) -> int:
    return int(stage.redis.get("herd:builds") or 0)


def _together(stage: Stage, n: int, processes: int, readers: int) -> int:
    stage.redis.delete("herd:builds", "herd:ready", "herd:go", "herd:read")
    started = [servers.python("-m", "tests.benchmarks.herd", f"p{n}", str(readers)) for _ in range(processes)]
    try:
        wait_for(lambda: int(stage.redis.get("herd:ready") or 0) == processes, 60, "the readers are ready")
        stage.redis.set("herd:go", time.time() + 0.5)
        for process in started:
            if process.popen.wait(60) != 0:
                raise AssertionError(process.output[-2000:])
    finally:
        for process in started:
            process.stop()
    if int(stage.redis.get("herd:read") or 0) != processes * readers:
        raise AssertionError("not every reader got the data")
    return _built(stage)


def _threads(stage: Stage, n: int, readers: int) -> int:
    register_herd()
    stage.redis.delete("herd:builds")
    barrier = threading.Barrier(readers)

    def one() -> None:
        barrier.wait()
        read("herd", f"t{n}")
        connections.close_all()

    threads = [threading.Thread(target=one) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _built(stage)
