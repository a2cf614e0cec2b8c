"""Many small calls made one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from visibility.sockets.batches import Batches, end_tasks


class Recorder:
    def __init__(self) -> None:
        self.rounds: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, items: Sequence[int]) -> Sequence[int]:
        self.rounds.append(list(items))
        await self.gate.wait()
        if 13 in items:
            raise ValueError("unlucky")
        return [item * 10 for item in items]


async def test_what_comes_meanwhile_goes_out_together() -> None:
    recorder = Recorder()
    batches: Batches[int, int] = Batches(recorder.run, limit=3)
    recorder.gate.clear()
    first = asyncio.create_task(batches(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(batches(n)) for n in (2, 3, 4, 5)]
    await asyncio.sleep(0)
    recorder.gate.set()
    assert await asyncio.gather(first, *others) == [10, 20, 30, 40, 50]
    assert recorder.rounds == [[1], [2, 3, 4], [5]]
    assert await batches(6) == 60


async def test_an_error_is_everybodys_of_that_round_and_of_no_other() -> None:
    recorder = Recorder()
    batches: Batches[int, int] = Batches(recorder.run, limit=2)
    results = await asyncio.gather(*(batches(n) for n in (1, 13, 2, 3)), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError, int, int]


async def test_a_caller_that_is_cancelled_leaves_the_others_their_round() -> None:
    recorder = Recorder()
    batches: Batches[int, int] = Batches(recorder.run)
    recorder.gate.clear()
    impatient, patient = asyncio.create_task(batches(1)), asyncio.create_task(batches(2))
    await asyncio.sleep(0.01)
    impatient.cancel()
    recorder.gate.set()
    assert await patient == 20
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_rounds_can_be_kept_apart() -> None:
    recorder = Recorder()
    batches: Batches[int, int] = Batches(recorder.run, pause=0.05)
    await batches(1)
    await asyncio.gather(*(batches(n) for n in (2, 3, 4)))
    assert recorder.rounds == [[1], [2, 3, 4]]


async def test_tasks_that_swallow_a_cancellation_are_ended_all_the_same() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                if swallowed == 2:
                    raise
                swallowed += 1

    done = asyncio.create_task(asyncio.sleep(0))
    await done
    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end_tasks([task, None, done])
    assert task.cancelled()
    assert swallowed == 2
