"""Reading snapshots: fresh ones in one Redis call, stale ones checked against the marks, missing ones built once.

| what stands | what a read does |
|---|---|
| visible, trusted, nothing pending | serves the snapshot; one MGET, no SQL |
| stamp equals the marks | serves it; past its soft TTL, asks for a refresh behind |
| marks moved, a change pending, or no snapshot | builds under the resource's one claim; others wait and share the outcome |
| the build fails | serves the stale snapshot until its hard TTL; none left: `BuildFailed` for all, until the back-off is over |
| Redis away | builds from the source |
| inside a transaction | what must be built is built as the transaction sees it, for this caller; a worker builds what is kept |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from visibility.builds.rounds import Rest, from_source, refresh, snapshot_of, verdict, wants_early
from visibility.conf import settings
from visibility.datatypes import DataType, check_key, data_type_of
from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.soft import claims, clock, leases, snapshots
from visibility.soft.client import aclient, guard, line, turn
from visibility.soft.keys import base, by_shard, shard_of
from visibility.soft.snapshots import Snapshot
from visibility.sql import hygiene

__all__ = ["aread", "aread_many", "read", "read_many", "refresh", "verdict"]
P = ParamSpec("P")
T = TypeVar("T")
_looked: dict[str, float] = {}


def _names(resource: str) -> list[str]:
    start = base(shard_of(resource))
    return [f"{start}:snap:{resource}", f"{start}:fresh:{resource}"]


def _hit(data_type: DataType, resource: str, raw: bytes | None, fresh: bytes | None) -> Snapshot | None:
    """The snapshot if a lease vouches for it and it is within its soft TTL."""
    if raw is None or fresh is None:
        return None
    stored = snapshots.unpack(raw, data_type.schema)
    now = clock.now_ms()
    if stored is None or stored.version != int(fresh) or now >= stored.soft_ms or wants_early(stored, now):
        return None
    return snapshot_of(resource, stored, "fresh")


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
        if found.active_window is not None:
            _looking(found, [resource])
        with guard():
            raw, fresh = line().ask("MGET", *_names(resource))
    except RedisAway:
        return from_source(found, [name])[name]
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
    out = _hits(found, names)
    out.update(_read_slow(found, [name for name in names if name not in out]))
    return {name: out[name] for name in names}


def _hits(data_type: DataType, names: Sequence[str]) -> dict[str, Snapshot]:
    """What can be served as it lies in Redis, by key; everything from the source while Redis is away."""
    out: dict[str, Snapshot] = {}
    try:
        _looking(data_type, [f"{data_type.name}:{n}" for n in names])
        cut = len(data_type.name) + 1
        for resources in by_shard([f"{data_type.name}:{n}" for n in names]).values():
            for start in range(0, len(resources), 200):
                part = resources[start : start + 200]
                with guard():
                    rows = line().ask("MGET", *(name for resource in part for name in _names(resource)))
                for resource, raw, fresh in zip(part, rows[::2], rows[1::2], strict=True):
                    hit = _hit(data_type, resource, raw, fresh)
                    if hit is not None:
                        out[resource[cut:]] = hit
    except RedisAway:
        return from_source(data_type, names)
    metrics.count("reads", len(out), data_type=data_type.name, label="fresh")
    return out


async def aread(data_type: str | type[DataType] | DataType, key: Any) -> Snapshot:
    """The asynchronous twin of `read`: only a look at the marks or a build takes a thread, waiting for a build takes none."""
    found = data_type_of(data_type)
    name = check_key(found.name, key)
    resource = f"{found.name}:{name}"
    if found.active_window is None:
        try:
            async with turn():
                raw, fresh = await aclient().mget(_names(resource))
        except RedisAway:
            return (await _in_thread(from_source)(found, [name]))[name]
        hit = _hit(found, resource, raw, fresh)
        if hit is not None:
            metrics.count("reads", data_type=found.name, label="fresh")
            return hit
    return (await aread_many(found, [name]))[name]


async def aread_many(data_type: str | type[DataType] | DataType, keys: Iterable[Any]) -> dict[str, Snapshot]:
    """The asynchronous twin of `read_many`."""
    found = data_type_of(data_type)
    names = list(dict.fromkeys(check_key(found.name, key) for key in keys))
    out = await _in_thread(_hits)(found, names)
    rest = Rest(found, [name for name in names if name not in out], time.monotonic() + settings.BUILD_TIMEOUT)
    # A reader that is cancelled leaves its thread to finish: what it builds, others wait for.
    while rest.keys:
        busy = await _in_thread(rest.step)()
        if busy:
            try:
                await claims.await_for_build(*busy, rest.patience())
            except RedisAway:
                continue
    return {name: out.get(name) or rest.out[name] for name in names}


def _in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run in a thread of the pool, not in the one that all ORM calls of this process share: a build may take long."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        hygiene.close_old()
        try:
            return function(*args, **kwargs)
        finally:
            hygiene.close_old()

    return sync_to_async(call, thread_sensitive=False)


def _read_slow(data_type: DataType, keys: Sequence[str]) -> dict[str, Snapshot]:
    """Look, then read the marks, then decide; rounds go on until each key is served or the build time is over."""
    rest = Rest(data_type, keys, time.monotonic() + settings.BUILD_TIMEOUT)
    while rest.keys:
        busy = rest.step()
        if busy:
            with suppress(RedisAway):
                claims.wait_for_build(*busy, rest.patience())
    return rest.out
