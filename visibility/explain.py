"""Why a resource is hot or cold: everything that stands about it, and what that means in plain sentences."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any, TypedDict

from asgiref.sync import sync_to_async
from django.db.models import QuerySet
from django.utils import timezone

from visibility import dirty
from visibility.conf import settings
from visibility.datatypes import DataType, ScopesFrom, is_shadow, parse_resource, registry
from visibility.exceptions import RedisAway
from visibility.insight import happenings, reasons
from visibility.models import DirtyFlag, ScopeMark
from visibility.scopes import marks_query, scopes_of
from visibility.soft import leases, looks, snapshots
from visibility.soft.sessions import split_member

MEMBERS = 20
SCOPES = 20


class Member(TypedDict):
    """Who leases it: `kind` is watch, background or hold; holders have neither user nor session."""

    kind: str
    user: str
    session: str
    holder: str


class Leases(TypedDict):
    """Live leases; `members` are at most `MEMBERS` of each kind."""

    watch: int
    background: int
    hold: int
    background_counts: bool
    members: list[Member]


class Pending(TypedDict):
    """It waits for a recompute; `due_in` below 0 means that it is overdue. Seconds."""

    since: str | None
    age: float | None
    due_in: float
    event: str


class Held(TypedDict):
    """Somebody builds it: the claim's token, how long they have, how long it is still theirs. Seconds."""

    owner: str
    age: float | None
    left: float


class Snap(TypedDict):
    """The stored snapshot. `current`: its stamp equals the marks; `trusted`: served without asking SQL; `event_at`: the newest
    change that it is known to show, None where a scope's change may be newer. Seconds, bytes."""

    version: int
    built_at: str
    age: float
    event_at: str | None
    size: int
    build_seconds: float
    soft_in: float
    expires_in: float
    current: bool
    trusted: bool


class Marks(TypedDict):
    """The marks in the database: the flag, and the newest of the scopes it depends on; `error`: why those cannot be told."""

    dirty: bool
    changes: int
    first_at: str | None
    age: float | None
    stamp: str
    scopes: list[happenings.ScopeLine]
    error: str


class Failures(TypedDict):
    """Failed builds in a row, workers in a row that died or hung at it, the last error, and when it may be tried again."""

    in_a_row: int
    workers_lost: int
    error: str
    retry_in: float
    quarantined_at: str | None


class Explanation(TypedDict):
    """What `explain` answers; JSON-able, times in ISO 8601 (UTC), durations in seconds. Every key is always there."""

    resource: str
    data_type: str
    key: str
    state: str
    why: list[str]
    redis: str
    visible_for: float
    leases: Leases
    pending: Pending | None
    lock: Held | None
    snapshot: Snap | None
    marks: Marks
    failures: Failures
    missed: int
    lane: str
    hidden: str
    shadow: bool
    soft_ttl: float
    ttl: float
    target: float
    events: list[happenings.EventLine]
    timeline: list[happenings.Happening]


def iso(at: dt.datetime | float | None) -> str | None:
    """As `happenings.iso`; None stays None, and 0 becomes it."""
    return happenings.iso(at) if at else None


def explain(resource: str) -> Explanation:
    """Everything that stands about one resource, and why it is hot or cold. Bounded: eight queries, four calls to Redis.

    With Redis away `state` is `unknown` and only the database's part is filled.

    Raises:
        BadResource, UnknownDataType: no such resource can exist.
    """
    parsed = parse_resource(resource)
    name, data_type = str(parsed), registry.get(parsed.type)
    counts = seen = None
    try:
        counts = leases.counts(name, MEMBERS)
        seen = looks.look(data_type.lane, [name])[name]
    except RedisAway:
        pass
    flag = DirtyFlag.objects.filter(data_type=parsed.type, key=parsed.key).first()
    marks = dirty.marks(data_type, [parsed.key])[parsed.key]
    stored = snapshots.unpack(seen.raw, data_type.schema) if seen else None
    now = seen.now_ms / 1000 if seen else timezone.now().timestamp()
    scope_marks = None if marks.error else _scope_marks(data_type, parsed.key)
    scopes = _scopes(scope_marks)
    events = happenings.events_of(data_type, parsed.key, seen.event if seen else "", scope_marks)
    out: Explanation = {
        "resource": name,
        "data_type": parsed.type,
        "key": parsed.key,
        "state": "unknown" if counts is None else "hot" if counts.visible_for > 0 else "cold",
        "why": [],
        "redis": "away" if seen is None else "ok",
        "visible_for": counts.visible_for if counts else 0.0,
        "leases": _leases(data_type, counts),
        "pending": _pending(seen, now),
        "lock": _lock(seen, now),
        "snapshot": _snapshot(seen, stored, marks, scopes, now),
        "marks": _marks(marks, scopes, now),
        "failures": _failures(flag, seen, now),
        "missed": marks.missed(stored.stamp) if stored else marks.changes,
        "lane": data_type.lane,
        "hidden": data_type.hidden.value,
        "shadow": is_shadow(parsed.type),
        "soft_ttl": data_type.soft_ttl,
        "ttl": data_type.ttl,
        "target": data_type.freshness.seconds,
        "events": events,
        "timeline": [],
    }
    out["timeline"] = happenings.timeline(name, events, stored, marks, flag, seen, scopes)
    out["why"] = reasons.why(out, lane_exists=data_type.lane in settings.LANES)
    return out


async def aexplain(resource: str) -> Explanation:
    """The asynchronous twin of `explain`."""
    return await sync_to_async(explain)(resource)


def _leases(data_type: DataType, counts: leases.Counts | None) -> Leases:
    members: list[Member] = []
    if counts is not None:
        for kind, names in (("watch", counts.watchers), ("background", counts.hidden), ("hold", counts.holders)):
            for name in names:
                user, session = split_member(name)
                held = kind == "hold"
                members.append(
                    {
                        "kind": kind,
                        "user": "" if held or user == "-" else user,
                        "session": "" if held else session,
                        "holder": session if held else "",
                    }
                )
    return {
        "watch": counts.watch if counts else 0,
        "background": counts.background if counts else 0,
        "hold": counts.hold if counts else 0,
        "background_counts": data_type.background is not None,
        "members": members,
    }


def _pending(seen: looks.Look | None, now: float) -> Pending | None:
    if seen is None or seen.due_ms is None:
        return None
    since = seen.since_ms / 1000
    return {
        "since": iso(since),
        "age": max(0.0, now - since) if since else None,
        "due_in": seen.due_ms / 1000 - now,
        "event": seen.event,
    }


def _lock(seen: looks.Look | None, now: float) -> Held | None:
    if seen is None or seen.claim_ms is None:
        return None
    age = max(0.0, now - seen.built_ms / 1000) if seen.built_ms else None
    return {"owner": seen.owner, "age": age, "left": seen.claim_ms / 1000 - now}


def _snapshot(
    seen: looks.Look | None,
    stored: snapshots.Stored | None,
    marks: dirty.Marks,
    scopes: list[happenings.ScopeLine],
    now: float,
) -> Snap | None:
    if seen is None or stored is None:
        return None
    return {
        "version": stored.version,
        "built_at": iso(stored.built_ms / 1000) or "",
        "age": max(0.0, now - stored.built_ms / 1000),
        "event_at": _shown_up_to(stored, marks, scopes),
        "size": len(stored.body),
        "build_seconds": stored.cost_ms / 1000,
        "soft_in": stored.soft_ms / 1000 - now,
        "expires_in": max(0.0, seen.ttl_ms / 1000),
        "current": marks.same(stored.stamp) and not seen.pending,
        "trusted": seen.fresh == stored.version,
    }


def _shown_up_to(stored: snapshots.Stored, marks: dirty.Marks, scopes: list[happenings.ScopeLine]) -> str | None:
    own = iso(stored.event_ms / 1000)
    newest = scopes[0]["last_at"] if scopes else ""
    if newest <= (own or ""):
        return own
    # Of scopes only the last change is known: while none has moved since, it is shown.
    return newest if marks.same_scopes(stored.stamp) else None


def _marks(marks: dirty.Marks, scopes: list[happenings.ScopeLine], now: float) -> Marks:
    return {
        "dirty": marks.dirty,
        "changes": marks.changes,
        "first_at": iso(marks.first_at),
        "age": max(0.0, now - marks.first_at.timestamp()) if marks.first_at else None,
        "stamp": marks.stamp,
        "scopes": scopes,
        "error": str(marks.error or ""),
    }


def _scope_marks(data_type: DataType, key: str) -> QuerySet[ScopeMark, Any] | None:
    """The marks of the scopes that a resource depends on; None where it has none, or they cannot be told."""
    names: Any = scopes_of(data_type, [key]).get(key, ())
    if isinstance(names, Exception):
        return None
    if not isinstance(names, (ScopesFrom, QuerySet)):
        names = list(itertools.islice(names, 200))
    return marks_query(data_type.name, key, names)


def _scopes(marks: QuerySet[ScopeMark, Any] | None) -> list[happenings.ScopeLine]:
    if marks is None:
        return []
    rows = marks.order_by("-last_at").values_list("scope", "changes", "last_at")[:SCOPES]
    return [{"scope": scope, "changes": changes, "last_at": iso(last) or ""} for scope, changes, last in rows]


def _failures(flag: DirtyFlag | None, seen: looks.Look | None, now: float) -> Failures:
    tries = max(seen.tries if seen else 0, flag.failures if flag else 0)
    error = (seen.error if seen else "") or (flag.last_error if flag else "")
    retry = max(0.0, seen.not_before_ms / 1000 - now) if seen and seen.not_before_ms else 0.0
    quarantined = iso(flag.quarantined_at) if flag else None
    return {
        "in_a_row": tries,
        "workers_lost": seen.lost if seen else 0,
        "error": error,
        "retry_in": retry,
        "quarantined_at": quarantined,
    }
