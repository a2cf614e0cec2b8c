"""Reading snapshots: fresh ones in one Redis call, stale ones checked against the marks, missing ones built once.

| what stands | what a read does |
|---|---|
| visible, trusted, nothing pending | serves the snapshot; one MGET, no SQL |
| stamp equals the marks | serves it; past its soft TTL, asks for a refresh behind |
| marks moved, pending, or no snapshot | builds under the resource's one claim; others wait and share the outcome |
| the build fails | serves the stale snapshot until its hard TTL; none left: `BuildFailed` for all, until the back-off is over |
| Redis away | builds from the source |
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from asgiref.sync import sync_to_async

from visibility import dirty, metrics
from visibility.build import Built, build_claimed, run_build
from visibility.conf import settings
from visibility.datatypes import DataType, check_key, data_type_of
from visibility.dirty import Marks
from visibility.exceptions import BuildFailed, RedisAway
from visibility.points import reach
from visibility.soft import clock, leases, pending, snapshots
from visibility.soft.client import aclient, client, guard
from visibility.soft.keys import key as redis_key
from visibility.soft.keys import shard_of
from visibility.soft.pending import Busy, Item, Later, Look
from visibility.soft.snapshots import Snapshot, Stored
from visibility.wake import wake

EARLY = 1.0
_looked: dict[str, float] = {}


def verdict(stored: Stored | None, pending_now: bool, marks: Marks, now_ms: int) -> str:
    """What to do with what stands: serve, refresh (serve, and build behind) or build. Pure; see the module's table."""
    if stored is None or pending_now or not marks.same(stored.stamp):
        return "build"
    return "serve" if now_ms < stored.soft_ms else "refresh"


def wants_early(stored: Stored, now_ms: int) -> bool:
    """Whether this reader should ask for a refresh before the soft TTL: by cost and chance (XFetch, Vattani et al. 2015)."""
    left = stored.soft_ms - now_ms
    return left < 20 * stored.cost_ms and left < EARLY * stored.cost_ms * -math.log(1.0 - random.random())  # noqa: S311


def _snapshot(resource: str, stored: Stored, state: str, missed: int = 0) -> Snapshot:
    return Snapshot(resource, stored.version, stored.body, state, stored.built_ms, stored.event_ms, missed)


def _names(resource: str) -> list[str]:
    shard = shard_of(resource)
    return [redis_key(shard, "snap", resource), redis_key(shard, "fresh", resource)]


def _hit(data_type: DataType, resource: str, raw: bytes | None, fresh: bytes | None) -> Snapshot | None:
    """The snapshot if a lease vouches for it and it is within its soft TTL."""
    if raw is None or fresh is None:
        return None
    stored = snapshots.unpack(raw, data_type.schema)
    now = clock.now_ms()
    if stored is None or stored.version != int(fresh) or now >= stored.soft_ms or wants_early(stored, now):
        return None
    return _snapshot(resource, stored, "fresh")


def _looking(data_type: DataType, resources: Sequence[str]) -> None:
    """With an active window, a read is a look: hold the resource visible, written at most four times a window."""
    window = data_type.active_window
    if window is None:
        return
    now = time.monotonic()
    due = [r for r in resources if _looked.get(r, 0.0) <= now]
    if not due:
        return
    if len(_looked) > 10_000:
        _looked.clear()
    _looked.update((r, now + window / 4) for r in due)
    leases.renew([leases.Watch(r, f"hold/read.{data_type.name}", "hold", window) for r in due])


def read(data_type: str | type[DataType] | DataType, key: Any) -> Snapshot:
    """The snapshot of one resource, built now if there is no current one.

    Raises:
        UnknownDataType, BadResource: no such type; not a key.
        BuildFailed: the build raised and nothing older is left to serve.
    """
    found = data_type_of(data_type)
    name = check_key(found.name, key)
    resource = f"{found.name}:{name}"
    try:
        _looking(found, [resource])
        with guard():
            raw, fresh = client().mget(_names(resource))
    except RedisAway:
        return _from_source(found, [name])[name]
    hit = _hit(found, resource, raw, fresh)
    if hit is not None:
        metrics.count("reads", data_type=found.name, label="fresh")
        return hit
    return _read_slow(found, [name])[name]


def read_many(data_type: str | type[DataType] | DataType, keys: Iterable[Any]) -> dict[str, Snapshot]:
    """The snapshots of several resources of one type, by key: Redis and SQL are asked in bulk.

    Raises:
        As `read`; BuildFailed names the first key that failed.
    """
    found = data_type_of(data_type)
    names = list(dict.fromkeys(check_key(found.name, key) for key in keys))
    out: dict[str, Snapshot] = {}
    try:
        _looking(found, [f"{found.name}:{n}" for n in names])
        for start in range(0, len(names), 200):
            part = names[start : start + 200]
            with guard():
                pipe = client().pipeline(transaction=False)
                for name in part:
                    pipe.mget(_names(f"{found.name}:{name}"))
                rows = pipe.execute()
            for name, (raw, fresh) in zip(part, rows, strict=True):
                hit = _hit(found, f"{found.name}:{name}", raw, fresh)
                if hit is not None:
                    out[name] = hit
    except RedisAway:
        return _from_source(found, names)
    metrics.count("reads", len(out), data_type=found.name, label="fresh")
    rest = [name for name in names if name not in out]
    if rest:
        out.update(_read_slow(found, rest))
    return {name: out[name] for name in names}


async def aread(data_type: str | type[DataType] | DataType, key: Any) -> Snapshot:
    """The asynchronous twin of `read`; only a build or a look at the marks takes a thread."""
    found = data_type_of(data_type)
    name = check_key(found.name, key)
    resource = f"{found.name}:{name}"
    if found.active_window is None:
        try:
            with guard():
                raw, fresh = await aclient().mget(_names(resource))
        except RedisAway:
            return await sync_to_async(read)(found, name)
        hit = _hit(found, resource, raw, fresh)
        if hit is not None:
            metrics.count("reads", data_type=found.name, label="fresh")
            return hit
    return await sync_to_async(read)(found, name)


async def aread_many(data_type: str | type[DataType] | DataType, keys: Iterable[Any]) -> dict[str, Snapshot]:
    """The asynchronous twin of `read_many`."""
    return await sync_to_async(read_many)(data_type, list(keys))


def _from_source(data_type: DataType, keys: Sequence[str]) -> dict[str, Snapshot]:
    """Build without Redis: current, kept nowhere, and a version of its own so that later ones are higher."""
    data = run_build(data_type, keys)
    out: dict[str, Snapshot] = {}
    for key in keys:
        resource = f"{data_type.name}:{key}"
        if isinstance(data[key], BaseException):
            raise BuildFailed(f"{resource} could not be built: {data[key]}") from data[key]
        now = clock.now_ms()
        out[key] = Snapshot(resource, now * 1000, snapshots.encode_body(resource, data[key]), "rebuilt", now, 0)
    metrics.count("reads", len(out), data_type=data_type.name, label="rebuilt")
    return out


def _read_slow(data_type: DataType, keys: Sequence[str]) -> dict[str, Snapshot]:
    """Look, then read the marks, then decide; rounds go on until each key is served or the build time is over."""
    try:
        return _rounds(data_type, keys, time.monotonic() + settings.BUILD_TIMEOUT)
    except RedisAway:
        return _from_source(data_type, keys)


def _rounds(data_type: DataType, keys: Sequence[str], deadline: float) -> dict[str, Snapshot]:
    lane = settings.lane(data_type.lane)
    cut = len(data_type.name) + 1
    out: dict[str, Snapshot] = {}
    rest = list(keys)
    while rest:
        looks = pending.look(lane.name, [f"{data_type.name}:{key}" for key in rest])
        reach("read.looked")
        marks = dirty.marks(data_type, rest)
        reach("read.marks")
        trusted: dict[str, Look] = {}
        behind: list[str] = []
        for resource, seen in looks.items():
            key = resource[cut:]
            clock.seen(seen.now_ms)
            stored = snapshots.unpack(seen.raw, data_type.schema)
            action = verdict(stored, seen.pending, marks[key], seen.now_ms)
            if stored is not None and action != "build":
                early = action == "serve" and wants_early(stored, seen.now_ms)
                state = "fresh" if action == "serve" else "stale"
                out[key] = _snapshot(resource, stored, state)
                if action == "serve" and seen.visible_ms > 0:
                    trusted[resource] = seen
                if action == "refresh" or early:
                    behind.append(resource)
        if trusted:
            pending.trust(lane.name, trusted)
        if behind:
            refresh(data_type, behind)
        metrics.count("reads", len(trusted), data_type=data_type.name, label="fresh")
        rest = [key for key in rest if key not in out]
        for key in rest:
            served = _build_one(data_type, key, looks[f"{data_type.name}:{key}"], marks[key], deadline)
            if served is not None:
                out[key] = served
        rest = [key for key in rest if key not in out]
    return out


def _build_one(data_type: DataType, key: str, seen: Look, marks: Marks, deadline: float) -> Snapshot | None:
    """Build one resource, or wait for who does. None: look again."""
    lane = settings.lane(data_type.lane)
    resource = f"{data_type.name}:{key}"
    stale = snapshots.unpack(seen.raw, data_type.schema)
    got = pending.claim_one(lane.name, resource, settings.BUILD_LEASE)
    if isinstance(got, Busy):
        metrics.count("lock_waits", data_type=data_type.name)
        if time.monotonic() < deadline:
            pending.wait_for_build(resource, got.owner, max(0.05, min(1.0, deadline - time.monotonic())))
            return None
        return _stale_or_raise(data_type, resource, stale, marks, f"still being built after {settings.BUILD_TIMEOUT} s")
    if isinstance(got, Later):
        return _stale_or_raise(data_type, resource, stale, marks, got.error)
    built: Built = build_claimed(data_type, lane, got, got.rows)[resource]
    if built.error is not None:
        return _stale_or_raise(data_type, resource, stale, marks, f"{type(built.error).__name__}: {built.error}", built.error)
    if built.stored is None:
        return None if time.monotonic() < deadline else _from_source(data_type, [key])[key]
    metrics.count("reads", data_type=data_type.name, label="rebuilt")
    missed = max(built.missed, marks.missed(stale.stamp) if stale else 0)
    return _snapshot(resource, built.stored, "rebuilt", missed)


def _stale_or_raise(
    data_type: DataType, resource: str, stale: Stored | None, marks: Marks, why: str, cause: BaseException | None = None
) -> Snapshot:  # fmt: skip
    if stale is None:
        raise BuildFailed(f"{resource} could not be built: {why}") from cause
    metrics.count("reads", data_type=data_type.name, label="stale")
    return _snapshot(resource, stale, "stale", marks.missed(stale.stamp))


def refresh(data_type: DataType, resources: Sequence[str]) -> None:
    """Ask the lane to rebuild these whether or not somebody watches; what the lane cannot take stays as it is."""
    lane = settings.lane(data_type.lane)
    now = clock.now_ms()
    metrics.count("reads", len(resources), data_type=data_type.name, label="stale")
    pended = pending.pend(lane, [Item(r, now, "", forced=True, window=data_type.coalesce) for r in resources])
    wake(lane.name, pended.wake)
