"""Named stopping points on the paths that must survive a crash; tests stop, kill or interleave there."""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Tell the hook, where a test has set one, that this point was reached."""
    if hook is not None:
        hook(name)
