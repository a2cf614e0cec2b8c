"""How much a test does: little in the suite, all of it by hand."""

from __future__ import annotations

import os


def size(name: str, small: int, full: int) -> int:
    """What the environment says under `name`; else `full` with VISIBILITY_FULL=1, and `small` without."""
    return int(os.environ.get(name) or (full if os.environ.get("VISIBILITY_FULL") else small))
