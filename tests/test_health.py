from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import RequestFactory

from visibility.health import health
from visibility.soft import client, upkeep

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    client.close()
    yield
    client.close()


def ask(query: str = "") -> tuple[int, dict[str, str]]:
    import json

    answer = health(RequestFactory().get("/health/" + query))
    assert "no-store" in answer["Cache-Control"] or "no-cache" in answer["Cache-Control"]
    return answer.status_code, json.loads(answer.content)


def test_all_is_well() -> None:
    upkeep.beat()
    assert ask() == (200, {"status": "ok", "database": "ok", "redis": "ok", "maintenance": "ok"})


def test_nobody_maintains_is_degraded() -> None:
    assert ask() == (200, {"status": "degraded", "database": "ok", "redis": "ok", "maintenance": "silent"})
    assert ask("?strict")[0] == 503


def test_without_redis_it_still_serves(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    assert ask() == (200, {"status": "degraded", "database": "ok", "redis": "down", "maintenance": "unknown"})
    assert ask("?strict")[0] == 503


def test_without_a_database_it_does_not() -> None:
    upkeep.beat()

    def refuse(*args: Any) -> Any:
        raise OperationalError("gone")

    with connection.execute_wrapper(refuse):
        code, found = ask()
    assert (code, found["status"], found["database"]) == (503, "down", "down")


def test_only_safe_methods() -> None:
    assert health(RequestFactory().post("/health/")).status_code == 405
    assert health(RequestFactory().head("/health/")).status_code == 200
