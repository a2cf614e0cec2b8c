"""A health check for load balancers: `path("health/", visibility.health.health)`.

| status | when | HTTP |
|---|---|---|
| ok | database and Redis answer, a maintenance loop beats | 200 |
| degraded | Redis is away, or nobody maintains: reads build from the source, changes are marked | 200, 503 with `?strict` |
| down | the database does not answer | 503 |

A process that cannot reach Redis still serves: taking every process out of a load balancer because Redis restarts would make a
slow minute an outage. Use `?strict` for socket servers that have others to send people to. Needs no login; says only states.
"""

from __future__ import annotations

from django.db import DatabaseError, connections, router
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from visibility.exceptions import RedisAway
from visibility.models import Event
from visibility.soft import inspect, upkeep

SILENT = 30.0


def database() -> str:
    """ "ok" or "down"."""
    try:
        with connections[router.db_for_write(Event)].cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseError:
        return "down"
    return "ok"


def soft() -> tuple[str, str]:
    """States of Redis ("ok", "down") and of maintenance ("ok", "silent", "unknown")."""
    try:
        inspect.write_probe()
        silence = upkeep.silence()
    except RedisAway:
        return "down", "unknown"
    return "ok", "ok" if silence is not None and silence <= SILENT else "silent"


def state() -> dict[str, str]:
    """All states, and under `status` what they come to."""
    redis, maintenance = soft()
    parts = {"database": database(), "redis": redis, "maintenance": maintenance}
    status = "down" if parts["database"] != "ok" else "ok" if redis == maintenance == "ok" else "degraded"
    return {"status": status, **parts}


@never_cache
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """Answer a load balancer; see the module's table."""
    found = state()
    failed = found["status"] == "down" or (found["status"] == "degraded" and "strict" in request.GET)
    return JsonResponse(found, status=503 if failed else 200)
