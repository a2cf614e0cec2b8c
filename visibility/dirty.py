"""Marks in the database: this resource, or this scope, changed. A mark is a count that only grows.

A snapshot carries the marks as they stood before its build read the source (`stamp`); it is fresh only while they
have not moved. A flag is cleared only if it stands as it was read. See rules 2, 4, 6 and 8 in `docs/architecture.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import DatabaseError, connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, Sum
from django.utils import timezone

from visibility.datatypes import DataType, legible
from visibility.models import DirtyFlag, ScopeMark, Summary
from visibility.scopes import Scopes, marks_query, scopes_of, unknown
from visibility.sql import DATABASE_AWAY, column_of, update_pairs, upsert

EPOCH_US = 1_704_067_200_000_000
CHUNK = 100
# Keys of a statement that reads flags only.
FLAGS = 500
QUARANTINE = timedelta(minutes=15)
CLEARED = {"first_at": None, "changes": 0, "failures": 0, "not_before": None, "quarantined_at": None, "last_error": ""}


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How the marks of one resource stand. `flag` is the flag's count, `scopes` the sum over its scopes.

    With `error` its scopes could not be told: nothing that is stored counts as current, and it cannot be built.
    """

    flag: int = 0
    scopes: int = 0
    scope_changes: int = 0
    changes: int = 0
    first_at: datetime | None = None
    quarantined: bool = False
    error: Exception | None = None

    @property
    def stamp(self) -> str:
        return f"{self.flag}.{self.scopes}.{self.scope_changes}"

    @property
    def dirty(self) -> bool:
        return self.first_at is not None

    def same(self, stamp: str) -> bool:
        """Whether nothing moved since a snapshot was stamped so."""
        return self.error is None and stamp.split(".")[:2] == [str(self.flag), str(self.scopes)]

    def same_scopes(self, stamp: str) -> bool:
        """Whether no scope moved since a snapshot was stamped so."""
        return stamp.split(".")[1:2] == [str(self.scopes)]

    def missed(self, stamp: str) -> int:
        """Changes that a snapshot of this stamp does not show, as far as they were counted."""
        parts = stamp.split(".")
        since = self.scope_changes - int(parts[2]) if len(parts) == 3 and parts[2].isdigit() else 0
        return (self.changes if parts[0] != str(self.flag) else 0) + max(0, since)


CLEAN = Marks()


def next_mark() -> int:
    """Microseconds since 2024: below a mark that exists, the upsert takes that plus one instead."""
    return time.time_ns() // 1000 - EPOCH_US


def _using(model: type[models.Model]) -> str:
    return router.db_for_write(model)


def mark(
    data_type: str, changes: Mapping[str, int], at: datetime | None = None, kinds: Mapping[str, Mapping[str, int]] | None = None
) -> None:
    """Flag resources as changed, `changes[key]` times, first at `at`; with `kinds`, count them by kind for summaries."""
    at, stamp = at or timezone.now(), next_mark()
    rows = [(data_type, key, stamp, n, at, at, 0, "") for key, n in sorted(changes.items())]
    upsert(
        DirtyFlag,
        ("data_type", "key", "mark", "changes", "last_at", "first_at", "failures", "last_error"),
        rows,
        unique=("data_type", "key"),
        update={
            "mark": "CASE WHEN {old.mark} >= {new.mark} THEN {old.mark} + 1 ELSE {new.mark} END",
            "changes": "CASE WHEN {old.first_at} IS NULL THEN {new.changes} ELSE {old.changes} + {new.changes} END",
            "last_at": "{new.last_at}",
            "first_at": "COALESCE({old.first_at}, {new.first_at})",
        },
    )
    if kinds:
        upsert(
            Summary,
            ("data_type", "key", "kind", "count", "first_at", "last_at"),
            [(data_type, key, kind, n, at, at) for key, group in sorted(kinds.items()) for kind, n in sorted(group.items())],
            unique=("data_type", "key", "kind"),
            update={"count": "{old.count} + {new.count}", "last_at": "{new.last_at}"},
        )


def mark_scopes(data_type: str, changes: Mapping[str, int], at: datetime | None = None) -> None:
    """Mark scopes: every resource that depends on one is stale from now on."""
    at, stamp = at or timezone.now(), next_mark()
    upsert(
        ScopeMark,
        ("data_type", "scope", "mark", "changes", "last_at"),
        [(data_type, scope, stamp, n, at) for scope, n in sorted(changes.items())],
        unique=("data_type", "scope"),
        update={
            "mark": "CASE WHEN {old.mark} >= {new.mark} THEN {old.mark} + 1 ELSE {new.mark} END",
            "changes": "{old.changes} + {new.changes}",
            "last_at": "{new.last_at}",
        },
    )


def marks(data_type: DataType, keys: Sequence[str]) -> dict[str, Marks]:
    """The marks of these resources: one SQL statement for 500 keys, or for 100 with their scopes, those given as queries too.

    A key whose scopes cannot be told has `error` in its marks; the others are not touched by that.
    """
    out = dict.fromkeys(keys, CLEAN)
    step = CHUNK if data_type.has_scopes else FLAGS
    for start in range(0, len(keys), step):
        part = keys[start : start + step]
        _read(data_type, part, scopes_of(data_type, part), out)
    return out


def _flags(connection: BaseDatabaseWrapper, data_type: str, keys: Sequence[str]) -> tuple[str, list[Any]]:
    """The statement that reads flags. It is on the path of every build, and the ORM takes longer over it than the database."""
    quote = connection.ops.quote_name
    names = ", ".join(quote(column_of(DirtyFlag, name)) for name in ("key", "mark", "changes", "first_at", "quarantined_at"))
    key, kind = quote(column_of(DirtyFlag, "key")), quote(column_of(DirtyFlag, "data_type"))
    array = connection.vendor == "postgresql"
    among = "= ANY(%s)" if array else f"IN ({', '.join(['%s'] * len(keys))})"
    # Names come from the model's own columns; every value is a parameter.
    sql = f"SELECT {names} FROM {quote(DirtyFlag._meta.db_table)} WHERE {kind} = %s AND {key} {among}"  # noqa: S608
    return sql, [data_type, list(keys)] if array else [data_type, *keys]


def _summed(connection: BaseDatabaseWrapper, data_type: str, key: str, scopes: Scopes) -> tuple[str, tuple[Any, ...]] | None:
    """The statement that sums a resource's scope marks; None where it has no scopes."""
    query = marks_query(data_type, key, scopes)
    if query is None:
        return None
    summed = query.annotate(total=Sum("mark"), seen=Sum("changes")).values_list("visibility_key", "total", "seen").query
    try:
        sql, params = summed.get_compiler(connection=connection).as_sql()
    except EmptyResultSet:
        return None
    # A statement that the ORM compiled; every value is a parameter.
    return f"SELECT 1 AS part, v.*, NULL, NULL FROM ({sql}) v", params  # noqa: S608


def _read(data_type: DataType, keys: Sequence[str], scopes: Mapping[str, Scopes | Exception], out: dict[str, Marks]) -> None:
    connection = connections[router.db_for_write(DirtyFlag)]
    sql, params = _flags(connection, data_type.name, keys)
    parts = [f"SELECT 0 AS part, v.* FROM ({sql}) v"]  # noqa: S608
    for key in keys if scopes else ():
        found = scopes.get(key, ())
        try:
            one = None if isinstance(found, Exception) else _summed(connection, data_type.name, key, found)
        except DATABASE_AWAY:
            raise
        except Exception as error:
            found = error
        if isinstance(found, Exception):
            out[key] = replace(out[key], error=unknown(data_type, found))
        elif one is not None:
            parts.append(one[0])
            params += one[1]
    try:
        with connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(parts), params)
            rows = cursor.fetchall()
    except DATABASE_AWAY:
        raise
    except Exception as error:
        # A value that the database or its driver does not take; a transaction is over where the database said so.
        if len(parts) == 1 or (isinstance(error, DatabaseError) and connection.in_atomic_block):
            raise
        if len(keys) == 1:
            scopes = {keys[0]: error}
        half = len(keys) // 2
        for some in filter(None, (keys[:half], keys[half:])):
            _read(data_type, some, scopes, out)
        return
    for part, key, count, n, first, held in rows:
        now = out[key]
        if part:
            out[key] = replace(now, scopes=int(count or 0), scope_changes=int(n or 0))
        else:
            out[key] = replace(
                now, flag=int(count), changes=int(n) if first else 0, first_at=_aware(first), quarantined=held is not None
            )


def _aware(value: Any) -> datetime | None:
    """A datetime as the driver gave it (text on SQLite), made aware."""
    if value is None:
        return None
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.replace(tzinfo=UTC) if timezone.is_naive(found) else found


def clear(data_type: str, seen: Mapping[str, Marks]) -> set[str]:
    """Clear flags that stand as they were read; answers the keys whose flag moved meanwhile (they stay dirty)."""
    keys = [key for key, one in sorted(seen.items()) if one.dirty]
    moved: set[str] = set()
    table = DirtyFlag.objects.using(_using(DirtyFlag))
    for start in range(0, len(keys), CHUNK):
        part = keys[start : start + CHUNK]
        same = [(key, seen[key].flag) for key in part]
        done = update_pairs(DirtyFlag, CLEARED, where={"data_type": data_type}, pair=("key", "mark"), among=same)
        if done < len(part):
            moved.update(table.filter(data_type=data_type, key__in=part, first_at__isnull=False).values_list("key", flat=True))
    return moved


def take_summaries(data_type: str, keys: Sequence[str]) -> dict[str, dict[str, int]]:
    """What these resources missed by kind, and forget it: it is about to be shown."""
    table = Summary.objects.using(_using(Summary))
    out: dict[str, dict[str, int]] = {}
    for start in range(0, len(keys), CHUNK):
        for row in table.filter(data_type=data_type, key__in=keys[start : start + CHUNK]):
            # Compared, so that a change counted between the two statements stays.
            if table.filter(pk=row.pk, count=row.count).delete()[0]:
                out.setdefault(row.key, {})[row.kind] = row.count
    return out


def quarantine(data_type: str, key: str, failures: int, error: str) -> None:
    """Set a resource aside that keeps failing: it stays dirty, shows in the admin, and is not promoted for a while."""
    mark(data_type, {key: 1})
    now = timezone.now()
    DirtyFlag.objects.using(_using(DirtyFlag)).filter(data_type=data_type, key=key).update(
        failures=failures, last_error=legible(error)[:2000], quarantined_at=now, not_before=now + QUARANTINE
    )


def release(data_type: str, keys: Sequence[str]) -> int:
    """Let quarantined resources be promoted again."""
    table = DirtyFlag.objects.using(_using(DirtyFlag)).filter(data_type=data_type, key__in=list(keys))
    return table.update(quarantined_at=None, failures=0, not_before=None)


def _waiting(data_type: str) -> models.QuerySet[DirtyFlag]:
    """Dirty flags of a type; those in quarantine only once it was served: what made the build fail may be over."""
    table = DirtyFlag.objects.using(_using(DirtyFlag)).filter(data_type=data_type, first_at__isnull=False)
    return table.filter(Q(quarantined_at=None) | Q(not_before__lte=timezone.now()))


def oldest(data_type: str, limit: int, after: tuple[datetime, str] | None = None) -> list[tuple[str, datetime]]:
    """Dirty resources, longest first, without those in quarantine; go on `after` the last (time, key) of the page before."""
    table = _waiting(data_type)
    if after is not None:
        at, key = after
        # Many rows share one time: a bulk mark has one.
        table = table.filter(first_at__gte=at).exclude(first_at=at, key__lte=key)
    return [(key, first) for key, first in table.order_by("first_at", "key").values_list("key", "first_at")[:limit] if first]


def dirty_among(data_type: str, keys: Sequence[str]) -> dict[str, datetime]:
    """Those of these keys that are dirty and not in quarantine, with the time since when."""
    out: dict[str, datetime] = {}
    table = _waiting(data_type)
    for start in range(0, len(keys), 500):
        out.update((k, at) for k, at in table.filter(key__in=keys[start : start + 500]).values_list("key", "first_at") if at)
    return out


def prune(now: datetime, keep: timedelta, limit: int = 5000) -> int:
    """Delete clean flags and scope marks not moved for `keep`; a snapshot stamped with one is rebuilt at its next read."""
    gone = 0
    for model, extra in ((DirtyFlag, {"first_at__isnull": True}), (ScopeMark, {})):
        table = model._default_manager.using(_using(model))
        old = list(table.filter(last_at__lt=now - keep, **extra).values_list("pk", flat=True)[:limit])
        for start in range(0, len(old), 500):
            gone += table.filter(pk__in=old[start : start + 500], last_at__lt=now - keep, **extra).delete()[0]
    return gone
