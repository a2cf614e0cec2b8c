"""Many small asynchronous calls made one: what arrives while a call is under way goes out together in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
PATIENCE = 0.1
R = TypeVar("R")


class Batches(Generic[T, R]):
    """Await `batches(item)` for the item's result. `run` gets up to `limit` items and answers one result for each.

    Rounds start at least `pause` seconds apart. If `run` raises, all callers of that round get the error.
    A caller that is cancelled leaves the round to the others.
    """

    def __init__(self, run: Callable[[Sequence[T]], Awaitable[Sequence[R]]], limit: int = 500, pause: float = 0.0) -> None:
        self._run, self._limit, self._pause = run, limit, pause
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: T) -> R:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._rounds())
        return await answer

    async def _rounds(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                await self._round(batch)
                if self._pause:
                    await asyncio.sleep(self._pause)
        finally:
            self._task = None

    async def _round(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
        except BaseException as error:
            for _, answer in batch:
                if not answer.done():
                    # A cancelled loop cancels; anything else is each caller's own error.
                    answer.cancel() if isinstance(error, asyncio.CancelledError) else answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), result in zip(batch, results, strict=True):
                if not answer.done():
                    answer.set_result(result)


async def end_tasks(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    """Cancel tasks and wait until they have ended.

    Again and again, since on Python 3.11 `asyncio.wait_for`, in which redis-py sends, can swallow a cancellation.
    """
    left = {task for task in tasks if task is not None and not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=PATIENCE)
