"""The rows of the event log that doubles as outbox: written in the change's own transaction, finished by a gate pass.

A row is unprocessed while `processed_at` is null. `retry_at` keeps other processes off: it is a claim while a pass runs, and
the back-off after one that left something to do. What is left, by data type, stands in `decision[type]["left"]`: `look` where
everything was marked while Redis was away and only the visible ones are still to be found, else `all`.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, Q, Value, When
from django.db.models.constants import OnConflict
from django.utils import timezone

from visibility.datatypes import legible
from visibility.models import Event
from visibility.sql import column_of

logger = logging.getLogger("visibility")
COLUMNS = (
    "id", "source", "data_type", "model", "object_pk", "action", "using", "external_id", "version", "tenant", "body",
    "created_at", "error",
)  # fmt: skip
CHUNK = 500
CLAIM = 60
ABSENT_SECONDS = 30.0
MAX_ATTEMPTS = 20
MAX_DELAY = 600
LOOK, ALL = "look", "all"

_encode: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str).encode
_absent: dict[str, float] = {}


class Statement(NamedTuple):
    """The insert of rows, ready for a kind of database; what is taken already is left as it is.

    PostgreSQL takes the rows as one JSON parameter: a third of the time that as many parameters as values take.
    """

    head: str
    values: str
    tail: str
    size: int
    native_uuid: bool
    recordset: bool
    adapt: Callable[[datetime], Any]


_statements: dict[tuple[str, str], Statement] = {}


def _statement(connection: BaseDatabaseWrapper) -> Statement:
    slot = (connection.alias, connection.vendor)
    if slot not in _statements:
        quote, ops = connection.ops.quote_name, connection.ops
        recordset = connection.vendor == "postgresql"
        columns = ", ".join(quote(column_of(Event, name)) for name in COLUMNS)
        kinds = (f"{quote(column_of(Event, name))} {Event._meta.get_field(name).db_type(connection)}" for name in COLUMNS)
        rows = f"SELECT {columns}, '', 0 FROM jsonb_to_recordset(%s::jsonb) AS rows({', '.join(kinds)})"  # noqa: S608
        into = f"{quote(Event._meta.db_table)} ({columns}, {quote('outcome')}, {quote('attempts')})"
        _statements[slot] = Statement(
            f"{ops.insert_statement(on_conflict=OnConflict.IGNORE)} {into} {rows if recordset else 'VALUES '}",
            f"({', '.join(['%s'] * len(COLUMNS))}, '', 0)",
            " " + ops.on_conflict_suffix_sql([], OnConflict.IGNORE, [], []),
            max(1, min(CHUNK, (connection.features.max_query_params or 30_000) // len(COLUMNS))),
            connection.features.has_native_uuid_field,
            recordset,
            ops.adapt_datetimefield_value,
        )
    return _statements[slot]


class Row(NamedTuple):
    """What is known of an event when it is written."""

    id: UUID
    source: str
    data_types: Sequence[str]
    created_at: datetime
    model: str = ""
    object_pk: str = ""
    action: str = ""
    using: str = ""
    external_id: str | None = None
    version: int | None = None
    tenant: str = ""
    body: Mapping[str, Any] | None = None
    error: str = ""


def _values(statement: Statement, row: Row) -> tuple[Any, ...]:
    types, body = ",".join(row.data_types), row.body
    if len(types) > 255:
        types, body = "*", {**(body or {}), "types": list(row.data_types)}
    return (
        str(row.id) if statement.native_uuid else row.id.hex,
        row.source,
        types,
        row.model[:100],
        row.object_pk[:255],
        row.action,
        row.using[:64],
        row.external_id,
        row.version,
        row.tenant[:100],
        body if body is None or statement.recordset else _encode(body),
        row.created_at if statement.recordset else statement.adapt(row.created_at),
        legible(row.error),
    )


def _insert(connection: BaseDatabaseWrapper, rows: Sequence[Row]) -> int:
    """Insert what is not there; answers how many rows that was."""
    statement = _statement(connection)
    made = 0
    with connection.cursor() as cursor:
        for start in range(0, len(rows), statement.size):
            part = rows[start : start + statement.size]
            if statement.recordset:
                rows_json = _encode([dict(zip(COLUMNS, _values(statement, row), strict=True)) for row in part])
                cursor.execute(statement.head + statement.tail, [rows_json])
            else:
                sql = statement.head + ", ".join([statement.values] * len(part)) + statement.tail
                cursor.execute(sql, [value for row in part for value in _values(statement, row)])
            made += cursor.rowcount
    return made


def write(connection: BaseDatabaseWrapper, rows: Sequence[Row]) -> bool:
    """Insert rows on this connection, in whatever transaction is open; False if the database does not take them.

    They stand in a savepoint of their own: a table that is missing, that is locked for too long, or that this role may not write,
    must not break the host's transaction.
    """
    alias = connection.alias
    if _absent.get(alias, 0.0) > time.monotonic() or connection.needs_rollback:
        return False
    try:
        if router.allow_migrate_model(alias, Event):
            sid = connection.savepoint()
            try:
                _insert(connection, rows)
            except BaseException:
                if sid is not None:
                    connection.savepoint_rollback(sid)
                    connection.savepoint_commit(sid)
                raise
            if sid is not None:
                connection.savepoint_commit(sid)
            return True
    except DatabaseError as error:
        logger.warning("no event can be written to the database %r (%s): its changes are best effort for now", alias, error)
    _absent[alias] = time.monotonic() + ABSENT_SECONDS
    return False


def write_once(connection: BaseDatabaseWrapper, row: Row) -> bool:
    """Insert a row with an external id; False if its data type has seen that id.

    Raises:
        DatabaseError: the database does not take it.
    """
    return _insert(connection, [row]) == 1


def forget() -> None:
    """Forget which databases have refused events; for tests."""
    _absent.clear()


def aliases() -> list[str]:
    """The databases that may hold events: the one where they belong, and each that the routers let have the table."""
    home = router.db_for_write(Event)
    return [home, *(alias for alias in connections if alias != home and router.allow_migrate_model(alias, Event))]


def _chunks(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


def finish(alias: str, ids: Sequence[UUID], decision: Mapping[str, Any], took_ms: float) -> None:
    """Note that a pass has done all that these events asked for."""
    connection = connections[alias]
    postgres, quote = connection.vendor == "postgresql", connection.ops.quote_name
    head = f"UPDATE {quote(Event._meta.db_table)} SET processed_at = %s, outcome = %s, decision = "  # noqa: S608
    head += f"{'%s::jsonb' if postgres else '%s'}, took_ms = %s, retry_at = NULL WHERE id "
    values = [connection.ops.adapt_datetimefield_value(timezone.now()), Event.Outcome.DONE.value, _encode(decision), took_ms]
    with connection.cursor() as cursor:
        if postgres:
            # One array instead of a parameter an id: half the time of the whole statement.
            cursor.execute(f"{head} = ANY(%s::uuid[])", [*values, [str(pk) for pk in ids]])
            return
        for part in _chunks(ids):
            keys = [str(pk) if connection.features.has_native_uuid_field else pk.hex for pk in part]
            cursor.execute(f"{head} IN ({', '.join(['%s'] * len(keys))})", [*values, *keys])


def leave(alias: str, ids: Sequence[UUID], decision: Mapping[str, Any], error: str, took_ms: float) -> None:
    """Note what a pass did and what it left to do; after `MAX_ATTEMPTS` tries that failed, the event is given up as failed.

    Waiting for Redis is no failure and is not counted.
    """
    now = timezone.now()
    waits = all(one.get("left") in (None, LOOK) for one in decision.values())
    rows = Event.objects.using(alias)
    for part in _chunks(ids):
        tries = dict(rows.filter(pk__in=part, processed_at=None).values_list("pk", "attempts"))
        for attempts in sorted(set(tries.values())):
            group = [pk for pk, n in tries.items() if n == attempts]
            given_up = not waits and attempts >= MAX_ATTEMPTS
            delay = min(MAX_DELAY, 2 ** min(attempts, 16)) * random.uniform(0.75, 1.25)  # noqa: S311
            outcome = Event.Outcome.DEFERRED if waits else Event.Outcome.FAILED if given_up else Event.Outcome.WAITING
            rows.filter(pk__in=group).update(
                processed_at=now if given_up else None,
                outcome=outcome,
                decision=decision,
                error=legible(error)[:2000],
                attempts=max(0, attempts - 1) if waits else attempts,
                retry_at=None if given_up else now + timedelta(seconds=min(delay, 5) if waits else delay),
                took_ms=took_ms,
            )


def hold(alias: str, ids: Sequence[UUID]) -> None:
    """Keep other processes off these events for `CLAIM` seconds more: this pass is a long one."""
    until = timezone.now() + timedelta(seconds=CLAIM)
    for part in _chunks(ids):
        Event.objects.using(alias).filter(pk__in=part, processed_at=None).update(retry_at=until)


def claim(alias: str, limit: int, grace: float, *, deferred: bool = True) -> list[Event]:
    """Up to `limit` unprocessed events of a database, oldest first, claimed so that no other process takes them.

    Args:
        grace: seconds that an event which no pass has touched stays unprocessed before it is taken, counted from the first
            call that sees it (a long transaction's rows are old when they appear, and its own gate is about to run).
        deferred: also take those that only wait for Redis.
    """
    now = timezone.now()
    connection = connections[alias]
    waiting = Event.objects.using(alias).filter(processed_at=None).order_by("created_at")
    if not deferred:
        waiting = waiting.exclude(outcome=Event.Outcome.DEFERRED)
    if grace > 0:
        unseen = list(waiting.filter(retry_at=None).values_list("pk", flat=True)[: 4 * limit])
        for part in _chunks(unseen):
            Event.objects.using(alias).filter(pk__in=part, processed_at=None, retry_at=None).update(
                retry_at=now + timedelta(seconds=grace)
            )
    due = waiting.filter(Q(retry_at__lte=now) if grace > 0 else Q(retry_at=None) | Q(retry_at__lte=now))
    if not due.exists():
        return []
    with transaction.atomic(using=alias):
        if connection.features.has_select_for_update:
            due = due.select_for_update(skip_locked=connection.features.has_select_for_update_skip_locked)
        else:
            # SQLite: a write, even of nothing, takes the write lock before the rows are chosen.
            with connection.cursor() as cursor:
                quote = connection.ops.quote_name
                cursor.execute(f"UPDATE {quote(Event._meta.db_table)} SET attempts = attempts WHERE 1 = 0")  # noqa: S608
        rows = list(due[:limit])
        for part in _chunks([row.pk for row in rows]):
            Event.objects.using(alias).filter(pk__in=part).update(
                # The column is small; an event that waits for Redis for days must not overflow it.
                attempts=Case(When(attempts__gte=30_000, then=Value(30_000)), default=F("attempts") + 1),
                retry_at=now + timedelta(seconds=CLAIM),
            )
    return rows


def prune(now: datetime, keep: timedelta, limit: int = 10_000) -> int:
    """Delete processed events older than `keep`, in batches, at most `limit` a database and call; answers how many went.

    What is unprocessed stays. With an event its external id is forgotten: seen again after that, it counts as new.
    """
    gone = 0
    for alias in aliases():
        rows = Event.objects.using(alias)
        for _ in range(0, limit, CHUNK):
            old = list(rows.filter(processed_at__lt=now - keep).order_by("processed_at").values_list("pk", flat=True)[:CHUNK])
            if old:
                gone += rows.filter(pk__in=old).delete()[0]
            if len(old) < CHUNK:
                break
    return gone


def left(row: Event) -> dict[str, str]:
    """What is still to do of an event, by data type: `look` or `all`."""
    decision = row.decision if isinstance(row.decision, dict) else {}
    body = row.body if isinstance(row.body, dict) else {}
    names: Iterable[str] = body.get("types") or [name for name in row.data_type.split(",") if name]
    return {name: decision[name].get("left", "") if name in decision else ALL for name in names}
