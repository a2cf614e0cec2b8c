"""Signals of the source models that data types name with `@on`, and what they mean for whom.

| signal | action | asked |
|---|---|---|
| post_save | created, saved | at once; a fixture's rows (`raw`) after the commit, when what they refer to is there |
| pre_delete | deleted | at once, while what goes with the row is still there; what is deferred stays so |
| m2m_changed | m2m | both sides of the relation; before a removal too, for audiences read from the relation itself |
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.apps import apps
from django.db import models
from django.db.models.signals import m2m_changed, post_save, pre_delete

from visibility.datatypes import ACTIONS, DataType, registry
from visibility.events import audience
from visibility.events.collect import collect, collect_later, losing
from visibility.events.handlers import Route

logger = logging.getLogger("visibility")
CHUNK = 500
_EARLY = "_visibility_early"
_routes: dict[type[models.Model], dict[str, tuple[Route, ...]]] = {}
_throughs: set[type[models.Model]] = set()


def connect(data_type: DataType) -> None:
    """Listen to the models that this type names. Idempotent; a model that does not exist is a matter of the system checks."""
    for model in _watched(data_type):
        _route(model)


def resolve(sender: type[models.Model] | str) -> type[models.Model] | None:
    """The model of an `@on` declaration; None if there is none of that name."""
    if not isinstance(sender, str):
        return sender if isinstance(sender, type) and issubclass(sender, models.Model) else None
    try:
        return apps.get_model(sender)
    except (LookupError, ValueError):
        return None


def _watched(data_type: DataType) -> Iterator[type[models.Model]]:
    for source in data_type.sources:
        if (named := resolve(source.model)) is not None:
            yield from _family(named)


def _family(model: type[models.Model]) -> list[type[models.Model]]:
    """A model with its proxies and children: they send signals of their own when a row of it is saved through them."""
    known = [one for one in apps.get_models(include_auto_created=True) if issubclass(one, model)]
    return known if model in known or model._meta.abstract else [model, *known]


def _route(model: type[models.Model]) -> None:
    actions = {action: _compile(model, action) for action in ACTIONS}
    first = model not in _routes
    _routes[model] = actions
    if first:
        post_save.connect(_saved, sender=model, dispatch_uid="visibility.saved", weak=False)
        pre_delete.connect(_deleted, sender=model, dispatch_uid="visibility.deleted", weak=False)
    if actions["m2m"]:
        for through in _relations(model):
            if through not in _throughs:
                _throughs.add(through)
                m2m_changed.connect(_m2m, sender=through, dispatch_uid="visibility.m2m", weak=False)


def _compile(model: type[models.Model], action: str) -> tuple[Route, ...]:
    routes: list[Route] = []
    for data_type in registry:
        handlers: dict[str, frozenset[str] | None] = {}
        for source in data_type.sources:
            named = resolve(source.model)
            if named is None or not issubclass(model, named) or action not in source.actions:
                continue
            if action == "deleted" and _deleted_as_parent(model, named):
                continue
            fields = _both_names(model, source.fields) if source.fields is not None and action == "saved" else None
            # Named twice for one model: the wider filter wins.
            if source.method in handlers:
                before = handlers[source.method]
                fields = None if before is None or fields is None else before | fields
            handlers[source.method] = fields
        if handlers:
            routes.append(Route(data_type, tuple((getattr(data_type, name), fields) for name, fields in handlers.items())))
    return tuple(routes)


def _deleted_as_parent(model: type[models.Model], named: type[models.Model]) -> bool:
    """A child's row goes together with its parent's, for which Django sends a signal as well: one of the two is enough."""
    return not named._meta.abstract and model._meta.concrete_model is not named._meta.concrete_model


def _both_names(model: type[models.Model], fields: Iterable[str]) -> frozenset[str]:
    """Field names as `update_fields` may spell them: `author` and `author_id`."""
    out: set[str] = set(fields)
    for one in model._meta.concrete_fields:
        if one.name in out or one.attname in out:
            out |= {one.name, one.attname}
    return frozenset(out)


def _relations(model: type[models.Model]) -> Iterator[type[models.Model]]:
    for own in model._meta.many_to_many:
        if (through := own.remote_field.through) is not None:
            yield through
    for relation in model._meta.related_objects:
        if relation.many_to_many:
            yield relation.through  # type: ignore[attr-defined]


def routes_for(model: type[models.Model], action: str, names: Sequence[str] | None = None) -> tuple[Route, ...]:
    """Who is asked when a row of this model changed so; of these data types only, where `names` is given."""
    found = _routes.get(model) or _routes.get(model._meta.concrete_model or model)
    routes = found.get(action, ()) if found else ()
    return routes if names is None else tuple(route for route in routes if route.data_type.name in names)


def forget() -> None:
    """Route anew after a type was unregistered; for tests."""
    for model in list(_routes):
        _route(model)


def _saved(
    sender: type[models.Model], instance: models.Model, created: bool, raw: bool, using: str, update_fields: Any = None, **_: Any
) -> None:
    try:
        action = "created" if created else "saved"
        routes = _routes[sender][action]
        if not routes:
            return
        if raw:
            collect_later(sender, [instance.pk], action, using, routes)
        else:
            collect(instance, action, using, routes, update_fields)
    except Exception:
        # The host's save must not fail for what is ours.
        logger.exception("a save of %s could not be taken in", sender._meta.label)


def _deleted(sender: type[models.Model], instance: models.Model, using: str, origin: Any = None, **_: Any) -> None:
    try:
        routes = _routes[sender]["deleted"]
        if routes:
            start = getattr(origin, "model", None) or (type(origin) if isinstance(origin, models.Model) else sender)
            collect(instance, "deleted", using, routes, gone=audience.reach_of(start) | audience.reach_of(sender))
    except Exception:
        logger.exception("a delete of %s could not be taken in", sender._meta.label)


def _m2m(
    sender: type[models.Model],
    instance: models.Model,
    action: str,
    model: type[models.Model],
    pk_set: set[Any] | None,
    using: str,
    reverse: bool = False,
    **_: Any,
) -> None:
    try:
        if pk_set is not None and not pk_set:
            return
        routes, gone = routes_for(type(instance), "m2m"), frozenset([sender._meta.db_table])
        if routes and action in ("pre_remove", "pre_clear"):
            # Those who are about to leave the relation are in it only now.
            instance.__dict__[_EARLY] = losing(instance, "m2m", using, routes, gone)
        if routes and action in ("post_add", "post_remove", "post_clear"):
            before = instance.__dict__.pop(_EARLY, None)
            # Those who stay are asked for at once, too, so that nobody counts twice.
            collect(instance, "m2m", using, routes, gone=gone if before else frozenset(), before=before)
        others = routes_for(model, "m2m")
        if not others:
            return
        pks: Sequence[Any] = list(pk_set or ())
        if action == "pre_clear":
            pks = _linked(sender, instance, model, using, reverse=reverse)
        elif action not in ("post_add", "post_remove"):
            return
        for start in range(0, len(pks), CHUNK):
            collect_later(model, pks[start : start + CHUNK], "m2m", using, others)
    except Exception:
        logger.exception("a change of %s could not be taken in", sender._meta.label)


def _linked(
    through: type[models.Model], instance: models.Model, model: type[models.Model], using: str, *, reverse: bool
) -> list[Any]:
    """The keys of the other side that are about to be unlinked."""
    field = next(
        one for owner in (model, type(instance)) for one in owner._meta.many_to_many if one.remote_field.through is through
    )
    own, other = field.m2m_field_name(), field.m2m_reverse_field_name()
    if reverse:
        own, other = other, own
    rows = through._default_manager.using(using).filter(**{own: instance})
    return list(rows.values_list(other, flat=True))
