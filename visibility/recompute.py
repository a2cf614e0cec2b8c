"""The RQ jobs. A job carries a lane and a shard, never a key: losing, doubling or deleting one costs a moment."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import django_rq
from django.db import close_old_connections
from rq import Queue

from visibility import dirty, metrics
from visibility.build import build_claimed
from visibility.conf import Lane, settings
from visibility.datatypes import DataType, Hidden, registry
from visibility.exceptions import RedisAway
from visibility.points import reach
from visibility.soft import pending
from visibility.soft.pending import Claim, Claimed, Done

logger = logging.getLogger("visibility")
_queues: dict[tuple[int, str], Queue] = {}
MAX_WAIT = 2.0


def queue(name: str) -> Queue:
    """The RQ queue of this name, kept per process: django-rq would make a client and a pool per call."""
    slot = (os.getpid(), name)
    if slot not in _queues:
        _queues[slot] = django_rq.get_queue(name)
    return _queues[slot]


def enqueue(name: str, function: str, *args: Any) -> None:
    """Enqueue a job now, whatever transaction is open: callers are past their commit."""
    timeout = int(settings.BUILD_TIMEOUT) + 60
    queue(name).enqueue_call(function, args=args, result_ttl=0, failure_ttl=60, timeout=timeout)


def enqueue_drain(lane: str, shard: int) -> None:
    """One job "drain this lane"; the wake flag sees to it that there are few."""
    enqueue(settings.lane(lane).queue, "visibility.recompute.drain", lane, shard)


def enqueue_fanout() -> None:
    """One job "run the gate over the waiting events", on the first lane's queue."""
    first = next(iter(settings.LANES))
    enqueue(settings.lane(first).queue, "visibility.recompute.fanout")


def fanout() -> int:
    """Take waiting events through the gate, many in one pass; answers how many."""
    from visibility import gate

    close_old_connections()
    try:
        return gate.redrive()
    finally:
        metrics.flush()
        close_old_connections()


def drain(lane: str, shard: int = 0) -> int:
    """Build what is due in a lane until nothing is, or the lane's time budget is over; answers how many were built.

    An unknown lane (a job of another release) is reported and ignored. Errors of single keys are theirs alone.
    """
    try:
        options = settings.lane(lane)
    except LookupError:
        logger.warning("a job asks to drain the unknown lane %r; ignored", lane)
        return 0
    close_old_connections()
    try:
        return _drain(options, shard)
    except RedisAway as error:
        logger.warning("drain of lane %s stopped: %s", lane, error)
        return 0
    finally:
        metrics.flush()
        close_old_connections()


def _drain(lane: Lane, shard: int) -> int:
    ends, built, last_try = time.monotonic() + lane.budget, 0, False
    while True:
        owned = pending.claim(lane.name, shard, lane.batch, settings.BUILD_LEASE)
        reach("drain.claimed")
        if owned.due and owned.rows:
            # More than one batch waits: let a second worker help, if one is free.
            for _ in pending.rouse(lane.name):
                enqueue_drain(lane.name, shard)
        if owned.rows:
            last_try = False
            built += work(lane, owned)
            close_old_connections()
        if time.monotonic() >= ends:
            break
        if owned.rows:
            continue
        if last_try and not 0 <= owned.next_ms <= MAX_WAIT * 1000:
            return built
        if queue(lane.queue).count and not 0 <= owned.next_ms <= 50:
            break
        wait = owned.next_ms / 1000 if 0 <= owned.next_ms <= MAX_WAIT * 1000 else lane.idle
        metrics.flush()
        last_try = not pending.linger(lane.name, shard, min(max(wait, 0.001), MAX_WAIT))
    for again in pending.rouse(lane.name):
        enqueue_drain(lane.name, again)
    return built


def work(lane: Lane, owned: Claim) -> int:
    """Deal with one claimed batch: build what is wanted, mark the rest; answers how many were stored."""
    stored = 0
    rows = sorted(owned.rows, key=lambda row: row.resource.partition(":")[0])
    for name, group in groupby(rows, key=lambda row: row.resource.partition(":")[0]):
        part = list(group)
        data_type = registry.find(name)
        if data_type is None:
            logger.warning(
                "lane %s holds %d resources of the unknown type %r; left for a worker that knows it", lane.name, len(part), name
            )
            later = [(row, 30.0, f"unknown data type {name!r}", False) for row in part]
            pending.fail(lane.name, owned, later)
            continue
        wanted = [row for row in part if row.visible or row.forced]
        unwanted = [row for row in part if not (row.visible or row.forced)]
        if unwanted:
            put_off(data_type, lane, owned, unwanted)
        if wanted:
            out = build_claimed(data_type, lane, owned, wanted)
            stored += sum(one.stored is not None for one in out.values())
    return stored


def put_off(data_type: DataType, lane: Lane, owned: Claim, rows: Sequence[Claimed]) -> None:
    """Nobody watches these any more: mark first, then drop what has not moved (rule 8)."""
    cut = len(data_type.name) + 1
    if data_type.hidden is Hidden.DROP:
        pending.discard(lane.name, [row.resource for row in rows])
        return
    dirty.mark(data_type.name, {row.resource[cut:]: 1 for row in rows})
    reach("drain.marked")
    pending.done(lane.name, owned, [Done(row, "drop", data_type.coalesce) for row in rows])
    metrics.count("saved_builds", len(rows), data_type=data_type.name)
