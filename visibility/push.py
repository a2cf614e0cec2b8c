"""Hints over the channel layer: a resource has a new version, or the access log has news. Sync and async.

A hint may be lost; what it tells stands in Redis and is compared at the next heartbeat. The hub is the receiving side.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from typing import Any, NotRequired, TypedDict

from channels.db import database_sync_to_async
from channels.layers import InMemoryChannelLayer, get_channel_layer

from visibility.conf import settings

logger = logging.getLogger("visibility")
# The one handler type: a second one would kill the sockets of processes that do not know it.
TYPE = "visibility.hint"
TIMEOUT = 5.0
AT_ONCE = 8
# A build of more resources than this is told to everybody in one message, instead of to a group each.
FEW = 16
PACK = 500
# So many messages of large batches may be on their way while their worker goes on.
AHEAD = 4

in_thread = database_sync_to_async


class Hint(TypedDict):
    """What the layer carries. Unknown kinds are ignored, so that releases may differ between processes."""

    type: str
    kind: str
    resource: NotRequired[str]
    version: NotRequired[int]
    versions: NotRequired[dict[str, int]]
    number: NotRequired[int]


def group_of(resource: str) -> str:
    """The layer group of a resource, or of everybody (``); any legal resource gives a legal group name."""
    return "visibility." + sha256(f"{settings.PREFIX}|{resource}".encode()).hexdigest()[:40]


def channel_layer() -> Any:
    """The project's channel layer, or None where hints need none: without one, or with the in-memory one, this process is all."""
    layer = get_channel_layer(settings.CHANNEL_LAYER)
    return None if isinstance(layer, InMemoryChannelLayer) else layer


class _Local:
    """The hubs of this process, for when there is no layer between processes."""

    def __init__(self) -> None:
        self.hubs: dict[asyncio.AbstractEventLoop, Callable[[Hint], None]] = {}

    def send(self, hints: Sequence[Hint]) -> None:
        for loop, take in list(self.hubs.items()):
            for hint in hints:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(take, hint)


local = _Local()


class _Sender:
    """A thread with an event loop, for senders that have none. Its connections are kept; `async_to_sync` opens one a call."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.under_way: deque[Future[None]] = deque()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="visibility-push", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        # Closing the loop makes the layer close its connections.
        self.loop.close()

    def send(self, work: Coroutine[Any, Any, None], *, wait: bool) -> None:
        """Have it sent; without `wait`, while the caller goes on with what it does, unless `AHEAD` are on their way already."""
        self.under_way.append(asyncio.run_coroutine_threadsafe(work, self.loop))
        self.settle(0 if wait else AHEAD)

    def settle(self, left: int = 0) -> None:
        """Wait until at most so many are on their way."""
        while len(self.under_way) > left:
            self.under_way.popleft().result(TIMEOUT + 1)

    def stop(self) -> None:
        if self.pid == os.getpid() and self.thread.is_alive():
            with suppress(Exception):
                self.settle()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(2)


_sender: _Sender | None = None
_lock = threading.Lock()
_tasks: set[asyncio.Task[None]] = set()


def _the_sender() -> _Sender:
    global _sender
    with _lock:
        # A fork copies the object but not its thread.
        if _sender is None or _sender.pid != os.getpid() or not _sender.thread.is_alive():
            _sender = _Sender()
        return _sender


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@atexit.register
def close() -> None:
    """End the sender thread and its connections; the next hint starts another."""
    global _sender
    with _lock:
        sender, _sender = _sender, None
    if sender is not None:
        sender.stop()


def settle() -> None:
    """Wait until all hints that this process has to send have left; before a job ends, whose process may end with it."""
    sender = _sender
    if sender is not None and sender.pid == os.getpid():
        try:
            sender.settle()
        except Exception as error:
            logger.warning("hints were not sent: %r", error)


def publish(updates: Iterable[tuple[str, int]]) -> None:
    """Tell every process that watches these resources of their new versions. Never raises.

    Usable from anywhere: with an event loop running in this thread, it is sent from there, after the caller.
    """
    rows = dict(updates)
    # Of a large batch the worker has more to do meanwhile; of a small one somebody waits for the frame.
    send(_hints(rows), wait=len(rows) <= FEW)


async def apublish(updates: Iterable[tuple[str, int]]) -> None:
    """The asynchronous twin of `publish`."""
    await asend(_hints(dict(updates)))


def publish_access(number: int) -> None:
    """Tell every process that the access log has an entry of this number. Never raises."""
    send([("", {"type": TYPE, "kind": "access", "number": number})])


def _hints(versions: Mapping[str, int]) -> list[tuple[str, Hint]]:
    """Hints as they go out. A group_send costs half a millisecond, a name that a process does not know nearly nothing: the
    updates of a large batch share messages to everybody."""
    if len(versions) <= FEW:
        return [(name, {"type": TYPE, "kind": "update", "resource": name, "version": n}) for name, n in versions.items()]
    rows = list(versions.items())
    parts = [dict(rows[start : start + PACK]) for start in range(0, len(rows), PACK)]
    return [("", {"type": TYPE, "kind": "updates", "versions": part}) for part in parts]


def send(hints: Sequence[tuple[str, Hint]], *, wait: bool = True) -> None:
    """Send hints to the groups of resources (`` is everybody's); without `wait`, while the caller goes on."""
    if not hints:
        return
    if channel_layer() is None:
        local.send([hint for _, hint in hints])
        return
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        try:
            _the_sender().send(asend(hints), wait=wait)
        except Exception as error:
            logger.warning("%d hints were not sent: %r", len(hints), error)
        return
    task = running.create_task(asend(hints))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def asend(hints: Sequence[tuple[str, Hint]]) -> None:
    """The asynchronous twin of `send`."""
    layer = channel_layer()
    if layer is None:
        local.send([hint for _, hint in hints])
        return
    try:
        async with asyncio.timeout(TIMEOUT):
            for start in range(0, len(hints), AT_ONCE):
                part = hints[start : start + AT_ONCE]
                await asyncio.gather(*(layer.group_send(group_of(resource), hint) for resource, hint in part))
    except Exception as error:
        logger.warning("%d hints were not sent: %r", len(hints), error)
