"""Back-pressure for a server that has none; on a real Daphne: tests/chaos/test_sockets.py."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from visibility.sockets.flow import Paced, paced


class Protocol:
    """What Daphne hands over inside its `send`."""

    def __init__(self) -> None:
        self.producer: Any = "left over"
        self.sent: list[Any] = []

    def unregisterProducer(self) -> None:
        self.producer = None

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        if self.producer is not None or not streaming:
            raise RuntimeError("refused")
        self.producer = producer


async def reply(protocol: Protocol, message: dict[str, Any]) -> None:
    protocol.sent.append(message)


async def test_a_full_buffer_is_waited_for() -> None:
    protocol = Protocol()
    send = paced(partial(reply, protocol))
    assert isinstance(send, Paced)
    assert protocol.producer is send
    await send({"n": 1})
    send.pauseProducing()
    send.pauseProducing()
    waiting = asyncio.create_task(send({"n": 2}))
    await asyncio.sleep(0.01)
    assert protocol.sent == [{"n": 1}, {"n": 2}]
    assert not waiting.done()
    send.resumeProducing()
    await asyncio.wait_for(waiting, 1)
    send.resumeProducing()
    await send({"n": 3})


async def test_a_lost_connection_is_not_waited_for_and_a_cancelled_writer_harms_nothing() -> None:
    send = paced(partial(reply, Protocol()))
    assert isinstance(send, Paced)
    send.pauseProducing()
    first, second = asyncio.create_task(send({})), asyncio.create_task(send({}))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    send.stopProducing()
    await asyncio.wait_for(second, 1)
    assert first.cancelled()


async def test_other_servers_and_odd_ones_are_left_alone() -> None:
    class Refusing(Protocol):
        def unregisterProducer(self) -> None:
            raise RuntimeError("no")

    async def plain(message: dict[str, Any]) -> None:
        pass

    odd = partial(reply, Refusing())
    assert paced(plain) is plain
    assert paced(odd) is odd
