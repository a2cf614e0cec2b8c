"""A process that migrates the app there, back and there again on an empty database, and fills its tables each time.

`python -m tests.support.migrate`; the last line of its output is JSON: the rows by model, and the kind of each primary key.
"""

from __future__ import annotations

import json
from typing import Any

import django


def full(field: Any) -> Any:
    """A value for a field that has to be given one: text as long as it may be, in characters of several bytes."""
    from django.db import models
    from django.utils import timezone

    if isinstance(field, models.DateTimeField):
        return timezone.now()
    if isinstance(field, models.TextField | models.JSONField):
        return "é"
    if isinstance(field, models.CharField):
        return field.choices[0][0] if field.choices else "é" * int(field.max_length or 0)
    return 1


def tables() -> set[str]:
    from django.db import connection

    return {name for name in connection.introspection.table_names() if name.startswith("visibility_")}


def main() -> dict[str, Any]:
    from django.apps import apps
    from django.core.management import call_command
    from django.db import connection

    models = [model for model in apps.get_app_config("visibility").get_models() if model._meta.managed]
    rows: dict[str, int] = {}
    for turn in (1, 2):
        call_command("migrate", "visibility", verbosity=0)
        for model in models:
            given = {
                field.attname: full(field)
                for field in model._meta.concrete_fields
                if not field.has_default() and not field.null and not getattr(field, "auto_created", False)
            }
            row = model._default_manager.create(**given)
            row.refresh_from_db()
            assert all(getattr(row, name) == value for name, value in given.items()), given
            rows[model.__name__] = model._default_manager.count()
        if turn == 1:
            call_command("migrate", "visibility", "zero", verbosity=0)
            assert not tables(), tables()
    made = tables()
    assert made == {model._meta.db_table for model in models}, made
    connection.close()
    return {"rows": rows, "keys": {model.__name__: model._meta.pk.get_internal_type() for model in models}}


if __name__ == "__main__":
    django.setup()
    print(json.dumps(main()), flush=True)  # noqa: T201
