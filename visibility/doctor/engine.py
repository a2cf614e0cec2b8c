"""What RQ says of a queue, asked through `recompute`, which alone knows RQ."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.utils.module_loading import import_string

LOOKED_AT = 200


def _queue(name: str) -> Any:
    return import_string("visibility.recompute.queue")(name)


def problem(name: str) -> str:
    """Why a queue cannot be used; "" if it can."""
    try:
        _queue(name).connection.ping()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def workers(name: str) -> int | None:
    """Live workers that listen on a queue; None where RQ cannot be asked."""
    try:
        connection = _queue(name).connection
        # RQ keeps the names of dead workers until its own clean-up; a live one has a hash that expires.
        names = connection.smembers(f"rq:workers:{name}")
        return sum(bool(connection.exists(one)) for one in names)
    except Exception:
        return None


def waiting(name: str) -> int:
    """Jobs that wait in a queue; 0 where RQ cannot be asked."""
    try:
        return int(_queue(name).count)
    except Exception:
        return 0


def doubled(name: str) -> dict[str, int]:
    """Of the first jobs of a queue, how many are the same call, by the call, the most frequent first."""
    try:
        jobs = _queue(name).get_jobs(0, LOOKED_AT)
        calls = Counter(str(job.get_call_string() if hasattr(job, "get_call_string") else job.description) for job in jobs)
    except Exception:
        return {}
    return {call: n for call, n in calls.most_common(5) if n > 1}
