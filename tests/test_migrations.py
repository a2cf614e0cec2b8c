"""The migrations, there and back on an empty database of this run's kind, under both values of DEFAULT_AUTO_FIELD."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from django.db import connection

from tests.support import servers

FIELDS = ("AutoField", "BigAutoField")


@pytest.fixture
def empty_database(transactional_db: None, tmp_path: Path) -> Callable[[str], AbstractContextManager[str]]:
    """`with empty_database("name") as name`: beside the test database, on the same server."""

    @contextmanager
    def make(name: str) -> Iterator[str]:
        if connection.vendor == "sqlite":
            yield str(tmp_path / name)
            return
        own = f"{connection.settings_dict['NAME']}_{name}"
        quoted = connection.ops.quote_name(own)
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {quoted}")
            cursor.execute(f"CREATE DATABASE {quoted}")
        try:
            yield own
        finally:
            with connection._nodb_cursor() as cursor:
                cursor.execute(f"DROP DATABASE {quoted}")

    return make


@pytest.mark.parametrize("field", FIELDS)
def test_there_and_back_with_rows_in_every_table(
    field: str, empty_database: Callable[[str], AbstractContextManager[str]]
) -> None:
    with empty_database(f"migrations_{field.lower()}") as name:
        own = {"VISIBILITY_TEST_DB_NAME": name, "VISIBILITY_TEST_AUTO_FIELD": f"django.db.models.{field}"}
        with servers.python("-W", "error::RuntimeWarning", "-m", "tests.support.migrate", **own) as process:
            assert process.popen.wait(60) == 0, process.output
            done = json.loads(process.output.splitlines()[-1])
    assert set(done["rows"].values()) == {1}
    assert done["rows"].keys() >= {"Event", "DirtyFlag", "ScopeMark", "FreshnessSLO", "Rollup"}
    # The app's own setting wins over the project's.
    assert {kind for model, kind in done["keys"].items() if model not in ("Event", "NaturalKey")} == {"BigAutoField"}
