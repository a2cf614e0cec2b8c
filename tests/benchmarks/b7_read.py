"""B7: a read of a watched, fresh resource against a raw GET and a decode of the same JSON; and readers of an expired key.

Both sides use one kept client and end with Python data. The body has about two kilobytes, as a page of a feed has.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connections

from tests.benchmarks.harness import Part, by_turns, timed
from tests.benchmarks.stage import Stage
from visibility.datatypes import DataType, register
from visibility.read import read
from visibility.soft import leases
from visibility.soft.client import client

READERS = 200
ROWS = [{"id": n, "author": f"user{n}", "text": "something that somebody wrote, of usual length"} for n in range(20)]


class Page(DataType):
    """A page that takes a moment to build, and counts its builds."""

    name = "benchmarkpage"
    ttl, soft_ttl = 3_600, 3_600
    builds = 0

    def build_many(self, keys: Sequence[str]) -> dict[str, Any]:
        type(self).builds += len(keys)
        time.sleep(0.05)
        return dict.fromkeys(keys, ROWS)


def measure(stage: Stage) -> Iterator[Part]:
    """Seconds per read; builds for many readers who come at one moment."""
    register(Page)
    leases.renew([leases.Watch("benchmarkpage:a", "1/tab", "watch", 3_600)])
    body = read("benchmarkpage", "a").body
    read("benchmarkpage", "a")
    raw = client()
    raw.set("raw:page", body, ex=3_600)
    reads = stage.size.n(1_000, 20)
    turns = by_turns(
        timed(lambda: read("benchmarkpage", "a").data, reads),
        timed(lambda: json.loads(raw.get("raw:page")), reads),
        stage.size.times(30),
        warm=2,
        meter=stage.cpu,
    )
    yield turns.cost("a read of a watched fresh resource", 1.5, "GET + json.loads, redis-py", bytes=len(body), reads=reads)

    readers = stage.size.n(READERS, 10)
    Page.builds = 0
    start, answers = threading.Barrier(readers), list[int]()

    def one() -> None:
        start.wait()
        answers.append(len(read("benchmarkpage", "expired").data))
        connections.close_all()

    threads = [threading.Thread(target=one) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if answers != [len(ROWS)] * readers:
        raise AssertionError(f"{len(answers)} of {readers} readers were answered")
    yield Part(what=f"builds for {readers} readers of a missing key", ratio=float(Page.builds), limit=1.0, against="one build")
