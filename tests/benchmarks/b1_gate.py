"""B1 and B2: what the gate takes for one save of a Post, a hundred of whose author's followers have their feed open.

The gate's time is what `event_processed` reports: from the commit until everything is pended, marked, woken and noted. Each save
is a transaction of its own. Before each the lane is emptied, so that the gate pends all hundred feeds and enqueues the job.

B1 compares an author with a million followers to one with a thousand, the two by turns; rows written for the cold are counted in
the statements themselves. B2 compares the gate, at a million, with what it cannot do without: one select over the index that
finds which of the hundred are among the followers, one range of the visible, one enqueued RQ job.
"""

from __future__ import annotations

import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction

from tests.app.models import Follow, Post
from tests.benchmarks import people
from tests.benchmarks.harness import Part, by_turns
from tests.benchmarks.stage import Stage
from visibility import recompute
from visibility.signals import event_processed

AUDIENCES = [1_000, 10_000, 100_000, 1_000_000]
_WRITES = re.compile(r'\s*(?:INSERT(?: OR IGNORE)? INTO|UPDATE|DELETE FROM)\s+["`]?(\w+)')


class Gate:
    """Saves a Post and tells how long the gate took, from the event's own report."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.took = stage, 0.0
        event_processed.connect(self._note)

    def _note(self, seconds: float, error: str, **_: Any) -> None:
        if error:
            raise AssertionError(error)
        self.took = seconds

    def empty(self) -> None:
        """The lane and its queue as before the first change."""
        redis, base = self.stage.redis, "{vis:0}"
        redis.delete(f"{base}:pending:hot", f"{base}:claimed:hot", f"{base}:wake:hot")
        recompute.queue("visibility-hot").empty()

    def save(self, author: User) -> float:
        self.took = 0.0
        with transaction.atomic():
            Post.objects.create(author=author, text="new")
        if not self.took:
            raise AssertionError("the gate did not end well")
        return self.took

    def pended(self) -> int:
        return int(self.stage.redis.zcard("{vis:0}:pending:hot"))


@contextmanager
def _rows(tally: Tally[str]) -> Iterator[None]:
    """Count the rows that are written, by table."""

    def count(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        out = execute(sql, params, many, context)
        if (found := _WRITES.match(sql)) is not None:
            tally[found[1]] += max(1, context["cursor"].rowcount)
        return out

    with connection.execute_wrapper(count):
        yield


def _ready(stage: Stage) -> tuple[Gate, list[User], list[str]]:
    sizes = [stage.size.n(size, 100) for size in AUDIENCES]
    authors = people.grow(sizes)
    keys = people.look(sizes[0])
    gate = Gate(stage)
    gate.empty()
    gate.save(authors[-1])
    if gate.pended() != len(keys):
        raise AssertionError(f"{gate.pended()} feeds went hot, not {len(keys)}")
    return gate, authors, keys


def scale(stage: Stage) -> Iterator[Part]:
    """B1."""
    gate, authors, keys = _ready(stage)
    between = {}
    for size, author in zip(AUDIENCES[1:-1], authors[1:-1], strict=True):
        took = []
        for _ in range(stage.size.times(15)):
            gate.empty()
            took.append(gate.save(author))
        between[f"at_{size // 1000}k"] = median(took)
    turns = by_turns(
        partial(gate.save, authors[-1]),
        partial(gate.save, authors[0]),
        stage.size.times(80),
        warm=5,
        before=(gate.empty, gate.empty),
    )
    yield turns.cost("gate at 1M followers", 1.5, "the same gate at 1k followers", watching=len(keys), **between)
    tally: Tally[str] = Tally()
    gate.empty()
    with _rows(tally):
        gate.save(authors[-1])
    cold = sum(n for table, n in tally.items() if table.startswith("visibility_") and table != "visibility_event")
    yield Part(
        what="rows written for the cold, besides the event", ratio=float(cold), limit=1.0, against="one row",
        figures={"rows": ", ".join(f"{table} {n}" for table, n in sorted(tally.items()))},
    )  # fmt: skip


def floor(stage: Stage) -> Iterator[Part]:
    """B2."""
    gate, authors, keys = _ready(stage)
    author, queue = authors[-1], recompute.queue("plain")
    quote = connection.ops.quote_name
    follower, owner = quote("follower_id"), quote("author_id")
    wanted = ", ".join(["%s"] * len(keys))
    sql = f"SELECT {follower} FROM {quote(Follow._meta.db_table)} WHERE {owner} = %s AND {follower} IN ({wanted})"

    def least() -> float:
        begun = time.perf_counter()
        visible = stage.redis.zrangebyscore("{vis:0}:visible:feed", f"({int(time.time() * 1000)}", "+inf")
        with connection.cursor() as cursor:
            cursor.execute(sql, [author.pk, *map(int, visible)])
            found = cursor.fetchall()
        queue.enqueue_call("visibility.recompute.drain", args=("hot", 0), result_ttl=0, failure_ttl=60)
        took = time.perf_counter() - begun
        if not len(found) == len(visible) == len(keys):
            raise AssertionError(f"{len(found)} of {len(visible)} found")
        return took

    turns = by_turns(partial(gate.save, author), least, stage.size.times(80), warm=5, before=(gate.empty, queue.empty))
    yield turns.cost(
        "gate of one save, 1M followers, 100 watching", 3.0,
        "one ZRANGEBYSCORE, one indexed select without the ORM, one RQ enqueue on a kept queue",
    )  # fmt: skip
