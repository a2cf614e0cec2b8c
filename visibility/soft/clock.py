"""The Redis server's clock as last seen, carried on by this process's monotonic clock; wall-clock steps do not move it."""

from __future__ import annotations

import time

_offset: float | None = None


def seen(now_ms: int) -> None:
    """Take note of the server's time."""
    global _offset
    _offset = now_ms - time.monotonic() * 1000


def now_ms() -> int:
    """About what the server's clock says now; this machine's clock until the server was heard."""
    return int(time.time() * 1000 if _offset is None else time.monotonic() * 1000 + _offset)
