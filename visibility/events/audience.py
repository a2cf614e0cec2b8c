"""Audiences as the gate sees them: checked keys, or a QuerySet of one column that is narrowed to what is visible."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from django.core.exceptions import FieldDoesNotExist, FieldError, ValidationError
from django.db import connections, models, router
from django.db.models.expressions import Col
from django.db.models.lookups import Lookup
from django.db.models.sql.where import WhereNode

from visibility.datatypes import Audience, DataType, ScopesFrom, check_key, legible
from visibility.exceptions import BadDeclaration, BadResource
from visibility.scopes import Scopes, scopes_of
from visibility.sql import DATABASE_AWAY

CHUNK = 500
WALK = 1_000
_PLAIN = (str, int, float, bool, bytes, Decimal, uuid.UUID, dt.date, dt.time, dt.timedelta, type(None))


class Part(NamedTuple):
    """One audience of one data type: keys, or a QuerySet of them, or a function that answers one of these when it is needed;
    `scope` where they all depend on one that the type knows.

    `early`: the keys are what a QuerySet held before its rows went.
    """

    keys: tuple[str, ...] = ()
    queryset: models.QuerySet[Any] | Callable[[], Any] | None = None
    scope: str | None = None
    kind: str = ""
    early: bool = False


def parts_of(data_type: DataType, answer: Any) -> tuple[list[Part], list[str]]:
    """What an `@on` method answered, checked: audiences, and complaints about what in it cannot be used.

    Takes an Audience, an iterable of keys, a QuerySet, an iterable of Audiences, or None.

    Raises:
        BadDeclaration: none of these.
    """
    if answer is None:
        return [], []
    if isinstance(answer, (Audience, models.QuerySet)):
        found = [answer if isinstance(answer, Audience) else Audience(answer)]
    elif isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
        raise BadDeclaration(f"{data_type.name!r}: an audience is an iterable of keys or an Audience, not {answer!r:.80}")
    else:
        items = list(answer)
        found = [one for one in items if isinstance(one, Audience)]
        if keys := [one for one in items if not isinstance(one, Audience)]:
            found.append(Audience(keys))
    parts: list[Part] = []
    complaints: list[str] = []
    for one in found:
        part = _part(data_type, one, complaints)
        if part.keys or part.scope or part.queryset is not None:
            parts.append(part)
    return parts, complaints


def _part(data_type: DataType, audience: Audience, complaints: list[str]) -> Part:
    scope = audience.scope
    if scope is not None:
        if not data_type.has_scopes:
            complaints.append(f"scope {scope!r:.80} without {data_type.name}.scopes(): its resources are marked one by one")
            scope = None
        else:
            try:
                scope = check_key(data_type.name, scope)
            except BadResource:
                complaints.append(f"{scope!r:.80} is no scope (1 to 200 characters, no spaces): marked one by one")
                scope = None
    kind = legible(str(audience.kind))[:50]
    if isinstance(audience.keys, models.QuerySet) or callable(audience.keys):
        return Part(queryset=audience.keys, scope=scope, kind=kind)
    keys: dict[str, None] = {}
    for key in audience.keys:
        try:
            keys[check_key(data_type.name, key.pk if isinstance(key, models.Model) else key)] = None
        except BadResource as error:
            complaints.append(str(error))
    return Part(tuple(keys), None, scope, kind)


def answered(data_type: DataType, source: models.QuerySet[Any] | Callable[[], Any]) -> models.QuerySet[Any] | tuple[str, ...]:
    """The QuerySet, or what the function answers: a QuerySet or checked keys.

    Raises:
        BadDeclaration: it answers something else; or what the function raises.
    """
    answer = source if isinstance(source, models.QuerySet) else source()
    if isinstance(answer, models.QuerySet):
        return answer
    parts, _complaints = parts_of(data_type, answer)
    if any(part.queryset is not None for part in parts):
        raise BadDeclaration(f"{data_type.name!r}: the function of an audience answers keys or a QuerySet, not an Audience")
    return tuple(key for part in parts for key in part.keys)


class Column(NamedTuple):
    """The one column of an audience's QuerySet, of the kind of `field`. `convert` makes a key of it a value, or raises."""

    name: str
    convert: Callable[[str], Any]
    field: models.Field[Any, Any]


def column_of(queryset: models.QuerySet[Any]) -> Column:
    """The column that holds the keys; the primary key where none is chosen.

    Raises:
        BadDeclaration: more than one column.
    """
    query = queryset.query
    chosen = [*query.extra_select, *query.values_select, *query.annotation_select]
    names = ["pk"] if _gives_models(queryset) or not chosen else chosen
    if len(names) != 1:
        raise BadDeclaration(f"an audience is a QuerySet of one column, not of {names}: use values_list() with one name")
    name = names[0]
    annotation = query.annotations.get(name)
    if annotation is not None:
        return Column(name, *_converter(queryset.db, annotation.output_field))
    field = query.names_to_path(name.split("__"), query.get_meta())[2][0]
    return Column(name, *_converter(queryset.db, field))


def _gives_models(queryset: models.QuerySet[Any]) -> bool:
    return queryset._iterable_class is models.query.ModelIterable


def _converter(alias: str, field: models.Field[Any, Any]) -> tuple[Callable[[str], Any], models.Field[Any, Any]]:
    while (target := getattr(field, "target_field", None)) is not None and target is not field:
        field = target
    low, high = None, None
    if isinstance(field, models.IntegerField):
        low, high = connections[alias].ops.integer_field_range(field.get_internal_type())

    def convert(key: str) -> Any:
        value = field.to_python(key)
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValidationError("out of the column's range")
        return value

    return convert, field


class _Among(models.Expression):
    """A column of the model's own table is one of these values. Django's `__in` prepares each value in several passes, which
    takes longer than the database."""

    def __init__(self, column: models.F | Any, values: Sequence[Any], field: models.Field[Any, Any]) -> None:
        super().__init__(output_field=models.BooleanField())
        self.column, self.values, self.kind = column, values, field

    def get_source_expressions(self) -> list[Any]:
        return [self.column]

    def set_source_expressions(self, exprs: Sequence[Any]) -> None:
        (self.column,) = exprs

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        sql, params = compiler.compile(self.column)
        values = [self.kind.get_db_prep_value(value, connection) for value in self.values]
        if connection.vendor == "postgresql":
            return f"{sql} = ANY(%s)", [*params, values]
        return f"{sql} IN ({', '.join(['%s'] * len(values))})", [*params, *values]


def _own_column(queryset: models.QuerySet[Any], name: str) -> bool:
    """Whether this names a column of the model itself: nothing computed, and nothing behind a relation."""
    if name in queryset.query.annotations or "__" in name:
        return False
    try:
        field = queryset.model._meta.pk if name == "pk" else queryset.model._meta.get_field(name)
    except FieldDoesNotExist:
        return False
    return bool(field.concrete) and not field.many_to_many


def on_primary(queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
    """The QuerySet on the database that is written to, unless it names one: a replica may lag behind the commit."""
    if chosen_alias(queryset) is None:
        return queryset.using(router.db_for_write(queryset.model, **getattr(queryset, "_hints", {})))
    return queryset


def chosen_alias(queryset: models.QuerySet[Any]) -> str | None:
    """The database that the QuerySet names itself, by `using()` or through an instance; None where routers choose."""
    return getattr(queryset, "_db", None)


def can_narrow(queryset: models.QuerySet[Any]) -> bool:
    """Whether another condition may be added without changing what is chosen: not to slices, unions and DISTINCT ON."""
    return not (queryset.query.combinator or queryset.query.is_sliced or queryset.query.distinct_fields)


def narrow(queryset: models.QuerySet[Any], keys: Sequence[str]) -> set[str]:
    """Those of these keys that the QuerySet holds. A key that the column cannot hold is not among them."""
    column = column_of(queryset)
    wanted: dict[Any, None] = {}
    found: set[str] = set()
    for key in keys:
        try:
            wanted[column.convert(key)] = None
        except (ValidationError, ValueError, TypeError, OverflowError):
            continue
    values, own = list(wanted), _own_column(queryset, column.name)
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        condition = _Among(models.F(column.name), some, column.field) if own else models.Q(**{f"{column.name}__in": some})
        part = queryset.filter(condition).order_by()
        # Few rows: fetched at once. An iterator would open a cursor on the server, with statements of its own.
        found.update(str(value) for value in _few(part, column.name) if value is not None)
    # A collation that ignores case finds more than was asked for.
    return found.intersection(keys)


def _values(queryset: models.QuerySet[Any], name: str) -> Iterator[Any]:
    if not _gives_models(queryset) or name == "pk":
        try:
            yield from queryset.values_list(name, flat=True).iterator(chunk_size=WALK)
            return
        except FieldError:
            # A union's column may bear a name that its first side has not: take the rows as they come.
            pass
    yield from (_first(row) for row in queryset.iterator(chunk_size=WALK))


def _few(queryset: models.QuerySet[Any], name: str) -> list[Any]:
    if not _gives_models(queryset) or name == "pk":
        with suppress(FieldError):
            return list(queryset.values_list(name, flat=True))
    return [_first(row) for row in queryset]


def _first(row: Any) -> Any:
    if isinstance(row, tuple):
        return row[0]
    if isinstance(row, dict):
        return next(iter(row.values()), None)
    return row.pk if isinstance(row, models.Model) else row


def walk(queryset: models.QuerySet[Any], data_type: DataType, size: int = WALK) -> Iterator[list[str]]:
    """All keys of a QuerySet in lists of up to `size`, each list without repeats; what is no key is left out."""
    base = queryset.order_by() if can_narrow(queryset) else queryset
    rows = _values(base, column_of(queryset).name)
    while chunk := list(islice(rows, size)):
        keys: dict[str, None] = {}
        for value in chunk:
            if value is not None:
                try:
                    keys[check_key(data_type.name, value)] = None
                except BadResource:
                    continue
        if keys:
            yield list(keys)


def signature(queryset: models.QuerySet[Any]) -> Hashable:
    """Equal for QuerySets that surely hold the same; unlike any other where that cannot be told cheaply."""
    query = queryset.query
    odd = query.combinator or query.is_sliced or query.annotations or query.extra or query.distinct or query.group_by
    if odd or query.extra_tables or query.select_for_update:
        return id(queryset)
    where = _shape(query.where)
    if where is None:
        return id(queryset)
    joins = tuple(table.identity for table in query.alias_map.values())
    return (queryset.model, chosen_alias(queryset), query.values_select, joins, where)


def _shape(node: Any) -> Hashable | None:
    if isinstance(node, WhereNode):
        shapes = tuple(_shape(child) for child in node.children)
        return None if None in shapes else (node.connector, node.negated, shapes)
    if not isinstance(node, Lookup) or type(node.lhs) is not Col or node.bilateral_transforms:
        return None
    rhs = tuple(node.rhs) if isinstance(node.rhs, (list, tuple)) else (node.rhs,)
    if not all(isinstance(value, _PLAIN) for value in rhs):
        return None
    return (type(node), node.lhs.alias, node.lhs.target, tuple((type(value), value) for value in rhs))


@lru_cache(maxsize=512)
def reach_of(model: type[models.Model]) -> frozenset[str]:
    """The tables whose rows may go, or change, when a row of this model is deleted."""
    seen: set[type[models.Model]] = set()
    tables: set[str] = set()
    todo: list[type[models.Model]] = [model]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        tables.add(one._meta.db_table)
        reverse = [r for r in one._meta.get_fields(include_hidden=True) if r.auto_created and not r.concrete]
        todo += [r.related_model for r in reverse if r.one_to_many or r.one_to_one]  # type: ignore[misc]
        todo += [own.remote_field.model for own in one._meta.private_fields if hasattr(own, "bulk_related_objects")]
        todo += one._meta.parents
    return frozenset(tables)


def touches(queryset: models.QuerySet[Any], tables: frozenset[str]) -> bool:
    """Whether the QuerySet reads one of these tables; a subquery or a union counts as yes."""
    query = queryset.query
    if query.combinator or query.annotations or query.extra_tables:
        return True
    own = {table.table_name for table in query.alias_map.values()} or {queryset.model._meta.db_table}
    return not own.isdisjoint(tables) or _shape(query.where) is None


def depending(data_type: DataType, keys: Sequence[str], scopes: set[str]) -> set[str]:
    """Those of these keys that depend on one of these scopes, as the data type says now, and those of which it cannot say."""
    return {key for key, found in scopes_of(data_type, keys).items() if _depends(found, scopes)}


def _depends(found: Scopes | Exception, scopes: set[str]) -> bool:
    try:
        return isinstance(found, Exception) or not scopes.isdisjoint(_names(found))
    except DATABASE_AWAY:
        raise
    except Exception:
        return True


def _names(scopes: Iterable[str] | ScopesFrom | models.QuerySet[Any]) -> Iterator[str]:
    if isinstance(scopes, ScopesFrom):
        prefix, scopes = f"{scopes.prefix.removesuffix(':')}:", scopes.queryset
    else:
        prefix = ""
    if isinstance(scopes, models.QuerySet):
        scopes = _values(on_primary(scopes), column_of(scopes).name)
    for one in scopes:
        yield f"{prefix}{one}"


def chunks(keys: Iterable[str], size: int = CHUNK) -> Iterator[list[str]]:
    """Lists of up to `size`."""
    rows = iter(keys)
    for first in rows:
        yield [first, *islice(rows, size - 1)]
