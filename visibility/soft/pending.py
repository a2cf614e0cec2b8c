"""What waits for a recompute: at most one entry a resource, in the lane of its data type, with the age of its oldest change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from visibility.conf import Lane, settings
from visibility.soft.client import run
from visibility.soft.keys import CHUNK, shard_of, shards


class Item(NamedTuple):
    """A resource to recompute. `since_ms`: its oldest change, epoch ms. `forced`: build it even if nobody watches.

    `refresh`: nothing changed, so what stands may be served until the new build is there; implies `forced`. With `seen` it is
    left out where a newer version is stored by now.
    """

    resource: str
    since_ms: int
    event: str = ""
    forced: bool = False
    window: float = 0.25
    hidden_window: float = 0.0
    tenant: str = ""
    refresh: bool = False
    seen: int | None = None


class Pended(NamedTuple):
    """Outcome: items taken, those of them that joined an entry already there, shed ones with reasons, shards to wake.

    `idle`: shards of those where nothing was pending or claimed before, so that no drain is waiting in the queue.
    """

    accepted: int
    merged: int
    shed: list[tuple[str, str]]
    wake: list[int]
    idle: Collection[int] = ()


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
            for resource, since, event, forced, window, hidden, tenant, refresh, seen in group[start : start + CHUNK]:
                front, back = int(max(window, floor) * 1000), int(max(hidden, floor) * 1000)
                if refresh:
                    since = -1 if seen is None else seen
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
