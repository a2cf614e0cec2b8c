"""Signals inside a job: a stop that waits for the end of a batch, and a limit on the time of a build."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from visibility.conf import settings
from visibility.exceptions import BuildTimeout

STOPS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether this process was told to stop; true in a condition once it was."""

    def __init__(self) -> None:
        self.asked = False

    def __bool__(self) -> bool:
        return self.asked


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Take note of SIGTERM and SIGINT and pass them on to whoever handled them before.

    A forked work horse handles SIGTERM by dying; here its first one only asks it to stop, the second ends it.
    """
    stop = Stop()
    if not _main_thread():
        yield stop
        return
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        repeated, stop.asked = stop.asked, True
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL and repeated:
            raise SystemExit(128 + number)

    for number in STOPS:
        before[number] = signal.getsignal(number)
        if before[number] is not signal.SIG_IGN and before[number] is not None:
            signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number in STOPS:
            # RQ puts another handler in place when it is asked to stop: leave that.
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise `BuildTimeout` in the block after `BUILD_TIMEOUT` seconds, and again each time as long has passed.

    Works in a process's main thread, where SIGALRM can be had; elsewhere there is no limit but the claim's. An alarm that was
    set before (RQ's for the job) goes off in its time.
    """
    if not _main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    seconds = float(settings.BUILD_TIMEOUT)
    started, (left, _again) = time.monotonic(), signal.getitimer(signal.ITIMER_REAL)

    def expire(number: int, frame: FrameType | None) -> None:
        raise BuildTimeout(f"the build took longer than VISIBILITY['BUILD_TIMEOUT'], {seconds:g} s (process {os.getpid()})")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, left) if left else seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - started)))
