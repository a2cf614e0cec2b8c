"""What waits for a recompute, and who builds it: lanes, generations and claims.

At most one entry and one claim a resource. The generation is taken at the claim, before the source is read; a claim
ends by `done` or `fail` from its owner, or by its lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from visibility.conf import Lane, settings
from visibility.soft.client import aclient, arun, client, guard, run
from visibility.soft.keys import by_shard, key, shard_of, shards

CHUNK = 200


class Item(NamedTuple):
    """A resource to recompute. `since_ms`: its oldest change, epoch ms. `forced`: build it even if nobody watches.

    `refresh`: nothing changed, so what stands may be served until the new build is there; implies `forced`.
    """

    resource: str
    since_ms: int
    event: str = ""
    forced: bool = False
    window: float = 0.25
    hidden_window: float = 0.0
    tenant: str = ""
    refresh: bool = False


class Pended(NamedTuple):
    """Outcome: items taken, those of them that joined an entry already there, shed ones with reasons, shards to wake.

    `idle`: shards of those where nothing was pending or claimed before, so that no drain is waiting in the queue.
    """

    accepted: int
    merged: int
    shed: list[tuple[str, str]]
    wake: list[int]
    idle: Collection[int] = ()


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


class Look(NamedTuple):
    """One consistent view of a resource's soft state. `last`: the highest token so far; a later claim has a higher one."""

    now_ms: int
    raw: bytes
    fresh: int
    visible_ms: int
    due_ms: int | None
    claim_ms: int | None
    ttl_ms: int
    gen: str
    epoch: str
    owner: str
    not_before_ms: int
    error: str
    since_ms: int
    tries: int
    version: int
    event: str
    built_ms: int
    hot: bool = True
    last: int = 0

    @property
    def queued(self) -> bool:
        """Whether it waits for a build or is being built."""
        return self.due_ms is not None or self.claim_ms is not None

    @property
    def pending(self) -> bool:
        """Whether a change waits to be built, so that what stands is known to be behind."""
        return self.hot and self.queued


def rate(name: str) -> tuple[float, float]:
    """`RATE_LIMITS[name]` as (per second, burst); (0, 0) means no limit. "100/s", "600/m" or a number per second."""
    value = settings.RATE_LIMITS.get(name)
    if not value:
        return 0.0, 0.0
    if isinstance(value, (int, float)):
        return float(value), max(1.0, float(value))
    number, _, unit = str(value).partition("/")
    per_second = float(number) / {"s": 1, "m": 60, "h": 3600}[unit or "s"]
    return per_second, max(1.0, float(number))


def pend(lane: Lane, items: Iterable[Item]) -> Pended:
    """Raise the generation of each item and put it into the lane, unless the lane or its tenant is over a limit.

    What is shed is untouched here: mark it in the database, then call `distrust`.
    """
    per_tenant, burst = rate("tenant")
    per_resource, _ = rate("resource")
    floor = 1 / per_resource if per_resource else 0.0
    parts = len(shards())
    bound = max(1, lane.bound // parts)
    head = [lane.name, bound, max(1, int(bound * lane.share)), per_tenant / parts, max(1.0, burst / parts)]
    groups: dict[int, list[Item]] = {}
    if parts == 1:
        groups[0] = list(items)
    else:
        for item in items:
            groups.setdefault(shard_of(item.resource), []).append(item)
    accepted = merged = 0
    shed: list[tuple[str, str]] = []
    wake: set[int] = set()
    idle: set[int] = set()
    for shard, group in groups.items():
        for start in range(0, len(group), CHUNK):
            alike: dict[tuple[Any, ...], list[str]] = {}
            for resource, since, event, forced, window, hidden, tenant, refresh in group[start : start + CHUNK]:
                front, back = int(max(window, floor) * 1000), int(max(hidden, floor) * 1000)
                alike.setdefault((since, event, 2 if refresh else int(forced), front, back, tenant), []).append(resource)
            names = [name for some in alike.values() for name in some]
            args = [arg for slot, some in alike.items() for arg in (*slot, len(some), *some)]
            taken, joined, woke, refused = run("pend", shard, *head, *args)
            accepted, merged = accepted + taken, merged + joined
            if woke:
                wake.add(shard)
            if woke == 2:
                idle.add(shard)
            shed += [(names[n - 1], why.decode()) for n, why in zip(refused[::2], refused[1::2], strict=True)]
    return Pended(accepted, merged, shed, sorted(wake), idle)


def _claimed(row: list[Any]) -> Claimed:
    resource, gen, epoch, since, forced, tries, event, version, visible, was_pending, lost = row
    return Claimed(
        resource.decode(), gen.decode(), epoch.decode(), int(since), forced == b"1", int(tries), event.decode(), int(version),
        visible == 1, was_pending == 1, int(lost),
    )  # fmt: skip


def _claim(lane: str, shard: int, limit: int, lease: float, stay: float, names: Sequence[str]) -> tuple[Claim, list[Any]]:
    args = (lane, limit, int(lease * 1000), int(stay * 1000), *names)
    now, token, due, wait, bell, rows, refused = run("claim", shard, *args)
    return Claim(shard, now, token.decode(), due, wait, [_claimed(row) for row in rows], bell), refused


def claim(lane: str, shard: int, limit: int, lease: float, stay: float = 0.0) -> Claim:
    """Own up to `limit` due resources of a lane for `lease` seconds. Ended claims of others are taken back first.

    Where nothing is due, the caller may `linger`: `stay` seconds, or until the next is due if that is soon.
    """
    return _claim(lane, shard, limit, lease, stay, ())[0]


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
            owned, rows = _claim(lane, shard, len(part), lease, 0.0, named)
            if owned.rows:
                claims.append(owned)
            for resource, why, value, *rest in rows:
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


def store(lane: str, owned: Claim, items: Sequence[tuple[str, int, int, bytes]]) -> list[bool]:
    """Store `(resource, ttl_ms, soft_until_ms, packed)`; False where the claim has ended or a newer one is there."""
    out: list[bool] = []
    batch: list[tuple[str, int, int, bytes]] = []
    size = 0
    for item in [*items, None]:
        if batch and (item is None or size + len(item[3]) > 4_000_000):
            out += [flag == 1 for flag in run("store", owned.shard, lane, owned.token, *(a for i in batch for a in i))]
            batch, size = [], 0
        if item is not None:
            batch.append(item)
            size += len(item[3])
    return out


class Done(NamedTuple):
    """How a claim ends: `how` is trust, keep, drop or back (see `lua/done.lua`)."""

    row: Claimed
    how: str
    window: float = 0.0


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


def distrust(resources: Iterable[str]) -> None:
    """Visible resources were marked in the database: reads look at the marks again, builds in flight count as moved."""
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            run("distrust", shard, *names[start : start + CHUNK])


def discard(lane: str, resources: Iterable[str]) -> None:
    """Forget snapshots and end claims on them."""
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            run("discard", shard, lane, *names[start : start + CHUNK])


def _look(now: int, row: list[Any]) -> Look:
    raw, fresh, visible, due, claim_end, ttl, *state = row
    gen, epoch, owner, nb, err, since, tries, ver, ev, built, hot, last = (s.decode(errors="replace") for s in state)
    return Look(
        now, raw, int(fresh), visible, int(float(due)) if due else None, int(float(claim_end)) if claim_end else None, ttl,
        gen, epoch, owner, int(nb or 0), err, int(since or 0), int(tries or 0), int(ver or 0), ev, int(built or 0), hot == "1",
        int(last),
    )  # fmt: skip


def look(lane: str, resources: Sequence[str]) -> dict[str, Look]:
    """The soft state of resources of one lane."""
    out: dict[str, Look] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            now, *rows = run("look", shard, lane, *part)
            out.update({name: _look(now, row) for name, row in zip(part, rows, strict=True)})
    return out


async def alook(lane: str, resources: Sequence[str]) -> dict[str, Look]:
    """The asynchronous twin of `look`."""
    out: dict[str, Look] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            now, *rows = await arun("look", shard, lane, *part)
            out.update({name: _look(now, row) for name, row in zip(part, rows, strict=True)})
    return out


def _trust_args(looks: dict[str, Look]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for name, seen in looks.items():
        groups.setdefault(shard_of(name), []).extend((name, seen.gen, seen.epoch, seen.version))
    return groups


def trust(lane: str, looks: dict[str, Look]) -> None:
    """These snapshots' stamps equal the marks, read after the looks: serve them without SQL while they stay visible."""
    for shard, args in _trust_args(looks).items():
        run("trust", shard, lane, *args)


async def atrust(lane: str, looks: dict[str, Look]) -> None:
    """The asynchronous twin of `trust`."""
    for shard, args in _trust_args(looks).items():
        await arun("trust", shard, lane, *args)


def rouse(lane: str) -> list[int]:
    """Shards whose lane has work and nobody on the way: enqueue a drain for each."""
    return [shard for shard in shards() if run("rouse", shard, lane)]


class LaneState(NamedTuple):
    """Figures of a lane over all shards; ages in seconds."""

    pending: int
    due: int
    claimed: int
    expired: int
    lag: float
    oldest: str
    woken: bool
    age: float
    stage: str = "normal"


def lane_state(lane: str) -> LaneState:
    """How full a lane is and how long its oldest entry has waited past its due time."""
    rows = [run("lane", shard, lane) for shard in shards()]
    worst = max(rows, key=lambda row: row[4])
    waiting, due, claimed, expired = (sum(row[n] for row in rows) for n in range(4))
    woken = any(row[6] for row in rows)
    oldest = max(row[7] for row in rows) / 1000
    lag, name = max(0.0, worst[4] / 1000), worst[5].decode()
    return LaneState(waiting, due, claimed, expired, lag, name, woken, oldest, rows[0][8].decode())


def swap_stage(lane: str, before: str, after: str) -> bool:
    """Change a lane's pressure stage where it stands as it was read; True for the one caller over the cluster who changed it."""
    return bool(run("stage", 0, lane, before, after))


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


async def await_for_build(resource: str, owner: str, seconds: float) -> bool:
    """The asynchronous twin of `wait_for_build`."""
    name = key(shard_of(resource), "baton", resource, owner)
    with guard():
        return await aclient().blmove(name, name, seconds, "LEFT", "RIGHT") is not None
