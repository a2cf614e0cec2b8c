"""The Redis server's clock as last seen, carried on by this process's monotonic clock; wall-clock steps do not move it."""

from __future__ import annotations

import time
from typing import Any

# Milliseconds of much more are no number to a script in Redis.
LONGEST = 10 * 366 * 86_400.0
_offset: float | None = None


def check_seconds(where: str, seconds: Any) -> None:
    """Refuse what is no length of time.

    Raises:
        ValueError: not above 0, or more than ten years; it begins with `where`.
    """
    try:
        good = 0 < seconds <= LONGEST
    except (TypeError, ArithmeticError):
        good = False
    if not good:
        raise ValueError(f"{where}: seconds must be above 0 and at most ten years, not {seconds!r}")


def seen(now_ms: int) -> None:
    """Take note of the server's time."""
    global _offset
    _offset = now_ms - time.monotonic() * 1000


def now_ms() -> int:
    """About what the server's clock says now; this machine's clock until the server was heard."""
    return int(time.time() * 1000 if _offset is None else time.monotonic() * 1000 + _offset)
