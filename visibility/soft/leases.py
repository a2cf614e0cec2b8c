"""Leases on resources: who watches or holds what until when, and the index of what is visible.

Counts are derived from live leases; nothing is incremented. The end of a lease is judged by the Redis clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from visibility.conf import settings
from visibility.datatypes import registry
from visibility.soft.client import arun, arun_each, client, guard, run, run_each
from visibility.soft.keys import by_shard, key, shard_of, shards

ROLES = {"watch": "watchers", "background": "background", "parked": "background", "hold": "holders"}
CHUNK = 500
# Keys, and pairs of key and member, in one section of a renewal: what Lua can unpack at once. A call has twice as many at most.
SECTION = 1_000
# How much a renewal does.
BEAT, CARRY, WHOLE = 0, 1, 2
# Milliseconds until a refresh, where a renewal has not looked.
NOT_KNOWN = 1_000_000


class Watch(NamedTuple):
    """A lease to write. `kind` is watch, background, parked or hold; `seconds` None means `TTL`.

    `switch` moves the member out of its other role (tab hidden, tab back).
    """

    resource: str
    member: str
    kind: str = "watch"
    seconds: float | None = None
    switch: bool = False


class Renewed(NamedTuple):
    """What a renewal found. `created`: nobody made it visible before. `lapsed`: an unannounced expiry came before.

    `fresh`: the version that its leases vouch for, 0 if none. `soft_ms`: until it is to be refreshed by its age.
    """

    created: bool
    lapsed: bool
    version: int
    fresh: int
    soft_ms: int


class Found(Mapping[str, Renewed]):
    """What renewals found, by resource.

    Kept as numbers, and made a `Renewed` when asked for: of nearly all there is nothing to say but the version that their leases
    vouch for, and tens of thousands of objects a tick would keep the garbage collector busy (it lets go of plain tuples).
    """

    __slots__ = ("_fresh", "_told")

    def __init__(self) -> None:
        self._fresh: dict[str, int] = {}
        # Whether it was created and had lapsed, version, age: of those of which there is more to say.
        self._told: dict[str, tuple[bool, bool, int, int]] = {}

    def __getitem__(self, name: str) -> Renewed:
        fresh, told = self._fresh[name], self._told.get(name)
        if told is None:
            return Renewed(False, False, fresh, fresh, NOT_KNOWN)
        created, lapsed, version, soft_ms = told
        return Renewed(created, lapsed, version, fresh, soft_ms)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fresh)

    def __len__(self) -> int:
        return len(self._fresh)

    def created(self) -> dict[str, Renewed]:
        """Those that nobody made visible before."""
        return {name: self[name] for name, (created, *_) in self._told.items() if created}

    def take(self, sections: list[tuple[str, list[str]]], answer: list[Any]) -> None:
        """An answer of the script: versions and rows of each section."""
        for (data_type, keys), versions, rows in zip(sections, answer[::2], answer[1::2], strict=True):
            names = [f"{data_type}:{one}" for one in keys]
            told = {
                names[number - 1]: (created == 1, lapsed == 1, int(version), soft)
                for number, created, lapsed, version, soft in rows
            }
            self._join(dict(zip(names, map(int, versions), strict=True)), told)

    def join(self, more: Found) -> None:
        """Take in what later renewals found: the newest figures, and every coming to life."""
        self._join(more._fresh, dict(more._told))

    def _join(self, fresh: dict[str, int], told: dict[str, tuple[bool, bool, int, int]]) -> None:
        for name in self._told.keys() & fresh.keys() if self._told else ():
            created, lapsed, *_ = self._told.pop(name)
            now = told.get(name)
            if now is not None:
                told[name] = (now[0] or created, now[1] or lapsed, *now[2:])
            elif created or lapsed:
                told[name] = (created, lapsed, fresh[name], NOT_KNOWN)
        self._fresh.update(fresh)
        self._told.update(told)


class Counts(NamedTuple):
    """Live leases of a resource. Members are `(name, seconds left)`, at most as many as asked for."""

    watch: int
    background: int
    hold: int
    watchers: list[str]
    hidden: list[str]
    holders: list[str]
    visible_for: float


def background_counts(resource: str) -> bool:
    """Whether hidden tabs keep this resource visible: its type has a `background` rate."""
    data_type = registry.find(resource.partition(":")[0])
    return data_type is not None and data_type.background is not None


def _calls(watches: Iterable[Watch], part: int) -> Iterator[tuple[list[tuple[str, list[str]]], int, list[Any]]]:
    """The keys of each section by type, shard, and the script's arguments. Not all at once: what comes first is on its way
    while the rest is sorted out."""
    rows, size = iter(watches), 2 * SECTION * len(shards())
    while some := list(islice(rows, size)):
        yield from _grouped(some, part)


def _grouped(watches: Sequence[Watch], part: int) -> Iterator[tuple[list[tuple[str, list[str]]], int, list[Any]]]:
    default, many = settings.TTL, len(shards()) > 1
    groups: dict[tuple[int, str, str, float, bool], dict[str, list[str]]] = {}
    for resource, member, kind, seconds, switch in watches:
        data_type, _, name = resource.partition(":")
        slot = (shard_of(resource) if many else 0, data_type, kind, default if seconds is None else seconds, switch)
        found = groups.get(slot)
        if found is None:
            found = groups[slot] = {}
        if name in found:
            found[name].append(member)
        else:
            found[name] = [member]
    calls: dict[int, tuple[list[tuple[str, list[str]]], list[Any]]] = {}
    for (shard, data_type, kind, seconds, switch), found in groups.items():
        head = (data_type, ROLES[kind], int(seconds * 1000), int(kind != "parked"), int(switch), part)
        for keys, pairs in _sections(found):
            sections, args = calls.setdefault(shard, ([], []))
            if len(args) + len(pairs) > 4 * SECTION + 7 * len(sections):
                yield sections, shard, args
                sections, args = calls[shard] = [], []
            sections.append((data_type, keys))
            args += (*head, len(pairs) // 2, *pairs)
    for shard, (sections, args) in calls.items():
        yield sections, shard, args


def _sections(members: Mapping[str, Sequence[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Keys, and key and member by turns, for as many sections as it takes."""
    keys: list[str] = []
    pairs: list[str] = []
    for name, some in members.items():
        for start in range(0, len(some), SECTION):
            few = some[start : start + SECTION]
            if len(pairs) + 2 * len(few) > 2 * SECTION:
                yield keys, pairs
                keys, pairs = [], []
            keys.append(name)
            for member in few:
                pairs += (name, member)
    yield keys, pairs


def renew(watches: Iterable[Watch], *, part: int = WHOLE) -> Found:
    """Write or renew leases, many in one call per shard; an upsert, so it heals whatever was lost.

    Args:
        part: `WHOLE`, or less for leases that were written whole less than ten of them ago: `CARRY` carries their trust on, which
            else ends a lease after it was last carried; `BEAT` does only what keeps them. What came to life or is not vouched for
            is told in full by each; the age of the rest only by `WHOLE`.
    """
    out = Found()
    run_each("renew", _calls(watches, part), out.take)
    return out


async def arenew(watches: Iterable[Watch], *, part: int = WHOLE) -> Found:
    """The asynchronous twin of `renew`."""
    out = Found()
    await arun_each("renew", _calls(watches, part), out.take)
    return out


def _release_calls(leases: Iterable[tuple[str, str, str]]) -> Iterator[tuple[int, list[str], list[Any]]]:
    linger = int(settings.LINGER * 1000)
    groups: dict[int, list[tuple[str, list[Any]]]] = {}
    for resource, member, kind in leases:
        args = [resource, ROLES[kind], member, int(background_counts(resource)), linger]
        groups.setdefault(shard_of(resource), []).append((resource, args))
    for shard, rows in groups.items():
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            yield shard, [resource for resource, _ in part], [arg for _, args in part for arg in args]


def release(leases: Iterable[tuple[str, str, str]]) -> dict[str, int]:
    """Drop leases `(resource, member, kind)`; harmless when repeated. Answers what is left, -1 where nothing was dropped.

    The last one out leaves the resource visible for `LINGER` seconds more.
    """
    out: dict[str, int] = {}
    for shard, names, args in _release_calls(leases):
        out.update(zip(names, run("release", shard, *args), strict=True))
    return out


async def arelease(leases: Iterable[tuple[str, str, str]]) -> dict[str, int]:
    """The asynchronous twin of `release`."""
    out: dict[str, int] = {}
    for shard, names, args in _release_calls(leases):
        out.update(zip(names, await arun("release", shard, *args), strict=True))
    return out


def visible_among(data_type: str, keys: Sequence[str]) -> set[str]:
    """Those of these keys that are visible now."""
    out: set[str] = set()
    for shard, names in by_shard([f"{data_type}:{k}" for k in keys]).items():
        cut = len(data_type) + 1
        for start in range(0, len(names), CHUNK):
            found = run("among", shard, data_type, *(name[cut:] for name in names[start : start + CHUNK]))
            out.update(k.decode() for k in found)
    return out


def visible_up_to(data_type: str, limit: int) -> tuple[int, list[str] | None]:
    """How many keys of a type are visible, and which, unless a shard has more than `limit` (then None)."""
    count, keys, whole = 0, [], True
    for shard in shards():
        number, *found = run("visible", shard, data_type, limit)
        count += number
        keys += [k.decode() for k in found]
        whole = whole and len(found) == number
    return count, keys if whole else None


def visible_count(data_type: str) -> int:
    """How many keys of a type are visible."""
    return visible_up_to(data_type, -1)[0]


def visible_iter(data_type: str) -> Iterator[str]:
    """All visible keys of a type, in no order; a key that is visible throughout comes at least once."""
    with guard():
        redis = client()
        for shard in shards():
            now_s, now_us = redis.time(**_node(redis, shard))
            for name, ends in redis.zscan_iter(key(shard, "visible", data_type), count=1000):
                if ends > now_s * 1000 + now_us // 1000:
                    yield name.decode()


def _node(redis: Any, shard: int) -> dict[str, Any]:
    # On a cluster TIME must be asked of the node that holds the shard.
    finder = getattr(redis, "get_node_from_key", None)
    return {"target_nodes": finder(key(shard, "seq"))} if finder else {}


def expire_visible(data_type: str, limit: int = CHUNK) -> list[str]:
    """Pop keys whose visibility has ended. Over the whole cluster each ending is handed to one caller only."""
    return [k.decode() for shard in shards() for k in run("expire", shard, data_type, limit)]


def _counts(row: list[Any]) -> Counts:
    watch, watchers, background, hidden, hold, holders, left = row
    in_front, behind, holding = ([m.decode() for m in pairs[::2]] for pairs in (watchers, hidden, holders))
    return Counts(watch, background, hold, in_front, behind, holding, max(0.0, left / 1000))


def counts(resource: str, limit: int = 100) -> Counts:
    """Live leases of one resource, told apart by kind."""
    return _counts(run("counts", shard_of(resource), resource, limit))


async def acounts(resource: str, limit: int = 100) -> Counts:
    """The asynchronous twin of `counts`."""
    return _counts(await arun("counts", shard_of(resource), resource, limit))
