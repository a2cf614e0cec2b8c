"""Changes that signals do not tell: `touch`, and a QuerySet, a manager and a model that tell by themselves.

| | told by | limits |
|---|---|---|
| `bulk_create` | `VisibilityQuerySet` | as created, whatever a conflict made of the row |
| `bulk_update` | `VisibilityQuerySet` | the rows as they are after it |
| `update` | `VisibilityQuerySet` | the same; rows that begin to match between choosing and updating are missed |
| `delete` | signals, already | `_raw_delete` tells nobody |
| raw SQL, another program | `touch` | what you name |

What is missed is corrected by the soft TTL at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, models, router, transaction

from visibility.events import outbox
from visibility.events.audience import chosen_alias
from visibility.events.collect import collect_later, must_write, rows_of, stamp
from visibility.events.commit import submit
from visibility.events.handlers import Collected, ask
from visibility.events.sources import routes_for
from visibility.models import Event, event_id

CHUNK = 500
M = TypeVar("M", bound=models.Model)


def touch(
    changed: models.Model | Iterable[models.Model] | models.QuerySet[Any], *, action: str = "saved", using: str | None = None
) -> int:
    """Treat these rows as just changed; answers how many there were. In a transaction the gate runs after its commit.

    Args:
        changed: instances, whose audiences are asked for now, or a QuerySet, of which only the keys are read now, 500 a chunk;
            its rows are loaded and asked for after the commit.
        action: created, saved, deleted or m2m. Deleted rows are given as instances.
        using: the database; by default the instances' or the QuerySet's own.
    """
    if isinstance(changed, models.QuerySet):
        return _touch_rows(changed, action, using)
    instances = [changed] if isinstance(changed, models.Model) else list(changed)
    groups: dict[tuple[type[models.Model], str], list[models.Model]] = {}
    for one in instances:
        if not isinstance(one, models.Model):
            raise TypeError(f"touch() takes instances or a QuerySet, not {type(one).__name__}")
        alias = using or one._state.db or router.db_for_write(type(one), instance=one)
        groups.setdefault((type(one), alias), []).append(one)
    for (model, alias), rows in groups.items():
        for start in range(0, len(rows), CHUNK):
            _touch_instances(model, rows[start : start + CHUNK], action, alias)
    return len(instances)


def _touch_rows(queryset: models.QuerySet[Any], action: str, using: str | None) -> int:
    model, alias = queryset.model, using or chosen_alias(queryset) or router.db_for_write(queryset.model)
    routes = routes_for(model, action)
    keys = queryset.using(alias).values_list("pk", flat=True)
    total, chunk = 0, []
    # Read to the end first: in autocommit each chunk runs a gate pass, which must not meet an open cursor.
    for pk in list(keys):
        total += 1
        chunk.append(pk)
        if len(chunk) == CHUNK:
            collect_later(model, chunk, action, alias, routes, source=Event.Source.TOUCH.value)
            chunk = []
    collect_later(model, chunk, action, alias, routes, source=Event.Source.TOUCH.value)
    return total


def _touch_instances(model: type[models.Model], instances: Sequence[models.Model], action: str, using: str) -> None:
    """One event for many instances of a model."""
    routes = routes_for(model, action)
    if not routes:
        return
    item = Collected(event_id(), using, time.time())
    for instance in instances:
        ask(item, instance, action, routes)
    if not item.audiences and not item.failed:
        return
    if must_write(routes, item):
        again = set(item.failed)
        body: dict[str, Any] = {"audience": {name: rows_of(parts, again, name, action) for name, parts in item.audiences.items()}}
        if again:
            body |= {
                "again": sorted(again),
                "failed": sorted(item.failed),
                "pks": [str(i.pk) for i in instances if i.pk is not None],
            }
        names = [*item.audiences, *(name for name in item.failed if name not in item.audiences)]
        one = str(instances[0].pk) if len(instances) == 1 and instances[0].pk is not None else ""
        item.row = partial(
            outbox.Row, item.id, Event.Source.TOUCH.value, names, stamp(item.at), model._meta.label, one, action, using,
            body=body, error="; ".join(item.errors)[:2000],
        )  # fmt: skip
    submit(item, connections[using])


async def atouch(
    changed: models.Model | Iterable[models.Model] | models.QuerySet[Any], *, action: str = "saved", using: str | None = None
) -> int:
    """The asynchronous twin of `touch`."""
    return await sync_to_async(touch)(changed, action=action, using=using)


class VisibilityQuerySet(models.QuerySet[M]):
    """A QuerySet whose bulk methods tell the data types that watch its model, in the same transaction."""

    _visibility_quiet = False

    def _clone(self) -> Any:
        clone = super()._clone()  # type: ignore[misc]
        clone._visibility_quiet = self._visibility_quiet
        return clone

    def _quiet(self) -> VisibilityQuerySet[M]:
        clone: VisibilityQuerySet[M] = self._chain()  # type: ignore[attr-defined]
        clone._visibility_quiet = True
        return clone

    def _tells(self, action: str) -> bool:
        return not self._visibility_quiet and bool(routes_for(self.model, action))

    def bulk_create(self, objs: Iterable[M], *args: Any, **kwargs: Any) -> list[M]:
        """As Django's; the new instances are told as created."""
        if not self._tells("created"):
            return super().bulk_create(objs, *args, **kwargs)
        alias = chosen_alias(self) or router.db_for_write(self.model)
        with transaction.atomic(using=alias, savepoint=False):
            made = super().bulk_create(objs, *args, **kwargs)
            touch(made, action="created", using=alias)
        return made

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None) -> int:
        """As Django's; the instances are told as saved."""
        if not self._tells("saved"):
            return super().bulk_update(objs, fields, batch_size)
        rows = tuple(objs)
        alias = chosen_alias(self) or router.db_for_write(self.model)
        with transaction.atomic(using=alias, savepoint=False):
            done = super(VisibilityQuerySet, self._quiet()).bulk_update(rows, fields, batch_size)
            touch(rows, using=alias)
        return done

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def update(self, **kwargs: Any) -> int:
        """As Django's; the rows that match now are told as saved. Costs one more query, for their keys."""
        if not self._tells("saved"):
            return super().update(**kwargs)
        alias = chosen_alias(self) or router.db_for_write(self.model)
        names = frozenset(kwargs)
        routes = tuple(route for route in routes_for(self.model, "saved") if route.takes(names))
        if not routes:
            return super().update(**kwargs)
        with transaction.atomic(using=alias, savepoint=False):
            plain = self.using(alias).order_by()
            keys: Collection[Any] = list(plain.values_list("pk", flat=True)) if not self.query.is_sliced else ()
            done = super().update(**kwargs)
            for start in range(0, len(keys), CHUNK):
                part = list(keys)[start : start + CHUNK]
                collect_later(self.model, part, "saved", alias, routes, names, source=Event.Source.TOUCH.value)
        return done

    update.alters_data = True  # type: ignore[attr-defined]


class VisibilityManager(models.Manager.from_queryset(VisibilityQuerySet)):  # type: ignore[misc]
    """`objects = VisibilityManager()`: bulk methods tell."""


class VisibilityModel(models.Model):
    """An abstract base for source models without the gap of autocommit, where `post_save` comes after the commit of the save.

    A save and its event stand in one transaction of their own, and bulk methods tell.
    """

    objects = VisibilityManager()

    class Meta:
        abstract = True

    def save_base(self, *args: Any, **kwargs: Any) -> None:
        """As Django's, in a transaction."""
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            super().save_base(*args, **kwargs)

    save_base.alters_data = True  # type: ignore[attr-defined]
