"""Building claimed resources: the one sequence that jobs and readers share.

claim (generation, epoch, before any read) → marks → source → store if still owner and newer → clear marks that did
not move → push to watchers → end the claim, pending again where the generation moved. Where no mark stood and the generation
did not move, the store ends the claim.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from django.db import Error as DatabaseError

from visibility import dirty, pressure, push
from visibility.builds.keepalive import kept
from visibility.conf import settings
from visibility.datatypes import DataType, Hidden, legible
from visibility.dirty import Marks
from visibility.exceptions import BadSnapshot, BuildTimeout, RedisAway
from visibility.insight import logs, metrics
from visibility.insight.spans import traced
from visibility.points import reach
from visibility.signals import snapshot_built
from visibility.soft import claims, clock, snapshots
from visibility.soft.claims import Claim, Claimed, Done
from visibility.sql import hygiene
from visibility.wake import wake

logger = logging.getLogger("visibility")
GIVE_UP_AFTER = 5
MAX_DELAY = 300.0
TROUBLE_DELAY = 2.0
Limit = Callable[[], AbstractContextManager[None]]


class Built(NamedTuple):
    """What became of one claimed resource. `stored` None with `error` None: the claim was lost, or a newer one was there.

    `marks`: as they stood before the source was read. `summary`: what it missed, by kind, for a type that SUMMARISEs.
    `ended`: its claim has ended with the store.
    """

    resource: str
    stored: snapshots.Stored | None = None
    error: BaseException | None = None
    marks: Marks = dirty.CLEAN
    summary: Mapping[str, int] = MappingProxyType({})
    ended: bool = False


def backoff(tries: int) -> float:
    """Seconds before the next try after `tries` failures: exponential, capped, with ±50 % jitter."""
    return min(MAX_DELAY, 2.0 ** min(tries, 16)) * random.uniform(0.5, 1.5)  # noqa: S311


@contextmanager
def holding(lane: str, owned: Claim) -> Iterator[set[str]]:
    """Keep claims alive while their resources are built; yields the set of those that were lost on the way.

    If the block raises (a stopping worker, a database away), what is still claimed is given back: due at once where the
    worker stops, after a moment where the trouble may last. While Redis is away, the claims end by their lease.
    """
    started = time.monotonic()
    try:
        with kept(lane, owned, settings.BUILD_LEASE) as lost:
            yield lost
    except RedisAway:
        raise
    except BaseException as error:
        give_back(lane, owned, owned.rows, TROUBLE_DELAY if isinstance(error, Exception) else 0.0)
        raise
    finally:
        metrics.observe("lock_seconds", time.monotonic() - started, lane)


def give_back(lane: str, owned: Claim, rows: Sequence[Claimed], delay: float = 0.0) -> None:
    """End claims unbuilt: pending again after `delay`, where a change is behind them. Ended ones are passed over."""
    try:
        woke, _ = claims.done(lane, owned, [Done(row, "back", delay) for row in rows])
    except RedisAway:
        return
    if woke:
        wake(lane, [owned.shard])


def run_build(data_type: DataType, keys: Sequence[str], limit: Limit = nullcontext) -> dict[str, Any]:
    """`build_many` with a result or an exception for every key. If it fails as a whole, by halves, to find the bad ones.

    Args:
        limit: makes a context that raises `BuildTimeout` in a build that takes too long; after that, halves are not tried.
    """
    try:
        with limit():
            found = dict(data_type.build_many(keys))
    except Exception as error:
        if len(keys) == 1 or isinstance(error, BuildTimeout):
            return dict.fromkeys(keys, error)
        logger.warning("%s.build_many failed for %d keys; trying them by halves", data_type.name, len(keys), exc_info=error)
        if isinstance(error, DatabaseError):
            hygiene.close_old()
        half = len(keys) // 2
        return run_build(data_type, keys[:half], limit) | run_build(data_type, keys[half:], limit)
    if not found.keys() >= set(keys):
        # Keys as the database gave them: numbers.
        found = {str(key): value for key, value in found.items()}
    missing = LookupError(f"{data_type.name}.build_many gave no data for this key")
    return {key: found.get(key, missing) for key in keys}


def jitter(data_type: DataType) -> float:
    """Milliseconds to give a snapshot for each second of its lifetimes, so that those of one batch do not end together."""
    return 1000 * (1 + data_type.jitter * (2 * random.random() - 1))  # noqa: S311


@traced("build", lambda data_type, lane, owned, rows, *_rest, **_named: [row.event for row in rows])
def build_claimed(
    data_type: DataType, lane: str, owned: Claim, rows: Sequence[Claimed], lost: set[str], limit: Limit = nullcontext
) -> dict[str, Built]:
    """Build and store what was claimed, all of one type, and end the claims; answers by resource name.

    Call it inside `holding(lane, owned) as lost`.

    Raises:
        RedisAway: the soft state is out of reach; the claims end by their leases.
    """
    clock.seen(owned.now_ms)
    cut = len(data_type.name) + 1
    keys = {row.resource[cut:]: row for row in rows}
    reach("build.claimed")
    seen = dirty.marks(data_type, list(keys))
    reach("build.marks")
    started = time.monotonic()
    data: dict[str, Any] = {key: seen[key].error for key in keys if seen[key].error}
    if rest := [key for key in keys if key not in data]:
        data |= run_build(data_type, rest, limit)
    took = time.monotonic() - started
    reach("build.read")
    built_ms = clock.now_ms()
    cost = int(took * 1000 / max(1, len(rest)))
    out: dict[str, Built] = {}
    items: list[tuple[Claimed, int, int, bytes, bool]] = []
    made: list[snapshots.Stored] = []
    limit_bytes, version, schema = settings.LIMITS["snapshot_bytes"], int(owned.token), data_type.schema
    for key, row in keys.items():
        value, marks = data[key], seen[key]
        if not isinstance(value, BaseException):
            try:
                body = snapshots.encode_body(row.resource, value, limit_bytes)
            except BadSnapshot as error:
                value = error
        if isinstance(value, BaseException):
            out[row.resource] = Built(row.resource, error=value, marks=marks)
            continue
        if row.resource in lost:
            out[row.resource] = Built(row.resource)
            continue
        by = jitter(data_type)
        soft = built_ms + int(data_type.soft_ttl * by)
        one = snapshots.Stored(version, schema, built_ms, _waited_since(row, marks), soft, cost, marks.stamp, body)
        made.append(one)
        items.append((row, int(data_type.ttl * by), soft, snapshots.pack(one), marks.first_at is None))
    reach("build.store")
    flags = claims.store(lane, owned, items)
    reach("build.stored")
    for (row, *_), one, flag in zip(items, made, flags, strict=True):
        out[row.resource] = Built(row.resource, one if flag else None, marks=seen[row.resource[cut:]], ended=flag == 2)
    _settle(data_type, lane, owned, keys, seen, out)
    _count(data_type, out, keys, took)
    return out


def _waited_since(row: Claimed, marks: Marks) -> int:
    """Since when somebody may say that this is late, in ms; 0 for nobody.

    From the oldest change that is not shown, and for those who watch at most since they came: what waited while nobody looked is
    the mark's age, not a promise that was broken.
    """
    first = int(marks.first_at.timestamp() * 1000) if marks.first_at else 0
    since = row.since_ms or first
    return max(since, int(row.epoch) // 1000) if since and row.visible else since


def _settle(
    data_type: DataType, lane: str, owned: Claim, keys: Mapping[str, Claimed], seen: Mapping[str, Marks], out: dict[str, Built]
) -> None:
    name, version = data_type.name, int(owned.token)
    good = {key: seen[key] for key, row in keys.items() if out[row.resource].stored}
    # Before anything that may fail: nobody comes back to those whose claim has ended.
    _publish([(row.resource, version) for row in keys.values() if out[row.resource].ended])
    moved = dirty.clear(name, good) if good else set()
    if data_type.hidden is Hidden.SUMMARISE:
        taken = dirty.take_summaries(name, [key for key, one in good.items() if one.dirty and key not in moved])
        for key, kinds in taken.items():
            out[keys[key].resource] = out[keys[key].resource]._replace(summary=kinds)
    reach("build.cleared")
    _publish([(keys[key].resource, version) for key in good if not out[keys[key].resource].ended])
    reach("build.pushed")
    # Asked for after the push: somebody waits for that, and the answer may take a trip to Redis.
    window = pressure.window(data_type)
    ends = [Done(row, "keep" if key in moved else "trust", window) for key in good if not out[(row := keys[key]).resource].ended]
    # A claim that was lost, or a store that was refused: who took over answers for it; if nobody did, it is due again.
    ends += [Done(row, "back", window) for key, row in keys.items() if key not in good and out[row.resource].error is None]
    woke, states = claims.done(lane, owned, ends)
    metrics.count("claims_lost", states.count(0), label=lane)
    failed = [(key, row, error) for key, row in keys.items() if (error := out[row.resource].error) is not None]
    claims.fail(lane, owned, [_failure(data_type, key, row, error) for key, row, error in failed])
    reach("build.done")
    if woke:
        wake(lane, [owned.shard])


@traced("push")
def _publish(updates: list[tuple[str, int]]) -> None:
    """Tell the watchers; a hint that is lost is made good by their next heartbeat, so nothing here may fail a build."""
    if not updates:
        return
    try:
        push.publish(updates)
    except Exception:
        metrics.count("push_failures")
        logger.exception("%d updates could not be pushed", len(updates))


def _failure(data_type: DataType, key: str, row: Claimed, error: BaseException) -> tuple[Claimed, float, str, bool]:
    tries = row.tries + 1
    why = legible(f"{type(error).__name__}: {error}")
    logger.error("the build of %s failed (%d in a row): %s", row.resource, tries, why, exc_info=error)
    give_up = tries >= GIVE_UP_AFTER
    if give_up:
        # The mark is written before the entry is dropped (rule 8).
        dirty.quarantine(data_type.name, key, tries, why)
    return row, backoff(tries), why, give_up


def _count(data_type: DataType, out: Mapping[str, Built], keys: Mapping[str, Claimed], took: float) -> None:
    name = data_type.name
    now = clock.now_ms()
    good = [b for b in out.values() if b.stored]
    metrics.count("builds", len(good), data_type=name)
    metrics.observe("build_seconds", took, data_type=name)
    if failures := sum(b.error is not None for b in out.values()):
        metrics.count("build_failures", failures, data_type=name)
    if refused := len(out) - len(good) - failures:
        metrics.count("store_refused", refused, data_type=name)
    waited: dict[str, list[float]] = {"freshness_built": [], "freshness_resolved": []}
    for row in keys.values():
        one = out[row.resource]
        if one.stored is None:
            continue
        event_ms = one.stored.event_ms
        marked_ms = int(one.marks.first_at.timestamp() * 1000) if one.marks.first_at else 0
        if event_ms and row.visible:
            waited["freshness_built"].append(max(0.0, (now - event_ms) / 1000))
        if marked_ms or (event_ms and not row.visible):
            waited["freshness_resolved"].append(max(0.0, (now - (marked_ms or event_ms)) / 1000))
    for stage, seconds in waited.items():
        metrics.observe_all(stage, seconds, data_type=name)
    _tell(name, [(one.resource, one.stored) for one in good if one.stored], took)


def _tell(name: str, rows: Sequence[tuple[str, snapshots.Stored]], took: float) -> None:
    logs.built(name, rows, took)
    if snapshot_built.has_listeners(name):
        for resource, one in rows:
            event_at = datetime.fromtimestamp(one.event_ms / 1000, UTC) if one.event_ms else None
            snapshot_built.send_robust(name, resource=resource, version=one.version, seconds=took, event_at=event_at)
