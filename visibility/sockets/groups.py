"""This process's one channel on the layer, and the groups that it is in: one per resource that its sessions watch.

One worker carries out all joining and leaving, by what is watched at that moment, so that a quick unwatch and watch cannot end
the wrong way round. When the layer fails, it is joined again with back-off, and versions are compared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from visibility import push
from visibility.conf import settings
from visibility.sockets.batches import end_tasks

logger = logging.getLogger("visibility")
AT_ONCE = 16
JOIN_TIMEOUT = 2.0
LONGEST_WAIT = 10.0


class Groups:
    """`wanted` has the resources watched now, `take` gets every hint, `gap` is called after hints may have been lost."""

    def __init__(self, wanted: Collection[str], take: Callable[[Any], None], gap: Callable[[], None]) -> None:
        self._wanted, self._take, self._gap = wanted, take, gap
        self._channel = ""
        self._layer: Any = None
        self._receiver: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._todo: dict[str, None] = {}
        self._joined: dict[str, float] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def start(self) -> None:
        """Open the channel and listen. Without a layer, hints of this process come straight in."""
        self._layer = push.channel_layer()
        if self._layer is None:
            push.local.hubs[asyncio.get_running_loop()] = self._take
        else:
            self._receiver = asyncio.create_task(self._receive())

    async def stop(self) -> None:
        """Leave all groups and the channel."""
        push.local.hubs.pop(asyncio.get_running_loop(), None)
        await end_tasks([self._receiver, self._worker])
        self._receiver = self._worker = None
        if self._layer is not None and self._channel:
            groups = list({"": None, **self._joined})
            for start in range(0, len(groups), AT_ONCE):
                part = groups[start : start + AT_ONCE]
                leaving = (self._layer.group_discard(push.group_of(name), self._channel) for name in part)
                if any(isinstance(error, Exception) for error in await asyncio.gather(*leaving, return_exceptions=True)):
                    break
        for waiting in self._waiting.values():
            waiting.cancel()
        self._channel = ""
        for kept in (self._joined, self._todo, self._waiting):
            kept.clear()

    async def join(self, names: Iterable[str]) -> None:
        """Be in the groups of these resources; returns without, if the layer does not answer (a heartbeat makes it good)."""
        if self._layer is None:
            return
        loop = asyncio.get_running_loop()
        new = [name for name in names if name not in self._joined]
        for name in new:
            if name not in self._waiting:
                self._waiting[name] = loop.create_future()
            self._todo[name] = None
        if new:
            self._work()
            await asyncio.wait([self._waiting[name] for name in new], timeout=JOIN_TIMEOUT)

    def leave(self, name: str) -> None:
        """Nobody here watches this any more."""
        if self._layer is not None:
            self._todo[name] = None
            self._work()

    def renew(self, now: float) -> None:
        """Repeat memberships whose time has come, so that a layer's group expiry does not drop them."""
        if self._layer is None:
            return
        longest = max(1.0, getattr(self._layer, "group_expiry", 86_400) / 3)
        every = min(settings.HEARTBEAT, longest)
        due = [name for name, at in self._joined.items() if now - at >= every]
        # Oldest first; a process with very many takes a minute for all, rather than all its time.
        self._todo.update(dict.fromkeys(due[: max(100, int(len(self._joined) / min(60.0, longest)))]))
        if due:
            self._work()

    def again(self) -> None:
        """Join everything anew: the layer may have forgotten."""
        if self._layer is not None:
            self._joined = dict.fromkeys(self._joined, 0.0)
            self._todo.update(dict.fromkeys(["", *self._wanted]))
            self._work()

    def _work(self) -> None:
        if self._worker is None and self._channel:
            self._worker = asyncio.create_task(self._works())

    async def _works(self) -> None:
        wait = 0.1
        try:
            while self._todo:
                names = list(self._todo)[:AT_ONCE]
                for name in names:
                    del self._todo[name]
                results = await asyncio.gather(*(self._one(name) for name in names), return_exceptions=True)
                failed = [name for name, result in zip(names, results, strict=True) if isinstance(result, Exception)]
                if failed:
                    self._todo.update(dict.fromkeys(failed))
                    await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311
                    wait = min(LONGEST_WAIT, wait * 2)
        finally:
            self._worker = None

    def _one(self, name: str) -> Awaitable[None]:
        return self._add(name) if name == "" or name in self._wanted else self._discard(name)

    async def _add(self, name: str) -> None:
        await self._layer.group_add(push.group_of(name), self._channel)
        self._joined.pop(name, None)
        self._joined[name] = asyncio.get_running_loop().time()
        self._answer(name)
        if name and name not in self._wanted:
            self._todo[name] = None

    async def _discard(self, name: str) -> None:
        self._joined.pop(name, None)
        self._answer(name)
        await self._layer.group_discard(push.group_of(name), self._channel)
        if name in self._wanted:
            self._todo[name] = None

    def _answer(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _receive(self) -> None:
        wait, first = 0.25, True
        while True:
            try:
                self._channel = self._channel or await self._layer.new_channel()
                await self._layer.group_add(push.group_of(""), self._channel)
                self._joined[""] = asyncio.get_running_loop().time()
                if not first:
                    self.again()
                    self._gap()
                self._work()
                while True:
                    self._take(await self._layer.receive(self._channel))
                    wait, first = 0.25, False
            except asyncio.CancelledError:
                raise
            except Exception as error:
                first = False
                logger.warning("the channel layer failed (%r); joining again in %.1f s", error, wait)
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311
                wait = min(LONGEST_WAIT, wait * 2)
