"""Wait for a condition with a deadline; the only way in which a test lets time pass."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
STEP = 0.01


def _describe(what: str, condition: Callable[..., object]) -> str:
    return what or getattr(condition, "__qualname__", repr(condition))


def wait_for(condition: Callable[[], T | None], seconds: float = 5, what: str = "") -> T:
    """Call `condition` until it answers something true, and return that.

    An AssertionError inside the condition counts as "not yet" and is shown if the deadline passes.

    Raises:
        AssertionError: it did not become true within `seconds`.
    """
    end = time.monotonic() + seconds
    while True:
        error: AssertionError | None = None
        value: T | None = None
        try:
            value = condition()
        except AssertionError as caught:
            error = caught
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {_describe(what, condition)} (last: {error or value!r})") from error
        time.sleep(STEP)


async def await_for(condition: Callable[[], Any], seconds: float = 5, what: str = "") -> Any:
    """`wait_for` for tests on an event loop; the condition may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        error: AssertionError | None = None
        value = None
        try:
            answer = condition()
            value = await answer if inspect.isawaitable(answer) else answer
        except AssertionError as caught:
            error = caught
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {_describe(what, condition)} (last: {error or value!r})") from error
        await asyncio.sleep(STEP)
