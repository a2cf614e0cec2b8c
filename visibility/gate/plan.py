"""What one gate pass has to do for one data type: keys, QuerySets and scopes of many events, merged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db import models

from visibility.datatypes import DataType, registry
from visibility.events import audience, outbox
from visibility.events.handlers import Collected


@dataclass(slots=True)
class Need:
    """Why a resource is to be recomputed: how many changes, the oldest one's time (epoch seconds), the last event."""

    changes: int = 0
    at: float = float("inf")
    event: str = ""
    tenant: str = ""
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, item: Collected, kind: str) -> None:
        self.changes += 1
        self.at = min(self.at, item.at)
        self.event, self.tenant = str(item.id), item.tenant or self.tenant
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def join(self, other: Need) -> None:
        self.changes += other.changes
        self.at = min(self.at, other.at)
        self.event, self.tenant = other.event or self.event, other.tenant or self.tenant
        for kind, n in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + n


@dataclass(slots=True)
class Query:
    """An audience that is still a QuerySet, or a function; what each key in it needs; the events that it comes from."""

    source: models.QuerySet[Any] | Callable[[], Any]
    need: Need
    items: list[Collected]


class Found(NamedTuple):
    """A QuerySet, or keys where it is None."""

    queryset: models.QuerySet[Any] | None
    keys: tuple[str, ...]
    need: Need
    items: list[Collected]


@dataclass(slots=True)
class Plan:
    """`keys` and `queries` are marked where hidden; those that are `covered` (by a scope's mark, or marked before) are only
    looked for among the visible. `lost`: scopes without an audience, or whose own cannot be asked for any more."""

    data_type: DataType
    keys: dict[str, Need] = field(default_factory=dict)
    covered: dict[str, Need] = field(default_factory=dict)
    queries: list[Query] = field(default_factory=list)
    covered_queries: list[Query] = field(default_factory=list)
    scopes: dict[str, int] = field(default_factory=dict)
    lost: dict[str, Query] = field(default_factory=dict)
    at: float = float("inf")

    @property
    def size(self) -> int:
        return len(self.keys) + len(self.covered) + len(self.queries) + len(self.covered_queries) + len(self.scopes)

    def add(self, item: Collected) -> None:
        """Take in one event's audiences of this type; within an event a key or a scope counts once."""
        name = self.data_type.name
        only_look = item.left is not None and item.left.get(name) == outbox.LOOK
        self.at = min(self.at, item.at)
        counted: set[tuple[str, str]] = set()
        scopes: set[str] = set()
        for part in item.audiences[name]:
            if part.scope is not None:
                scopes.add(part.scope)
                if name in item.lost or (not part.keys and part.queryset is None and not part.early):
                    self.lost.setdefault(part.scope, Query(tuple, Need(), []))
            is_covered = only_look or part.scope is not None
            if part.queryset is not None:
                query = Query(part.queryset, Need(), [item])
                query.need.add(item, part.kind)
                (self.covered_queries if is_covered else self.queries).append(query)
            needs = self.covered if is_covered else self.keys
            for key in part.keys:
                if (part.kind, key) not in counted:
                    counted.add((part.kind, key))
                    needs.setdefault(key, Need()).add(item, part.kind)
        for scope in scopes:
            if not only_look:
                self.scopes[scope] = self.scopes.get(scope, 0) + 1
            if scope in self.lost:
                self.lost[scope].need.add(item, "")
                self.lost[scope].items.append(item)


def plans_of(items: Iterable[Collected]) -> dict[str, Plan]:
    """One plan a data type."""
    out: dict[str, Plan] = {}
    for item in items:
        for name in item.audiences:
            data_type = registry.find(name)
            if data_type is None:
                continue
            if name not in out:
                out[name] = Plan(data_type)
            out[name].add(item)
    return out


def found(queries: Iterable[Query], data_type: DataType, failed: Callable[[list[Collected], Exception], None]) -> list[Found]:
    """What these audiences are; QuerySets that hold the same, as far as can be told cheaply, once.

    Args:
        failed: told of the events whose function raised.
    """
    out: dict[Hashable, Found] = {}
    for query in queries:
        try:
            answer = audience.answered(data_type, query.source)
            slot = audience.signature(answer) if isinstance(answer, models.QuerySet) else answer
        except Exception as error:
            failed(query.items, error)
            continue
        if slot in out:
            out[slot].need.join(query.need)
            out[slot].items.extend(query.items)
        elif isinstance(answer, models.QuerySet):
            out[slot] = Found(audience.on_primary(answer), (), query.need, query.items)
        else:
            out[slot] = Found(None, answer, query.need, query.items)
    return list(out.values())
