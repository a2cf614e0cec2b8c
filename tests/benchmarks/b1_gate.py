"""B1 and B2: what the gate costs for one post, as the audience grows, and against its floor.

A hundred users watch their feeds and follow every author; the authors have 1,000 to 1,000,000 followers. Measured is the gate's
own time (as `event_processed` tells it): scope mark, look, narrowing, pending set, the RQ job, and the event's outcome.
The floor is what no gate of this kind can do without: one indexed select of the visible followers, one range of the visible
set, one RQ enqueue, with the same clients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.db import connection

from tests.app.models import Follow, Post
from tests.benchmarks.harness import Part, by_turns
from tests.benchmarks.stage import Stage
from visibility import recompute, signals
from visibility.models import DirtyFlag, Event, ScopeMark
from visibility.soft import leases
from visibility.soft.leases import Watch

WATCHING = 100
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def people(count: int) -> None:
    """Users 1 to `count`, by one statement a chunk."""
    for start in range(1, count + 1, 10_000):
        rows = [User(pk=n, username=f"u{n}", password="!") for n in range(start, min(start + 10_000, count + 1))]
        User.objects.bulk_create(rows, batch_size=1_000)


def follow(author: int, count: int) -> None:
    """The first `count` users follow this author; copied inside the database."""
    user, table = User._meta.db_table, Follow._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} (follower_id, author_id) SELECT id, %s FROM {user} WHERE id <= %s", [author, count])


class Posts:
    """One author's posts; the gate's seconds of the last one."""

    def __init__(self, redis: Any) -> None:
        self.redis, self.seconds = redis, 0.0
        signals.event_processed.connect(self._processed, weak=False, dispatch_uid="b1")

    def _processed(self, sender: str, seconds: float, **_: Any) -> None:
        self.seconds = seconds

    def post(self, author: int) -> float:
        """Save a post, and answer what its gate took."""
        self.seconds = 0.0
        Post(author_id=author, text="x").save()
        return self.seconds

    def empty(self) -> None:
        """Nothing is pending, and no job on its way: each post finds the lane as the first one did."""
        self.redis.delete("{vis:0}:pending:hot", "{vis:0}:wake:hot", "rq:queue:visibility-hot")


def prepare(stage: Stage) -> tuple[Posts, list[tuple[int, int]]]:
    """People, their follows, a hundred watchers; answers the authors with their audiences."""
    sizes = sorted({stage.size.n(size, WATCHING) for size in SIZES})
    people(sizes[-1])
    authors = []
    for n, size in enumerate(sizes):
        author = User.objects.create(username=f"author{n}").pk
        follow(author, size)
        authors.append((author, size))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    leases.renew([Watch(f"feed:{n}", f"{n}/tab", "watch", 3_600) for n in range(1, WATCHING + 1)])
    return Posts(stage.redis), authors


def scale(stage: Stage) -> Iterator[Part]:
    """The gate's time at the largest audience against the smallest, and the rows that hidden followers cost."""
    posts, authors = prepare(stage)
    (small, least), (large, most) = authors[0], authors[-1]
    turns = by_turns(
        partial(posts.post, large), partial(posts.post, small), stage.size.times(60), warm=5, before=(posts.empty, posts.empty)
    )
    curve = {}
    for author, size in authors:
        took = []
        for _ in range(stage.size.times(15)):
            posts.empty()
            took.append(posts.post(author))
        curve[f"ms_at_{size}"] = sorted(took)[len(took) // 2] * 1000
    yield turns.cost(f"gate time at {most:,} followers by that at {least:,}", 1.5, f"itself at {least:,} followers", **curve)
    before = (Event.objects.count(), DirtyFlag.objects.count(), ScopeMark.objects.count())
    posts.empty()
    posts.post(large)
    after = (Event.objects.count(), DirtyFlag.objects.count(), ScopeMark.objects.count())
    cold = sum(b - a for a, b in zip(before[1:], after[1:], strict=True))
    # A scope mark that exists is updated: count it as the row that is written.
    yield Part(what="rows written for the hidden, besides the event", ratio=float(max(cold, 1)), limit=1.0, against="one row")


def floor(stage: Stage) -> Iterator[Part]:
    """The gate against one select, one range and one enqueue."""
    posts, authors = prepare(stage)
    author = authors[-1][0]
    queue = recompute.queue("visibility-hot")

    def least() -> float:
        begun = time.perf_counter()
        keys = [int(key) for key in stage.redis.zrangebyscore("{vis:0}:visible:feed", time.time() * 1000, "+inf")]
        found = list(Follow.objects.filter(author=author, follower__in=keys).values_list("follower", flat=True))
        queue.enqueue_call("visibility.recompute.drain", args=("hot", 0), result_ttl=0, failure_ttl=60)
        took = time.perf_counter() - begun
        if len(found) != WATCHING:
            raise AssertionError(f"the floor found {len(found)} of {WATCHING}")
        return took

    turns = by_turns(
        partial(posts.post, author), least, stage.size.times(60), warm=5, before=(posts.empty, posts.empty), meter=stage.cpu
    )
    yield turns.cost("gate time of one post", 3.0, "one indexed select + one range + one RQ enqueue", watching=WATCHING)
