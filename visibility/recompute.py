"""The RQ jobs. A job carries a lane and a shard, never a key: losing, doubling or deleting one costs a moment."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any
from uuid import uuid4

import django_rq
from redis.exceptions import RedisError
from rq import Queue, Worker, get_current_job
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from visibility import dirty, pressure, push
from visibility.builds import build_claimed, holding
from visibility.builds.ahead import QUICK, Ahead
from visibility.builds.processes import Stop, stoppable, time_limit
from visibility.conf import Lane, settings
from visibility.datatypes import DataType, Hidden, registry
from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.points import reach
from visibility.soft import claims, leases, levels
from visibility.soft.claims import Claim, Claimed, Done
from visibility.sql import hygiene
from visibility.wake import wake

logger = logging.getLogger("visibility")
ALONE_AFTER = 2
GIVE_UP_AFTER_LOST = 8
PEEK = 10
LISTED_SECONDS = 1.0
PRECOMPUTE_SECONDS = 2.0
PRECOMPUTE_BATCH = 20
_queues: dict[tuple[int, str], Queue] = {}
_pace: dict[str, float] = {}
_listed: dict[str, float] = {}


def queue(name: str) -> Queue:
    """The RQ queue of this name, kept per process: django-rq would make a client and a pool per call."""
    slot = (os.getpid(), name)
    if slot not in _queues:
        # Callers are past their commit, whatever the project's commit mode and whatever transaction is open elsewhere.
        _queues[slot] = django_rq.get_queue(name, commit_mode="auto")
    return _queues[slot]


def enqueue(name: str, function: str, *args: Any, hint: str) -> None:
    """Enqueue a job now. `hint` begins its id, so that a look at the queue tells what waits there."""
    timeout = int(2 * settings.BUILD_TIMEOUT) + 60
    job_id = f"{hint}{uuid4().hex}"
    found = queue(name)
    # All that RQ writes for a job goes out at once; a queue that runs its jobs in the caller's process takes no pipeline.
    pipe = found.connection.pipeline() if found.is_async else None
    found.enqueue_call(function, args=args, result_ttl=0, failure_ttl=60, timeout=timeout, job_id=job_id, pipeline=pipe)
    if pipe is not None:
        pipe.execute()


def _hint(lane: str, shard: int) -> str:
    return "visibility-drain-" + "".join(c if c.isascii() and c.isalnum() else "_" for c in lane) + f"-{shard}-"


def _peek(name: str) -> list[str]:
    """The ids of the jobs next in line in a queue."""
    return [str(job_id) for job_id in queue(name).get_job_ids(0, PEEK)]


def enqueue_drain(lane: str, shard: int, *, look: bool = True) -> None:
    """One job "drain this lane", unless one waits already; `look` for that."""
    name, hint = settings.lane(lane).queue, _hint(lane, shard)
    if not look or not any(job_id.startswith(hint) for job_id in _peek(name)):
        enqueue(name, "visibility.recompute.drain", lane, shard, hint=hint)


def enqueue_fanout() -> None:
    """One job "run the gate over the waiting events", on the first lane's queue."""
    first = next(iter(settings.LANES))
    enqueue(settings.lane(first).queue, "visibility.recompute.fanout", hint="visibility-fanout-")


def enqueue_precompute() -> None:
    """One job "build hidden dirty resources" on the last lane's queue, if nothing waits there."""
    last = settings.lane(list(settings.LANES)[-1])
    if not _peek(last.queue):
        enqueue(last.queue, "visibility.recompute.precompute", hint="visibility-precompute-")


def fanout() -> int:
    """Take waiting events through the gate, many in one pass; answers how many."""
    from visibility import gate

    _begin()
    try:
        return gate.redrive()
    finally:
        _end()


def _list_worker() -> None:
    """Put this job's worker back on RQ's lists: a flush took it from there, and RQ writes them at a worker's start only."""
    job, now = get_current_job(), time.monotonic()
    if job is None or not job.worker_name or _listed.get(job.worker_name, 0.0) > now:
        return
    _listed.clear()
    _listed[job.worker_name] = now + LISTED_SECONDS
    key = f"{Worker.redis_worker_namespace_prefix}{job.worker_name}"
    with suppress(RedisError), job.connection.pipeline() as pipe:
        for listing in (REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY % job.origin):
            pipe.sadd(listing, key)
        pipe.execute()


def _begin() -> None:
    hygiene.forget_inherited()
    hygiene.close_old()
    _list_worker()


def _end() -> None:
    push.settle()
    metrics.flush()
    hygiene.close_old()


def drain(lane: str, shard: int = 0) -> int:
    """Build what is due in a lane until nothing is, or the lane's time budget is over; answers how many were built.

    An unknown lane (a job of another release) is reported and ignored. Errors of single keys are theirs alone. Where the
    worker is told to stop, the batch under way is finished; where it is stopped at once, its claims are given back.
    """
    try:
        options = settings.lane(lane)
    except LookupError:
        logger.warning("a job asks to drain the unknown lane %r; ignored", lane)
        return 0
    _begin()
    try:
        with stoppable() as stop:
            return _drain(options, shard, stop)
    except RedisAway as error:
        logger.warning("drain of lane %s stopped: %s", lane, error)
        return 0
    finally:
        _end()


def _limit(lane: Lane) -> int:
    """How many resources to claim at once: the lane's batch, or fewer where builds were so slow that they fill its budget."""
    pace = _pace.get(lane.name, 0.0)
    return lane.batch if not pace else max(1, min(lane.batch, int(lane.budget / 2 / pace)))


def _drain(lane: Lane, shard: int, stop: Stop) -> int:
    ahead = Ahead(lane, shard)
    try:
        return _work_off(lane, shard, stop, ahead)
    finally:
        ahead.drop()


def _is_quick(lane: Lane, owned: Claim) -> bool:
    """Whether more is due, and this batch is sure to be over in a moment: nothing in it has failed or cost a worker before."""
    quick = 0 < _pace.get(lane.name, 0.0) * len(owned.rows) < QUICK
    return quick and owned.due > 0 and not any(row.tries or row.lost for row in owned.rows)


def _work_off(lane: Lane, shard: int, stop: Stop, ahead: Ahead) -> int:
    ends, built, helped, last_try, more = time.monotonic() + lane.budget, 0, False, False, False
    while not stop and (ahead or time.monotonic() < ends):
        if lane.gather and not more:
            time.sleep(lane.gather)
        owned = ahead.take() or claims.claim(lane.name, shard, _limit(lane), settings.BUILD_LEASE, 0.0 if last_try else lane.idle)
        reach("drain.claimed")
        if owned.rows:
            if owned.due and not helped:
                # More than one batch waits: let a second worker help, if one is free.
                helped = True
                enqueue_drain(lane.name, shard)
            started = time.monotonic()
            if started < ends and _is_quick(lane, owned):
                ahead.begin(_limit(lane))
            built += work(lane, owned)
            _pace[lane.name] = (time.monotonic() - started) / len(owned.rows)
            hygiene.close_broken()
            last_try, more = False, owned.due > 0
            continue
        if not owned.bell_ms:
            return built
        if any(not job_id.startswith(_hint(lane.name, shard)) for job_id in _peek(lane.queue)):
            claims.stop_lingering(owned, lane.name)
            break
        metrics.flush()
        last_try = not claims.linger(owned, lane.name)
        more = False
    wake(lane.name, levels.rouse(lane.name))
    return built


def _batches(rows: Sequence[Claimed]) -> Iterator[tuple[str, list[Claimed]]]:
    """Rows by type; those that failed before, or whose workers died, at the end and each alone: one may be poison."""

    def name(row: Claimed) -> str:
        return row.resource.partition(":")[0]

    suspects = [row for row in rows if row.tries or row.lost >= ALONE_AFTER]
    clean = sorted((row for row in rows if not row.tries and row.lost < ALONE_AFTER), key=name)
    for kind, group in groupby(clean, key=name):
        yield kind, list(group)
    for row in sorted(suspects, key=lambda row: row.lost):
        yield name(row), [row]


def work(lane: Lane, owned: Claim) -> int:
    """Deal with one claimed batch: build what is wanted, mark the rest; answers how many were stored."""
    stored = 0
    with holding(lane.name, owned) as lost:
        for kind, rows in _batches(owned.rows):
            data_type = registry.find(kind)
            if data_type is None:
                logger.warning(
                    "lane %s holds the unknown type %r (%d): left for a worker that knows it", lane.name, kind, len(rows)
                )
                claims.fail(lane.name, owned, [(row, 30.0, f"unknown data type {kind!r}", False) for row in rows])
                continue
            unwanted = _unwanted(data_type, rows)
            wanted = [row for row in rows if row.resource not in unwanted]
            if unwanted:
                put_off(data_type, lane.name, owned, list(unwanted.values()))
            if wanted and wanted[0].lost >= GIVE_UP_AFTER_LOST:
                give_up(data_type, lane.name, owned, wanted[0])
            elif wanted:
                out = build_claimed(data_type, lane.name, owned, wanted, lost, time_limit)
                stored += sum(one.stored is not None for one in out.values())
    return stored


def _unwanted(data_type: DataType, rows: Sequence[Claimed]) -> dict[str, Claimed]:
    """Those that nobody watches and nobody has asked for: not at the claim, and not now, which may be a batch later."""
    cut = len(data_type.name) + 1
    found = {row.resource[cut:]: row for row in rows if not (row.visible or row.forced)}
    back = leases.visible_among(data_type.name, list(found)) if found else set()
    return {row.resource: row for key, row in found.items() if key not in back}


def put_off(data_type: DataType, lane: str, owned: Claim, rows: Sequence[Claimed]) -> None:
    """Nobody watches these any more: mark first, then drop what has not moved (rule 8)."""
    cut = len(data_type.name) + 1
    if data_type.hidden is Hidden.DROP:
        claims.discard(lane, [row.resource for row in rows])
        return
    dirty.mark(data_type.name, {row.resource[cut:]: 1 for row in rows})
    reach("drain.marked")
    woke, _ = claims.done(lane, owned, [Done(row, "drop", pressure.window(data_type)) for row in rows])
    if woke:
        wake(lane, [owned.shard])
    metrics.count("saved_builds", len(rows), data_type=data_type.name)


def give_up(data_type: DataType, lane: str, owned: Claim, row: Claimed) -> None:
    """Its build took its worker along again and again: set it aside before it takes this one."""
    why = f"{row.lost} workers in a row died or hung while building it"
    logger.error("%s is set aside: %s", row.resource, why)
    dirty.quarantine(data_type.name, row.resource[len(data_type.name) + 1 :], row.lost, why)
    claims.fail(lane, owned, [(row, 0.0, why, True)])


def precompute() -> int:
    """Build hidden dirty resources while nothing else is to do; answers how many. Stops at the first sign of pressure.

    Resources that are summarised while hidden are left alone: their summary has not been shown yet.
    """
    _begin()
    try:
        with stoppable() as stop:
            return _precompute(time.monotonic() + PRECOMPUTE_SECONDS, stop)
    except RedisAway:
        return 0
    finally:
        _end()


def _busy() -> bool:
    states = [levels.lane_state(name) for name in settings.LANES]
    return any(s.due or s.stage != pressure.Stage.NORMAL for s in states)


def _precompute(ends: float, stop: Stop) -> int:
    built = 0
    for data_type in registry:
        if data_type.hidden is not Hidden.DEFER or data_type.lane not in settings.LANES:
            continue
        after = None
        while not stop and time.monotonic() < ends and not _busy():
            rows = dirty.oldest(data_type.name, PRECOMPUTE_BATCH, after=after)
            if not rows:
                break
            keys = [key for key, _at in rows]
            seen = leases.visible_among(data_type.name, keys)
            taken, _refused = claims.claim_named(
                data_type.lane, [f"{data_type.name}:{key}" for key in keys if key not in seen], settings.BUILD_LEASE
            )
            for owned in taken:
                with holding(data_type.lane, owned) as lost:
                    out = build_claimed(data_type, data_type.lane, owned, owned.rows, lost, time_limit)
                built += sum(one.stored is not None for one in out.values())
            after = (rows[-1][1], rows[-1][0])
    metrics.count("precomputed", built)
    return built
