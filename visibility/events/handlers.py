"""Running `@on` methods: an instance in, checked audiences out. One that fails costs its own type another try, nothing more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from visibility.datatypes import Change, DataType, Handler
from visibility.events import audience, outbox
from visibility.events.audience import Part

logger = logging.getLogger("visibility")
EARLY_KEYS = 10_000


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

    `written`: the database that holds its row; `row` makes the one that is still to be written. `left` names what is to do by
    data type where another pass has done the rest. `failed`: types to be asked again later; `lost`: types whose audience only
    scopes can tell.
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
    row: Callable[[], outbox.Row] | None = None
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
            if kind is not None:
                connection.savepoint_rollback(sid)
            connection.savepoint_commit(sid)


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
