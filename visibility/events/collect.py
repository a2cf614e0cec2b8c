"""From a change to an event: its audiences are asked for at once, and its row and the gate pass are left to the commit.

A row of the outbox keeps what a later process needs to do the same: keys and scopes as they were answered, and where that is not
enough (a QuerySet, a method that failed) the values that the instance had.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from django.conf import settings as django_settings
from django.db import connections, models

from visibility.conf import settings
from visibility.events import outbox
from visibility.events.audience import Part
from visibility.events.commit import submit
from visibility.events.handlers import Collected, Reload, Route, ask
from visibility.models import Event, event_id

KEPT_KEYS = 1_000
_SECRET = re.compile(r"pass|secret|token|credential|hash|salt|signature|otp|pin\b", re.IGNORECASE)


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
        # Made when it is written, many in one go; what the instance holds now is kept until then.
        item.row = partial(_row, item, type(instance), instance.pk, dict(instance.__dict__), action, update_fields)
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
        item.row = partial(outbox.Row, item.id, source, names, stamp(item.at), model._meta.label, one, action, using, body=body)
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


def _values(model: type[models.Model], have: Mapping[str, Any]) -> dict[str, Any]:
    # Straight from the instance: what is deferred stays so, without a query.
    values = {one.attname: have[one.attname] for one in kept_fields(model) if one.attname in have}
    return {name: value for name, value in values.items() if not hasattr(value, "resolve_expression")}


def _row(
    item: Collected,
    model: type[models.Model],
    pk: Any,
    have: Mapping[str, Any],
    action: str,
    update_fields: frozenset[str] | None,
) -> outbox.Row:
    """The row of an instance's event; `have` are the attributes as they were at the change."""
    names = [*item.audiences, *(name for name in item.failed if name not in item.audiences)]
    body: dict[str, Any] = {}
    again = set(item.failed)
    if item.audiences:
        body["audience"] = {name: rows_of(parts, again, name, action) for name, parts in item.audiences.items()}
    if again:
        body["again"] = sorted(again)
        body["fields"] = _values(model, have)
        if item.failed:
            body["failed"] = sorted(item.failed)
        if update_fields is not None:
            body["update_fields"] = sorted(update_fields)
    return outbox.Row(
        item.id, Event.Source.MODEL.value, names, stamp(item.at), model._meta.label, "" if pk is None else str(pk), action,
        item.using, body=body, error="; ".join(item.errors)[:2000],
    )  # fmt: skip


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
