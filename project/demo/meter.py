"""The meter of work done against fan-out to everybody, told by every process, shown at most once a second."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

from django.db import connections

import visibility
from project.demo import soft
from visibility.exceptions import RedisAway

DELAY = 1.0

_lock = threading.Lock()
_due: threading.Timer | None = None


def tell(fields: Mapping[str, int]) -> None:
    """Add to the meter, and let who watches it see that within about a second."""
    global _due
    soft.count(fields)
    with _lock:
        if _due is None:
            _due = threading.Timer(DELAY, _show)
            _due.daemon = True
            _due.start()


def _show() -> None:
    global _due
    with _lock:
        _due = None
    try:
        with contextlib.suppress(RedisAway):
            visibility.emit("work", keys=["all"])
    finally:
        connections.close_all()
