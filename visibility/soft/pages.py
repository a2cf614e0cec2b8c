"""Bounded pages of the soft state: what is visible, who is online, what waits, what is being built, locks. By rank; no SCAN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from visibility.soft.client import run
from visibility.soft.keys import shards

T = TypeVar("T")
MAX = 500


class Held(NamedTuple):
    """A build under way. Seconds: since when, and how long the claim still lasts (below 0: it has ended)."""

    resource: str
    owner: str
    age: float
    left: float


class Waiting(NamedTuple):
    """A resource that waits. Seconds: until due (below 0: overdue), age of its oldest change."""

    resource: str
    due_in: float
    age: float
    event: str
    tries: int
    tenant: str


class Shown(NamedTuple):
    """A visible resource with its live leases; `left`: seconds until it is hidden unless renewed; `pending`: it waits."""

    resource: str
    left: float
    watch: int
    background: int
    hold: int
    pending: bool


class Person(NamedTuple):
    """A user online: seconds left of the last lease, live sessions."""

    user: str
    left: float
    sessions: int


class NamedLock(NamedTuple):
    """A lock of the host's. Seconds: since when (None: not known), how long it still lasts (below 0: it ended unreleased;
    infinity: it has no lifetime). `owner` is the holder's host and process; "" once it has ended."""

    name: str
    owner: str
    age: float | None
    left: float

    @property
    def ended(self) -> bool:
        return self.left < 0

    @property
    def endless(self) -> bool:
        return math.isinf(self.left)


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a list: the rows from `offset`, and how many there are in all."""

    rows: list[T]
    total: int
    offset: int
    limit: int

    @property
    def following(self) -> int | None:
        """The offset of the next page; None on the last."""
        after = self.offset + self.limit
        return after if after < self.total else None

    @property
    def before(self) -> int | None:
        """The offset of the page before; None on the first."""
        return max(0, self.offset - self.limit) if self.offset else None


def _page(script: str, args: tuple[Any, ...], offset: int, limit: int, parse: Callable[[list[Any], int], T]) -> Page[T]:
    """Ask shard after shard until the page is full; each tells how many it has, so that later pages start in the right one."""
    limit, offset = min(limit, MAX), max(0, offset)
    rows: list[T] = []
    total, skip = 0, offset
    for shard in shards():
        room = limit - len(rows)
        # Without room left only the count is of interest: a range that is empty by its bounds.
        start, stop = (skip, skip + room - 1) if room else (1, 0)
        now, size, *found = run(script, shard, *args, start, stop)
        rows += [parse(row, now) for row in found]
        total += size
        skip = max(0, skip - size)
    return Page(rows, total, offset, limit)


def claims(lane: str, offset: int = 0, limit: int = 50) -> Page[Held]:
    """Builds under way in a lane, those whose claim ends first at the top."""

    def parse(row: list[Any], now: int) -> Held:
        resource, ends, owner, begun = row
        age = (now - int(begun)) / 1000 if begun else 0.0
        return Held(resource.decode(), owner.decode(), max(0.0, age), (float(ends) - now) / 1000)

    return _page("claims", (lane,), offset, limit, parse)


def waiting(lane: str, offset: int = 0, limit: int = 50) -> Page[Waiting]:
    """What waits in a lane, the longest due first."""

    def parse(row: list[Any], now: int) -> Waiting:
        resource, due, since, event, tries, tenant = row
        age = (now - int(since)) / 1000 if since and int(since) else 0.0
        return Waiting(
            resource.decode(), (float(due) - now) / 1000, max(0.0, age), event.decode(), int(tries or 0), tenant.decode()
        )

    return _page("waiting", (lane,), offset, limit, parse)


def shown(data_type: str, offset: int = 0, limit: int = 50) -> Page[Shown]:
    """Visible resources of a type, those that stay visible longest first."""

    def parse(row: list[Any], now: int) -> Shown:
        key, ends, watch, background, hold, since = row
        return Shown(f"{data_type}:{key.decode()}", (float(ends) - now) / 1000, watch, background, hold, bool(since))

    return _page("shown", (data_type,), offset, limit, parse)


def people(offset: int = 0, limit: int = 50) -> Page[Person]:
    """Users online, those heard last first."""

    def parse(row: list[Any], now: int) -> Person:
        user, ends, sessions = row
        return Person(user.decode(), (float(ends) - now) / 1000, sessions)

    return _page("people", (), offset, limit, parse)


def locks(offset: int = 0, limit: int = 50) -> Page[NamedLock]:
    """Named locks, those that ended unreleased first, then those that end next. Redis lists the thousand that end last."""

    def parse(row: list[Any], now: int) -> NamedLock:
        name, ends, held, left_ms = row
        owner, _, fence = held.decode(errors="replace").rpartition("|")
        # A fence is the microsecond of its taking, or a little later.
        age = max(0.0, now / 1000 - int(fence) / 1_000_000) if fence else None
        left = math.inf if left_ms == -1 else left_ms / 1000 if left_ms >= 0 else (float(ends) - now) / 1000
        return NamedLock(name.decode(errors="replace"), owner.rpartition("/")[0], age, left)

    return _page("locks", (), offset, limit, parse)


class Crowd(NamedTuple):
    """How many keys of a type are visible, and the live watchers of some of them."""

    visible: int
    watchers: list[int]


def crowd(data_type: str, sample: int = 200) -> Crowd:
    """Watchers per resource of a type, on a sample of at most so many a shard."""
    visible, counts = 0, []
    for shard in shards():
        total, *found = run("sample", shard, data_type, sample)
        visible += total
        counts += found
    return Crowd(visible, counts)


def ended(ms: int, *names: str) -> Iterator[int]:
    """For each sorted set of times, by role and name, how many members lie further back than so many ms."""
    rows = [run("ended", shard, ms, *names) for shard in shards()]
    for column in zip(*rows, strict=True):
        yield sum(column)
