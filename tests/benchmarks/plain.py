"""The plain side: what one would write without the package. RQ jobs that build one key, and store it or tell a group of it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings

_clients: dict[int, Any] = {}


def redis() -> Any:
    """One client a process, as anybody would keep it."""
    import redis as redis_py

    if os.getpid() not in _clients:
        _clients[os.getpid()] = redis_py.Redis.from_url(settings.REDIS_URL)
    return _clients[os.getpid()]


def build_one(data_type: str, key: str) -> None:
    """The job per key: build, and store for five minutes. No marks, no claims, no generations."""
    from visibility.datatypes import registry

    data = registry.get(data_type).build_many([key])[key]
    redis().set(f"plain:{data_type}:{key}", json.dumps(data), ex=300)


def build_and_tell(data_type: str, key: str) -> None:
    """The job of B4: build, and send it to the group, as Channels' documentation has it; that opens a connection a call."""
    async_to_sync(_sent)(_built(data_type, key))


def build_and_tell_kept(data_type: str, key: str) -> None:
    """The same over a connection that is kept, which takes a thread with an event loop."""
    loop().run(_sent(_built(data_type, key)))


def _built(data_type: str, key: str) -> dict[str, Any]:
    from visibility.datatypes import registry

    return {"resource": f"{data_type}:{key}", "data": registry.get(data_type).build_many([key])[key]}


async def _sent(frame: dict[str, Any]) -> None:
    await get_channel_layer().group_send("bare", {"type": "bare.update", "frame": frame})


class Loop:
    """An event loop in a thread, so that code without one keeps the connections of its channel layer."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What this coroutine answers, run there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


_loops: dict[int, Loop] = {}


def loop() -> Loop:
    """The one of this process."""
    if os.getpid() not in _loops:
        _loops[os.getpid()] = Loop()
    return _loops[os.getpid()]
