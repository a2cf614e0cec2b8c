"""Data types for one test, Redis out of reach for a block, and a look at what the gate left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.conf import settings as django_settings
from django.test import override_settings

from tests.support.processes import free_port
from visibility import points
from visibility.conf import settings
from visibility.datatypes import DataType, registry
from visibility.events import outbox, sources
from visibility.models import DirtyFlag, ScopeMark
from visibility.soft import client, leases
from visibility.soft.leases import Watch


@contextlib.contextmanager
def declared(*classes: type[DataType]) -> Iterator[list[DataType]]:
    """Register data types for a block."""
    for cls in classes:
        registry.register(cls)
    try:
        yield [registry.get(cls.name) for cls in classes]
    finally:
        for cls in classes:
            registry.unregister(cls.name)
        sources.forget()


@contextlib.contextmanager
def alone(*names: str) -> Iterator[None]:
    """Only these data types are registered in the block."""
    others = [data_type for data_type in registry if data_type.name not in names]
    for data_type in others:
        registry.unregister(data_type.name)
    sources.forget()
    try:
        yield
    finally:
        registry._types.update({data_type.name: data_type for data_type in others})
        sources.forget()


@contextlib.contextmanager
def configured(**own: Any) -> Iterator[None]:
    """`VISIBILITY` with these settings on top."""
    with override_settings(VISIBILITY={**django_settings.VISIBILITY, **own}):
        yield


@contextlib.contextmanager
def redis_away() -> Iterator[None]:
    """Nobody answers where Redis should be."""
    with configured(REDIS_URL=f"redis://127.0.0.1:{free_port()}/0"):
        client.close()
        try:
            yield
        finally:
            client.close()


@contextlib.contextmanager
def at(name: str, action: Callable[[], Any]) -> Iterator[list[str]]:
    """Run `action` the first time the code reaches the point; yields the points that were reached."""
    reached: list[str] = []

    def hook(point: str) -> None:
        reached.append(point)
        if point == name and reached.count(name) == 1:
            action()

    points.hook = hook
    try:
        yield reached
    finally:
        points.hook = None


def watch(*resources: str, seconds: float = 60) -> None:
    """Somebody watches these now."""
    leases.renew([Watch(one, "1/tab", "watch", seconds) for one in resources])


def leave(*resources: str) -> None:
    """Nobody watches these any more, and nothing lingers."""
    with configured(LINGER=0):
        leases.release([(one, "1/tab", "watch") for one in resources])


def waiting(data_type: str, lane: str = "") -> set[str]:
    """The keys of a type that are pending."""
    found = registry.get(data_type)
    name = lane or found.lane
    rows = client.client()
    out: set[str] = set()
    for shard in range(settings.SHARDS):
        members = rows.zrange(f"{{{settings.PREFIX}:{shard}}}:pending:{name}", 0, -1)
        out |= {m.decode().partition(":")[2] for m in members if m.decode().startswith(f"{data_type}:")}
    return out


def marked(data_type: str) -> dict[str, int]:
    """Dirty keys of a type with their counts of changes."""
    return dict(DirtyFlag.objects.filter(data_type=data_type, first_at__isnull=False).values_list("key", "changes"))


def scopes_marked(data_type: str) -> dict[str, int]:
    """Marked scopes of a type with their counts of changes."""
    return dict(ScopeMark.objects.filter(data_type=data_type).values_list("scope", "changes"))


def forget() -> None:
    """Forget what this process has learnt of databases that take no events."""
    outbox.forget()


def state(data_type: str) -> Mapping[str, Any]:
    """What stands for a type: pending, marked, scopes."""
    return {"waiting": waiting(data_type), "marked": marked(data_type), "scopes": scopes_marked(data_type)}
