"""Claims: who builds a resource now, under which token, and how that ends.

At most one a resource. The generation is taken at the claim, before the source is read; a claim ends by `done` or `fail`
from its owner, or by its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from visibility.soft.client import Begun, aclient, client, guard, run, turn
from visibility.soft.keys import CHUNK, by_shard, key, shard_of

# Snapshots that one script takes.
STORE_BYTES = 4_000_000


class Claimed(NamedTuple):
    """One claimed resource, as it stood when it was claimed. `gen` and `epoch` are opaque and compared later.

    `lost`: claims in a row that ended by their lease, because their worker died or hung.
    """

    resource: str
    gen: str
    epoch: str
    since_ms: int
    forced: bool
    tries: int
    event: str
    version: int
    visible: bool
    was_pending: bool
    lost: int = 0


class Claim(NamedTuple):
    """A batch owned under one token. `due` more wait now; the next is due in `next_ms` (-1: none waits).

    `bell_ms`: nothing was due, and the lane rings its bell for the caller during this time: `linger`.
    """

    shard: int
    now_ms: int
    token: str
    due: int
    next_ms: int
    rows: list[Claimed]
    bell_ms: int = 0


class Busy(NamedTuple):
    """Somebody else builds it now."""

    owner: str


class Later(NamedTuple):
    """Its last build failed a moment ago; try again after `ms`."""

    ms: int
    error: str


class Moved(NamedTuple):
    """A build of it ended since the caller looked: look again, it may be served."""

    version: int


class Done(NamedTuple):
    """How a claim ends: `how` is trust, keep, drop or back (see `lua/done.lua`)."""

    row: Claimed
    how: str
    window: float = 0.0


def _claimed(row: list[Any]) -> Claimed:
    resource, gen, epoch, since, forced, tries, event, version, visible, was_pending, lost = row
    # Not by the class, which is a call more for each of a batch.
    made = (
        resource.decode(), gen.decode(), epoch.decode(), int(since), forced == b"1", int(tries), event.decode(), int(version),
        visible == 1, was_pending == 1, int(lost),
    )  # fmt: skip
    return tuple.__new__(Claimed, made)


def _args(lane: str, limit: int, lease: float, stay: float, names: Sequence[str]) -> tuple[Any, ...]:
    return lane, limit, int(lease * 1000), int(stay * 1000), *names


def _owned(shard: int, answer: list[Any]) -> Claim:
    now, token, due, wait, bell, rows, _refused = answer
    return Claim(shard, now, token.decode(), due, wait, [_claimed(row) for row in rows], bell)


def claim(lane: str, shard: int, limit: int, lease: float, stay: float = 0.0) -> Claim:
    """Own up to `limit` due resources of a lane for `lease` seconds. Ended claims of others are taken back first.

    Where nothing is due, the caller may `linger`: `stay` seconds, or until the next is due if that is soon.
    """
    return _owned(shard, run("claim", shard, *_args(lane, limit, lease, stay, ())))


def begin_claim(lane: str, shard: int, limit: int, lease: float) -> Begun:
    """`claim` in two steps, without lingering; `begun` makes a claim of the result.

    Raises:
        RedisAway: the soft state is out of reach.
    """
    return Begun("claim", shard, *_args(lane, limit, lease, -0.001, ()))


def begun(shard: int, one: Begun) -> Claim:
    """What `begin_claim` has claimed.

    Raises:
        RedisAway: the soft state is out of reach; the claims end by their leases.
    """
    return _owned(shard, one.result())


def claim_named(
    lane: str, resources: Sequence[str], lease: float, seen: Mapping[str, int] | None = None
) -> tuple[list[Claim], dict[str, Busy | Later | Moved]]:
    """Own these resources, pending or not, under one token a shard; and of the others, who builds them or when to try again.

    With `seen`, the version of each as the caller looked, one that was built since is refused as `Moved`.
    """
    claims: list[Claim] = []
    refused: dict[str, Busy | Later | Moved] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            named = [a for name in part for a in (name, "" if seen is None else str(seen[name]))]
            answer = run("claim", shard, *_args(lane, len(part), lease, 0.0, named))
            if (owned := _owned(shard, answer)).rows:
                claims.append(owned)
            for resource, why, value, *rest in answer[-1]:
                refused[resource.decode()] = (
                    Busy(value.decode())
                    if why == b"busy"
                    else Moved(int(value))
                    if why == b"moved"
                    else Later(value, rest[0].decode())
                )
    return claims, refused


def claim_one(lane: str, resource: str, lease: float) -> Claim | Busy | Later | Moved:
    """Own one resource, pending or not; or learn who builds it, or when the next try is due."""
    claims, refused = claim_named(lane, [resource], lease)
    return claims[0] if claims else refused[resource]


def extend(lane: str, owned: Claim, lease: float, resources: Sequence[str]) -> list[str]:
    """Renew claims; answers those that are lost (nothing may be stored for them any more)."""
    if lease <= 0:
        raise ValueError(f"a claim is extended by a time above 0, not {lease!r}")
    return [r.decode() for r in run("extend", owned.shard, lane, owned.token, int(lease * 1000), *resources)]


def store(lane: str, owned: Claim, items: Sequence[tuple[Claimed, int, int, bytes, bool]]) -> list[int]:
    """Store `(row, ttl_ms, soft_until_ms, packed, clean)` and end what is `clean`: no mark of it stood when they were read.

    Answers 0 where the claim has ended or a newer one is there, 1 stored, 2 stored and the claim ended as by `done`. With 1 it
    has still to end, because it was not clean or moved meanwhile.
    """
    out: list[int] = []
    batch: list[Any] = []
    size = 0
    for row, ttl, soft, raw, clean in items:
        if batch and size + len(raw) > STORE_BYTES:
            out += run("store", owned.shard, lane, owned.token, *batch)
            batch, size = [], 0
        batch += (row.resource, row.gen if clean else "", row.epoch, ttl, soft, raw)
        size += len(raw)
    return out + run("store", owned.shard, lane, owned.token, *batch) if batch else out


def done(lane: str, owned: Claim, ends: Sequence[Done]) -> tuple[bool, list[int]]:
    """End claims. Answers whether to wake the lane, and per item 1 clean, 2 pending again, 0 claim lost."""
    if not ends:
        return False, []
    args = [a for row, how, window in ends for a in (row.resource, row.gen, row.epoch, int(window * 1000), how)]
    woke, *states = run("done", owned.shard, lane, owned.token, *args)
    return woke == 1, states


def fail(lane: str, owned: Claim, items: Sequence[tuple[Claimed, float, str, bool]]) -> list[int]:
    """End claims whose build failed: `(row, delay seconds, error, give up)`. Answers failures in a row, 0 where lost."""
    args = [
        a for row, delay, error, give_up in items for a in (row.resource, row.gen, int(delay * 1000), error[:500], int(give_up))
    ]
    return list(run("fail", owned.shard, lane, owned.token, *args)) if items else []


def discard(lane: str, resources: Iterable[str]) -> None:
    """Forget snapshots and end claims on them."""
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            run("discard", shard, lane, *names[start : start + CHUNK])


def linger(owned: Claim, lane: str) -> bool:
    """After a claim that found nothing due: wait until the lane's bell rings, so that what comes meanwhile needs no new job.

    True if it rang. Whoever waits in vain must claim once more before leaving: the bell may have rung at the last moment.
    """
    with guard():
        redis = client()
        try:
            return redis.blpop([key(owned.shard, "bell", lane)], timeout=owned.bell_ms / 1000) is not None
        finally:
            stop_lingering(owned, lane)


def stop_lingering(owned: Claim, lane: str) -> None:
    """From now on what comes wakes the lane by a job again."""
    with guard():
        client().delete(key(owned.shard, "lingering", lane))


def wait_for_build(resource: str, owner: str, seconds: float) -> bool:
    """Block until the build under this token ended; True if it did within the time. All waiters wake at once."""
    name = key(shard_of(resource), "baton", resource, owner)
    with guard():
        return client().blmove(name, name, seconds, "LEFT", "RIGHT") is not None


_waits: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], asyncio.Task[bool]]] = WeakKeyDictionary()


async def await_for_build(resource: str, owner: str, seconds: float) -> bool:
    """The asynchronous twin of `wait_for_build`. All of an event loop who wait for the same build share the first one's wait."""
    waits, slot = _waits.setdefault(asyncio.get_running_loop(), {}), (resource, owner)
    if slot not in waits:
        waits[slot] = asyncio.create_task(_wait(resource, owner, seconds))
        waits[slot].add_done_callback(lambda task: _waited(waits, slot, task))
    return await asyncio.shield(waits[slot])


def _waited(waits: dict[tuple[str, str], asyncio.Task[bool]], slot: tuple[str, str], task: asyncio.Task[bool]) -> None:
    del waits[slot]
    if not task.cancelled():
        # Looked at, in case that everybody who waited has gone.
        task.exception()


async def _wait(resource: str, owner: str, seconds: float) -> bool:
    name = key(shard_of(resource), "baton", resource, owner)
    try:
        # A second more, for a turn: who gets none looks again.
        async with asyncio.timeout(seconds + 1.0), turn(waits=True):
            return await aclient().blmove(name, name, seconds, "LEFT", "RIGHT") is not None
    except TimeoutError:
        return False
