"""Insert a row unless its unique key is taken, and say which it was: one statement, no savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import connections, models
from django.db.models.constants import OnConflict

from visibility.sql import column_of


def insert_new(model: type[models.Model], values: Mapping[str, Any], using: str) -> bool:
    """True if the row was inserted, False if a unique key of it is taken.

    A transaction that is inserting the same key is waited for.
    """
    connection = connections[using]
    ops, meta = connection.ops, model._meta
    columns = ", ".join(ops.quote_name(column_of(model, name)) for name in values)
    verb = ops.insert_statement(on_conflict=OnConflict.IGNORE)
    suffix = ops.on_conflict_suffix_sql([], OnConflict.IGNORE, [], [])
    sql = f"{verb} {ops.quote_name(meta.db_table)} ({columns}) VALUES ({', '.join(['%s'] * len(values))}) {suffix}"
    adapted = [ops.adapt_datetimefield_value(v) if isinstance(v, datetime) else v for v in values.values()]
    with connection.cursor() as cursor:
        cursor.execute(sql, adapted)
        return bool(cursor.rowcount)
