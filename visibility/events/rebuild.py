"""What a later process needs to take an event through the gate: its audiences again, from its row or from the instance.

Audiences that could be kept stand in the row. The rest is asked for anew, of the instance with the values it had at the
change. Where neither can be had, the scopes in the row still find what depends on them (`Collected.lost`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import models

from visibility.datatypes import registry
from visibility.events import outbox, sources
from visibility.events.audience import Part
from visibility.events.collect import kept_fields
from visibility.events.handlers import Collected, Reload, ask
from visibility.models import Event

logger = logging.getLogger("visibility")
CHUNK = 500


def from_rows(rows: Iterable[Event], alias: str) -> list[Collected]:
    """Events as the gate takes them, from rows of this database."""
    return [_from_row(row, alias) for row in rows]


def _from_row(row: Event, alias: str) -> Collected:
    item = Collected(row.pk, row.using or alias, row.created_at.timestamp(), tenant=row.tenant, written=alias)
    todo = {name: how for name, how in outbox.left(row).items() if how}
    item.left = todo
    body: Mapping[str, Any] = row.body if isinstance(row.body, dict) else {}
    for name in todo:
        if registry.find(name) is None:
            item.failed.add(name)
            item.errors.append(f"no data type {name!r} is registered in this process")
    known = [name for name in todo if name not in item.failed]
    stored = {row.data_type: [body]} if row.source == Event.Source.EMIT else body.get("audience", {})
    for name in known:
        item.add(name, (_part(one) for one in stored.get(name, ())))
    again = [name for name in known if name in body.get("again", ())]
    if again:
        _ask_again(item, row, body, again)
    return item


def _part(stored: Mapping[str, Any]) -> Part:
    return Part(tuple(stored.get("keys") or ()), None, stored.get("scope"), stored.get("kind", ""))


def _ask_again(item: Collected, row: Event, body: Mapping[str, Any], names: Sequence[str]) -> None:
    try:
        model = apps.get_model(row.model)
    except (LookupError, ValueError):
        item.failed.update(names)
        item.errors.append(f"no model {row.model!r} is installed in this process")
        return
    fields = body.get("update_fields")
    item.reload = Reload(
        model,
        body.get("pks") or ([row.object_pk] if row.object_pk else []),
        row.action,
        sources.routes_for(model, row.action, names),
        None if fields is None else frozenset(fields),
        body.get("fields"),
        frozenset(body.get("failed", ())),
    )


def load(items: Iterable[Collected]) -> None:
    """Load what is still to be asked, many rows a query, and ask."""
    wanted: dict[tuple[type[models.Model], str], dict[Any, None]] = {}
    todo: list[tuple[Collected, Reload, list[Any]]] = []
    for item in items:
        reload = item.reload
        if reload is None:
            continue
        item.reload = None
        pks = [pk for one in reload.pks if (pk := _to_pk(reload.model, one)) is not None]
        todo.append((item, reload, pks))
        if reload.action != "deleted":
            wanted.setdefault((reload.model, item.using), {}).update(dict.fromkeys(pks))
    found = {slot: _in_bulk(*slot, list(pks)) for slot, pks in wanted.items()}
    for item, reload, pks in todo:
        rows = found.get((reload.model, item.using), {})
        instances = [rows[pk] for pk in pks if pk in rows]
        if reload.values is not None:
            instances = [_as_it_was(reload.model, item.using, reload.values, instances[0] if instances else None)]
        for instance in instances:
            ask(item, instance, reload.action, reload.routes, reload.update_fields)
        if item.failed or not instances:
            _rely_on_scopes(item, reload)


def _rely_on_scopes(item: Collected, reload: Reload) -> None:
    """The row is gone, or its method fails by now: the scopes that the event named tell whom it concerns."""
    for route in reload.routes:
        name = route.data_type.name
        if name not in reload.broken and any(part.scope for part in item.audiences.get(name, ())):
            item.lost.add(name)
            item.failed.discard(name)


def _to_pk(model: type[models.Model], value: Any) -> Any:
    try:
        return model._meta.pk.to_python(value)
    except (ValidationError, ValueError, TypeError):
        return None


def _in_bulk(model: type[models.Model], using: str, pks: Sequence[Any]) -> dict[Any, models.Model]:
    out: dict[Any, models.Model] = {}
    for start in range(0, len(pks), CHUNK):
        part = model._base_manager.using(using).filter(pk__in=pks[start : start + CHUNK])
        out.update((one.pk, one) for one in part)
    return out


def _as_it_was(model: type[models.Model], using: str, values: Mapping[str, Any], now: models.Model | None) -> models.Model:
    """The instance with the values that the event kept; others from the row as it is now, or deferred where it is gone."""
    then = {}
    for field in kept_fields(model):
        if field.attname in values:
            try:
                then[field.attname] = field.to_python(values[field.attname])
            except (ValidationError, ValueError, TypeError):
                continue
    if now is None:
        return model.from_db(using, list(then), list(then.values()))
    for name, value in then.items():
        setattr(now, name, value)
    return now
