"""The last happenings of each resource, for its inspector page: seen, hidden, built. Kept in Redis, `LENGTH` a resource.

Notes ride with the metrics: buffered in the process, sent once a second. Under load only some are kept (`PER_FLUSH` a second and
process); this is a help for reading, not a log. Nothing here raises.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.soft import inspect

LENGTH = 20
PER_FLUSH = 500

_encode = json.JSONEncoder(separators=(",", ":")).encode
_lock = threading.Lock()
_notes: list[tuple[str, str]] = []


def room() -> int:
    """How many more notes are kept now, so that no others need be made."""
    return max(0, PER_FLUSH - len(_notes))


def note(resource: str, kind: str, **detail: str | int | float | None) -> None:
    """Remember that this happened to a resource: now, or `at` (seconds since 1970). `kind` is a machine word, `detail` JSON."""
    # Looked at before the note is written out: under load most are dropped.
    if not room():
        metrics.count("notes_dropped")
        return
    entry = _encode({"at": round(time.time(), 3), "kind": kind, **detail})
    with _lock:
        _notes.append((resource, entry))
    metrics.kick()


def flush() -> None:
    """Send what was noted; on failure it is forgotten."""
    global _notes
    with _lock:
        taken, _notes = _notes, []
    try:
        inspect.write_trail(taken, LENGTH)
    except RedisAway:
        metrics.count("notes_dropped", len(taken))


def read(resource: str) -> list[dict[str, Any]]:
    """The last happenings of a resource, newest first, each with `at` (seconds since 1970) and `kind`.

    Raises:
        RedisAway: Redis does not answer.
    """
    return [json.loads(entry) for entry in inspect.read_trail(resource, LENGTH)]


def _after_fork() -> None:
    global _lock, _notes
    _lock, _notes = threading.Lock(), []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
metrics.riders.append(flush)
