"""What resources depend on, as their data type says, each resource's error its own.

A key that `scopes` cannot read (text, where it filters by a number) must not stand in the way of other keys: its marks are
unknown, and it counts as a failed build.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from django.db import models
from django.db.models import CharField, F, Value
from django.db.models.functions import Cast, Concat

from visibility.datatypes import DataType, ScopesFrom
from visibility.exceptions import BuildFailed
from visibility.models import ScopeMark
from visibility.sql import DATABASE_AWAY

Scopes: TypeAlias = "Iterable[str] | ScopesFrom | models.QuerySet[Any]"


def scopes_of(data_type: DataType, keys: Sequence[str]) -> Mapping[str, Scopes | Exception]:
    """The scopes of each of these, or what `scopes_many` raised for it: where it fails for several, by halves.

    A key that the data type leaves out of its answer has no scopes.

    Raises:
        OperationalError, InterfaceError: the database is away.
    """
    if not data_type.has_scopes:
        return {}
    try:
        return {str(key): found for key, found in data_type.scopes_many(keys).items()}
    except DATABASE_AWAY:
        raise
    except Exception as error:
        if len(keys) <= 1:
            return dict.fromkeys(keys, error)
    half = len(keys) // 2
    return {**scopes_of(data_type, keys[:half]), **scopes_of(data_type, keys[half:])}


def unknown(data_type: DataType, error: Exception) -> BuildFailed:
    """The error that a resource's builds fail with, as its marks cannot be told."""
    failed = BuildFailed(f"{data_type.name}.scopes() failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


def marks_query(data_type: str, key: str, scopes: Scopes) -> models.QuerySet[Any] | None:
    """The scope marks that a resource depends on, its key as `visibility_key` in each row; None where it has no scopes."""
    names: Any
    if isinstance(scopes, ScopesFrom):
        query = scopes.queryset.query
        column = next(iter((*query.values_select, *query.annotation_select)), scopes.queryset.model._meta.pk.attname)
        text = Concat(
            Value(f"{scopes.prefix.removesuffix(':')}:"), Cast(F(column), CharField(max_length=200)), output_field=CharField()
        )
        names = scopes.queryset.order_by().annotate(visibility_scope=text).values("visibility_scope")
    elif isinstance(scopes, models.QuerySet):
        names = scopes.order_by()
    else:
        names = list(scopes)
        if not names:
            return None
    found = ScopeMark.objects.filter(data_type=data_type, scope__in=names)
    return found.order_by().annotate(visibility_key=Value(key, output_field=CharField())).values("visibility_key")
