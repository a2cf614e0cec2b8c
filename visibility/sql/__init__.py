"""Statements that Django's ORM does not write portably or fast enough.

An upsert whose new value depends on the old one, and an update of many rows that is compared row by row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from django.db import InterfaceError, OperationalError, connections, models, router

# The database's trouble, not that of what it was asked for: to be waited out.
DATABASE_AWAY = (OperationalError, InterfaceError)
_REFERENCE = re.compile(r"\{(old|new)\.(\w+)\}")


def column_of(model: type[models.Model], name: str) -> str:
    """The column behind a field."""
    field = cast("models.Field[Any, Any]", model._meta.get_field(name))
    return str(field.column)


def upsert(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    unique: Sequence[str],
    update: Mapping[str, str],
    using: str | None = None,
) -> None:
    """Insert rows; where `unique` is taken, set the fields of `update` instead.

    Args:
        rows: values in the order of `fields`. Sort them by the unique fields, so that two writers cannot deadlock.
        update: field → SQL over `{old.field}` and `{new.field}`. On MariaDB they are applied in order, each seeing
            the ones before: put a field after those that read it.
    """
    using = using or router.db_for_write(model)
    connection = connections[using]
    quote = connection.ops.quote_name
    mysql = connection.vendor == "mysql"
    columns = {f: quote(column_of(model, f)) for f in {*fields, *update}}
    table = quote(model._meta.db_table)

    def reference(match: re.Match[str]) -> str:
        side, name = match.groups()
        if side == "old":
            return f"{table}.{columns[name]}"
        return f"VALUES({columns[name]})" if mysql else f"excluded.{columns[name]}"

    changes = ", ".join(f"{columns[f]} = {_REFERENCE.sub(reference, sql)}" for f, sql in update.items())
    conflict = "ON DUPLICATE KEY UPDATE" if mysql else f"ON CONFLICT ({', '.join(columns[f] for f in unique)}) DO UPDATE SET"
    size = max(1, min(500, (connection.features.max_query_params or 30_000) // len(fields)))
    adapt = connection.ops.adapt_datetimefield_value
    names = ", ".join(columns[f] for f in fields)
    one = f"({', '.join(['%s'] * len(fields))})"
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        values = [adapt(v) if isinstance(v, datetime) else v for row in part for v in row]
        # Names come from the model's own columns; every value is a parameter.
        sql = f"INSERT INTO {table} ({names}) VALUES {', '.join([one] * len(part))} {conflict} {changes}"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(sql, values)


def update_pairs(
    model: type[models.Model],
    changes: Mapping[str, Any],
    *,
    where: Mapping[str, Any],
    pair: tuple[str, str],
    among: Sequence[tuple[Any, Any]],
    using: str | None = None,
) -> int:
    """Set fields of the rows whose two fields `pair` are together among these; answers how many rows that were."""
    using = using or router.db_for_write(model)
    connection = connections[using]
    quote = connection.ops.quote_name

    def column(name: str) -> str:
        return quote(column_of(model, name))

    sets = ", ".join(f"{column(name)} = %s" for name in changes)
    tests = " AND ".join(f"{column(name)} = %s" for name in where)
    # A list of row values; the standard spells it VALUES, and SQLite takes nothing else, MySQL nothing but the bare list.
    rows = f"{'' if connection.vendor == 'mysql' else 'VALUES '}{', '.join(['(%s, %s)'] * len(among))}"
    sql = f"UPDATE {quote(model._meta.db_table)} SET {sets} WHERE {tests} AND ({column(pair[0])}, {column(pair[1])}) IN ({rows})"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(sql, [*changes.values(), *where.values(), *(value for row in among for value in row)])
        return int(cursor.rowcount)
