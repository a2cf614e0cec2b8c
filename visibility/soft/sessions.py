"""Sessions and presence: who has a live socket, where, and what it watches; and the log of what people may not see any more.

A session and its user share a shard. The access log lies in shard 0: its numbers only grow, across a flush too.

| key (after `{PREFIX:shard}:`) | type | holds | lifetime | written by |
|---|---|---|---|---|
| `presence:<user>` | ZSET | session → end of its lease, ms | ten leases | `attend`, `leave` |
| `online` | ZSET | user → end of the last lease, ms; who is here is online | an hour at least | `attend`, `leave`, `offline` |
| `session:<sid>` | HASH | user, node, state (visible, background), since | ten leases | `attend`, `leave` |
| `interests:<sid>` | SET | resources watched | ten leases | `attend`, `interest`, `leave` |
| `node:<node>` | ZSET | session → end of its lease, ms | ten leases | `attend`, `leave` |
| `seen:<user>` | STRING | when a user who is gone was last heard, ms | EVENT_TTL | `leave`, `offline` |
| `process:<process>` | STRING | the mark of a live hub; where it is missing, Redis was flushed | one lease | `attend` |
| `access-log` | ZSET | entry → its number | an hour at least, entries ten minutes | `access` |
| `access`, `access-floor` | STRING | the newest number; the newest that was trimmed | as the log | `access` |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from visibility.conf import settings
from visibility.soft import clock
from visibility.soft.client import aclient, arun, run, turn
from visibility.soft.keys import by_shard, key, shard_of, shards
from visibility.soft.leases import background_counts

NOBODY = "-"
CHUNK = 500
ACCESS_KEEP_MS = 600_000


class Attending(NamedTuple):
    """A session to write. Without a state it is only renewed, with one it is written whole."""

    user: str
    sid: str
    state: str = ""
    resources: Sequence[str] = ()


class Attended(NamedTuple):
    """What happened. `gone`: renewed in vain, send it whole; `refused`: too many of its user; `flushed`: a shard lost all."""

    refused: list[str]
    gone: list[str]
    online: list[str]
    lapsed: list[str]
    flushed: bool
    access: int


class Seat(NamedTuple):
    """One live session of a user. Times are epoch ms; `ends`: of its lease."""

    sid: str
    ends: int
    node: str
    state: str
    since: int


class Who(NamedTuple):
    """A user's live sessions, newest lease first, and when the user was last heard, epoch ms (0: not known)."""

    seats: list[Seat]
    seen: int


class Told(NamedTuple):
    """News of the access log: entries by number, whether some were trimmed unseen, the newest number."""

    entries: list[tuple[int, dict[str, Any]]]
    missed: bool
    last: int


def member(user: str, sid: str) -> str:
    """How a session is written into a resource's leases."""
    return f"{user}/{sid}"


def split_member(name: str) -> tuple[str, str]:
    """User and session of a lease."""
    user, _, sid = name.rpartition("/")
    return user, sid


def _lease_ms() -> int:
    return int(settings.TTL * 1000)


def _attend_calls(
    node: str, process: str, sessions: Iterable[Attending], limit: int, *, light: bool
) -> Iterator[tuple[int, list[Attending], list[Any]]]:
    # Every shard is asked, sessions there or not: the process's mark is what tells of a flush.
    groups: dict[int, list[Attending]] = {shard: [] for shard in shards()}
    if len(groups) == 1:
        groups[0] = list(sessions)
    else:
        for one in sessions:
            groups[shard_of(one.user)].append(one)
    for shard, group in groups.items():
        for start in range(0, max(1, len(group)), CHUNK * 2):
            part = group[start : start + CHUNK * 2]
            args: list[Any] = [_lease_ms(), node, process, limit, len(part) if light else 0]
            for user, sid, state, resources in part:
                args += (user, sid) if light else (user, sid, state, len(resources), *resources)
            yield shard, part, args


class _Roll:
    """What the calls of `attend` have found so far."""

    def __init__(self, flushed: Callable[[], None] | None = None) -> None:
        self.out = Attended([], [], [], [], False, 0)
        self._flushed = flushed

    def take(self, shard: int, part: list[Attending], rows: list[Any]) -> None:
        (now, known, last, *flat), out = rows, self.out
        clock.seen(now)
        for one, status, crossed in zip(part, flat[::2], flat[1::2], strict=True):
            if not status:
                (out.refused if one.state else out.gone).append(one.sid)
            if crossed:
                out.online.append(one.user)
            if crossed == 2:
                out.lapsed.append(one.user)
        if not known and not out.flushed and self._flushed is not None:
            self._flushed()
        self.out = out._replace(flushed=out.flushed or not known, access=int(last) if shard == 0 else out.access)


async def aattend(
    node: str,
    process: str,
    sessions: Iterable[Attending],
    limit: int = 0,
    *,
    light: bool = False,
    flushed: Callable[[], None] | None = None,
) -> Attended:
    """Write or renew sessions of a process, one call a shard and thousand; an upsert.

    Args:
        limit: new sessions a user may have.
        light: all of these are only renewed, and were written or renewed without it less than ten leases ago.
        flushed: called at once where the process's mark is gone. Only the first to ask is told, and a later call may fail.
    """
    roll = _Roll(flushed)
    # One after the other, for the same reason.
    for shard, part, args in _attend_calls(node, process, sessions, limit, light=light):
        roll.take(shard, part, await arun("attend", shard, *args))
    return roll.out


def attend(node: str, process: str, sessions: Iterable[Attending], limit: int = 0, *, light: bool = False) -> Attended:
    """The synchronous twin of `aattend`."""
    roll = _Roll()
    for shard, part, args in _attend_calls(node, process, sessions, limit, light=light):
        roll.take(shard, part, run("attend", shard, *args))
    return roll.out


def _leave_calls(sessions: Iterable[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[str, str]], list[Any]]]:
    groups: dict[int, list[tuple[str, str]]] = {}
    for pair in sessions:
        groups.setdefault(shard_of(pair[0]), []).append(pair)
    for shard, group in groups.items():
        for start in range(0, len(group), CHUNK):
            part = group[start : start + CHUNK]
            yield shard, part, [_lease_ms(), settings.EVENT_TTL * 1000, *(text for pair in part for text in pair)]


def leave(sessions: Iterable[tuple[str, str]]) -> list[str]:
    """End sessions `(user, sid)`; harmless when repeated. Answers the users who went offline by it."""
    return [
        user for shard, part, args in _leave_calls(sessions)
        for (user, _sid), crossed in zip(part, run("leave", shard, *args), strict=True) if crossed
    ]  # fmt: skip


async def aleave(sessions: Iterable[tuple[str, str]]) -> list[str]:
    """The asynchronous twin of `leave`."""
    out: list[str] = []
    for shard, part, args in _leave_calls(sessions):
        rows = await arun("leave", shard, *args)
        out += [user for (user, _sid), crossed in zip(part, rows, strict=True) if crossed]
    return out


async def ainterest(changes: Iterable[tuple[str, str, str, Sequence[str]]]) -> None:
    """Note what sessions watch: `(user, sid, '+' or '-', resources)`."""
    groups: dict[int, list[Any]] = {}
    for user, sid, sign, resources in changes:
        groups.setdefault(shard_of(user), []).extend((sid, sign, len(resources), *resources))
    for shard, args in groups.items():
        await arun("interest", shard, _lease_ms(), *args)


def expire_online(limit: int = CHUNK) -> list[str]:
    """Pop users whose last lease ended by itself. Over the whole cluster each is handed to one caller only."""
    args = (limit, _lease_ms(), settings.EVENT_TTL * 1000)
    return [user.decode() for shard in shards() for user in run("offline", shard, *args)]


def who(users: Sequence[str], limit: int = 100) -> dict[str, Who]:
    """Live sessions of users, at most `limit` each."""
    out: dict[str, Who] = {}
    for shard, names in by_shard(list(dict.fromkeys(users))).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            _now, *rows = run("who", shard, limit, *part)
            out.update((name, _who(row)) for name, row in zip(part, rows, strict=True))
    return out


def _who(row: list[Any]) -> Who:
    online, seen, rows = row
    seats = [
        Seat(sid.decode(), int(float(ends)), node.decode(), state.decode(), int(since or 0))
        for sid, ends, node, state, since in rows
    ]
    ended = int(float(online)) - _lease_ms() if online else 0
    return Who(seats, max(ended, int(seen or 0)))


def interests(sid: str) -> list[str]:
    """What a session watches. Its user is not known, so every shard is asked."""
    for shard in shards():
        for _user, _sid, resources in run("members", shard, "session", sid, 1):
            return sorted(name.decode() for name in resources)
    return []


def members(what: str, name: str, limit: int = CHUNK) -> list[tuple[str, str, list[str]]]:
    """Up to `limit` sessions of a user, node or session id: `(user, sid, resources)`."""
    where = [shard_of(name)] if what == "user" else shards()
    rows = [row for shard in where for row in run("members", shard, what, name, limit)]
    return [(user.decode(), sid.decode(), [r.decode() for r in resources]) for user, sid, resources in rows]


def clear(resources: Sequence[str], limit: int = CHUNK) -> dict[str, list[str]]:
    """Drop up to `limit` leases of each resource; answers the members. Call again while any come back."""
    out: dict[str, list[str]] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), 50):
            part = names[start : start + 50]
            for name, gone in zip(part, run("clear", shard, limit, 0, *part), strict=True):
                out[name] = [m.decode() for m in gone]
    return out


def tell(entry: dict[str, Any]) -> int:
    """Append to the access log; answers the entry's number."""
    return int(run("access", 0, ACCESS_KEEP_MS, json.dumps(entry)))


async def atell(entry: dict[str, Any]) -> int:
    """The asynchronous twin of `tell`."""
    return int(await arun("access", 0, ACCESS_KEEP_MS, json.dumps(entry)))


async def atold(after: int, limit: int = 1000) -> Told:
    """Entries of the access log after a number."""
    last, floor, rows = await arun("accessed", 0, after, limit)
    return Told([_entry(row.decode()) for row in rows], after < int(floor), int(last))


def _entry(row: str) -> tuple[int, dict[str, Any]]:
    number, brace, rest = row.partition("{")
    return int(number), json.loads(brace + rest)


async def atally(resources: Iterable[str]) -> dict[str, int]:
    """How many live leases make each resource visible: watchers, holders, and hidden tabs where they count."""
    out: dict[str, int] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            args = [text for name in part for text in (name, int(background_counts(name)))]
            out.update(zip(part, await arun("tally", shard, *args), strict=True))
    return out


async def afetch(process: str, resources: Sequence[str]) -> tuple[dict[str, bytes | None], bool, int]:
    """Snapshots as stored; whether this process's mark was still there; and the newest number of the access log, read after them.

    Whatever was revoked before one of these snapshots was built has a number that is not above that one.
    """
    guards = [key(0, "process", process), key(0, "access")]
    groups = by_shard(list(resources))
    first = groups.pop(0, [])
    found: dict[str, bytes | None] = {}
    async with turn():
        redis = aclient()
        for shard, names in groups.items():
            found.update(zip(names, await redis.mget([key(shard, "snap", name) for name in names]), strict=True))
        *raw, known, last = await redis.mget([key(0, "snap", name) for name in first] + guards)
    found.update(zip(first, raw, strict=True))
    return found, known is not None, int(last or 0)
