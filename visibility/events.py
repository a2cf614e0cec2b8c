"""Events: what changed, asked for its audiences at once, written to the outbox, and handed to the gate after the commit.

A row of the outbox keeps what a later process needs to do the same: keys and scopes as they were answered, and where that is not
enough (a QuerySet, a method that failed) the values that the instance had.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings as django_settings
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from visibility import audience, outbox
from visibility.audience import Part
from visibility.commit import submit
from visibility.conf import settings
from visibility.datatypes import Change, DataType, Handler
from visibility.models import Event, event_id

logger = logging.getLogger("visibility")
KEPT_KEYS = 1_000
EARLY_KEYS = 10_000
_SECRET = re.compile(r"pass|secret|token|credential|hash|salt|signature|otp|pin\b", re.IGNORECASE)


class Route(NamedTuple):
    """The `@on` methods of one data type for one model and action, each with its `fields` filter."""

    data_type: DataType
    handlers: tuple[tuple[Handler, frozenset[str] | None], ...]

    def takes(self, update_fields: frozenset[str] | None) -> bool:
        return any(f is None or update_fields is None or not f.isdisjoint(update_fields) for _, f in self.handlers)


class Reload(NamedTuple):
    """Instances that are loaded, and asked for, only after the commit.

    `values` are fields as they were at the change; `broken` are types whose methods failed then, so that nothing is known of
    their audience.
    """

    model: type[models.Model]
    pks: Sequence[Any]
    action: str
    routes: tuple[Route, ...]
    update_fields: frozenset[str] | None = None
    values: Mapping[str, Any] | None = None
    broken: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Collected:
    """An event on its way to the gate.

    `written`: the database that holds its row; `row`: what is still to be written. `left` names what is to do by data type where
    another pass has done the rest. `failed`: types to be asked again later; `lost`: types whose audience only scopes can tell.
    """

    id: UUID
    using: str
    at: float
    audiences: dict[str, list[Part]] = field(default_factory=dict)
    reload: Reload | None = None
    failed: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    tenant: str = ""
    written: str | None = None
    row: outbox.Row | None = None
    left: Mapping[str, str] | None = None
    lost: set[str] = field(default_factory=set)

    def add(self, data_type: str, parts: Iterable[Part]) -> None:
        self.audiences.setdefault(data_type, []).extend(parts)


class _Fence:
    """A savepoint before the first query of a handler: what fails in there must not break the host's transaction."""

    __slots__ = ("connection", "depth", "listed", "on", "rollback", "sid")

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection, self.on, self.listed = connection, False, False
        self.depth = len(connection.savepoint_ids)
        self.sid: str | None = None
        self.rollback = connection.needs_rollback

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not self.on:
            # Set first: the savepoint's own statement comes through here, too.
            self.on = True
            self.sid = self.connection.savepoint()
            if len(self.connection.savepoint_ids) == self.depth:
                # Among the open ones, as an atomic block's: what is saved in there goes with it.
                self.connection.savepoint_ids.append(self.sid)  # type: ignore[arg-type]
                self.listed = True
        return execute(sql, params, many, context)

    def __enter__(self) -> None:
        self.connection.execute_wrappers.append(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        connection, sid = self.connection, self.sid
        connection.execute_wrappers.remove(self)
        if not self.on:
            return
        if self.listed:
            connection.savepoint_ids.pop()
        if kind is not None:
            connection.needs_rollback = self.rollback
        if sid is not None:
            connection.savepoint_rollback(sid) if kind is not None else connection.savepoint_commit(sid)


def ask(
    item: Collected,
    instance: models.Model,
    action: str,
    routes: Sequence[Route],
    update_fields: frozenset[str] | None = None,
    gone: frozenset[str] = frozenset(),
) -> None:
    """Run the `@on` methods for one instance. One that raises is logged, noted and left for a later pass.

    Args:
        gone: tables whose rows are about to go: an audience that reads one of them is evaluated now.
    """
    change = Change(instance=instance, action=action, event_id=str(item.id), using=item.using, update_fields=update_fields)
    connection = connections[item.using]
    for data_type, handlers in routes:
        for handler, fields in handlers:
            if fields is not None and update_fields is not None and fields.isdisjoint(update_fields):
                continue
            try:
                if connection.in_atomic_block:
                    with _Fence(connection):
                        parts, complaints = _answer(data_type, handler, change, gone)
                else:
                    parts, complaints = _answer(data_type, handler, change, gone)
            except Exception as error:
                logger.exception("%s.%s failed for %s", data_type.name, getattr(handler, "__name__", handler), item.id)
                item.failed.add(data_type.name)
                item.errors.append(f"{data_type.name}: {type(error).__name__}: {error}")
                continue
            if parts:
                item.audiences.setdefault(data_type.name, []).extend(parts)
            if complaints:
                item.errors += (f"{data_type.name}: {text}" for text in complaints)
                logger.warning("%s.%s: %s", data_type.name, getattr(handler, "__name__", handler), "; ".join(complaints))


def _answer(data_type: DataType, handler: Handler, change: Change, gone: frozenset[str]) -> tuple[list[Part], list[str]]:
    parts, complaints = audience.parts_of(data_type, handler(change))
    if gone:
        parts = [_early(data_type, part, gone) for part in parts]
    return parts, complaints


def _early(data_type: DataType, part: Part, gone: frozenset[str]) -> Part:
    if part.queryset is None:
        return part
    queryset = audience.answered(data_type, part.queryset)
    if isinstance(queryset, tuple):
        return part._replace(keys=queryset, queryset=None)
    if not audience.touches(queryset, gone):
        return part._replace(queryset=queryset)
    keys: list[str] = []
    for chunk in audience.walk(audience.on_primary(queryset), data_type):
        keys += chunk
        if len(keys) > EARLY_KEYS:
            logger.warning(
                "%s: an audience read from rows that are about to be deleted has over %d keys; declare @on(%s) as well",
                data_type.name, EARLY_KEYS, queryset.model._meta.label,
            )  # fmt: skip
            return part
    return part._replace(keys=tuple(dict.fromkeys(keys)), queryset=None, early=True)


def collect(
    instance: models.Model,
    action: str,
    using: str,
    routes: Sequence[Route],
    update_fields: frozenset[str] | None = None,
    gone: frozenset[str] = frozenset(),
    before: Mapping[str, list[Part]] | None = None,
) -> None:
    """An instance changed: ask for its audiences now, while it is as it is, and let the gate run after the commit.

    Args:
        gone: see `ask`.
        before: audiences that were asked for before the change (`losing`).
    """
    item = Collected(event_id(), using, time.time())
    for name, parts in (before or {}).items():
        item.add(name, parts)
    ask(item, instance, action, routes, update_fields, gone)
    if not item.audiences and not item.failed:
        return
    if must_write(routes, item):
        label, pk = instance._meta.label, "" if instance.pk is None else str(instance.pk)
        names = [*item.audiences, *(name for name in item.failed if name not in item.audiences)]
        item.row = outbox.Row(
            item.id, Event.Source.MODEL.value, names, stamp(item.at), label, pk, action, using,
            body=_body(item, instance, action, update_fields), error="; ".join(item.errors)[:2000],
        )  # fmt: skip
    submit(item, connections[using])


def losing(
    instance: models.Model, action: str, using: str, routes: Sequence[Route], gone: frozenset[str]
) -> dict[str, list[Part]]:
    """The audiences that are read from rows about to go, evaluated now; keep them for the `collect` after it."""
    item = Collected(event_id(), using, time.time())
    ask(item, instance, action, routes, None, gone)
    early = {name: [part for part in parts if part.early] for name, parts in item.audiences.items()}
    return {name: parts for name, parts in early.items() if parts}


def collect_later(
    model: type[models.Model],
    pks: Sequence[Any],
    action: str,
    using: str,
    routes: tuple[Route, ...],
    update_fields: frozenset[str] | None = None,
    source: str = Event.Source.MODEL.value,
) -> None:
    """Rows changed that are not at hand: they are loaded, and asked for, after the commit. Give at most 500 keys."""
    routes = tuple(route for route in routes if route.takes(update_fields))
    if not routes or not pks:
        return
    item = Collected(event_id(), using, time.time())
    item.reload = Reload(model, pks, action, routes, update_fields)
    if must_write(routes):
        names = [route.data_type.name for route in routes]
        body = {"again": names, "pks": [str(pk) for pk in pks]}
        if update_fields is not None:
            body["update_fields"] = sorted(update_fields)
        one = str(pks[0]) if len(pks) == 1 else ""
        item.row = outbox.Row(item.id, source, names, stamp(item.at), model._meta.label, one, action, using, body=body)
    submit(item, connections[using])


def must_write(routes: Sequence[Route], item: Collected | None = None) -> bool:
    """Whether the event needs a row: a type it concerns must be delivered, or another process runs the gate."""
    for route in routes:
        if route.data_type.must_deliver:
            name = route.data_type.name
            if item is None or name in item.audiences or name in item.failed:
                return True
    return bool(settings.GATE == "worker")


def stamp(at: float) -> datetime:
    """A time for a DateTimeField, as this project keeps it."""
    return datetime.fromtimestamp(at, UTC) if django_settings.USE_TZ else datetime.fromtimestamp(at)


@lru_cache(maxsize=512)
def kept_fields(model: type[models.Model]) -> tuple[models.Field[Any, Any], ...]:
    """The fields whose values an event keeps, so that a later process can ask again: keys, relations, numbers, dates, flags and
    short text, nothing that looks like a secret."""
    simple = (
        models.IntegerField, models.BooleanField, models.UUIDField, models.DateField, models.TimeField, models.DecimalField,
    )  # fmt: skip

    def keeps(one: models.Field[Any, Any]) -> bool:
        if one.primary_key or one.is_relation or isinstance(one, simple):
            return True
        short = isinstance(one, models.CharField) and one.max_length is not None and one.max_length <= 100
        return short and not _SECRET.search(one.name)

    return tuple(one for one in model._meta.concrete_fields if keeps(one))


def _values(instance: models.Model) -> dict[str, Any]:
    # Straight from the instance: what is deferred stays so, without a query.
    have = instance.__dict__
    values = {one.attname: have[one.attname] for one in kept_fields(type(instance)) if one.attname in have}
    return {name: value for name, value in values.items() if not hasattr(value, "resolve_expression")}


def _body(item: Collected, instance: models.Model, action: str, update_fields: frozenset[str] | None) -> dict[str, Any]:
    body: dict[str, Any] = {}
    again = set(item.failed)
    if item.audiences:
        body["audience"] = {name: rows_of(parts, again, name, action) for name, parts in item.audiences.items()}
    if again:
        body["again"] = sorted(again)
        body["fields"] = _values(instance)
        if item.failed:
            body["failed"] = sorted(item.failed)
        if update_fields is not None:
            body["update_fields"] = sorted(update_fields)
    return body


def rows_of(parts: Sequence[Part], again: set[str], name: str, action: str = "") -> list[dict[str, Any]]:
    """Audiences as JSON. What cannot be kept puts the type's name into `again`: its methods are asked once more."""
    out = []
    for part in parts:
        row: dict[str, Any] = {}
        if part.scope is not None:
            row["scope"] = part.scope
        if part.kind:
            row["kind"] = part.kind
        if part.queryset is not None:
            again.add(name)
        elif len(part.keys) <= KEPT_KEYS or action == "deleted":
            row["keys"] = part.keys
        else:
            again.add(name)
        out.append(row)
    return out
