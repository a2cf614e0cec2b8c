"""The ASGI application of the benchmarks: the visibility socket, and beside it the consumers that one would write without it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.routing import ProtocolTypeRouter

from tests.asgi import http
from visibility.middleware import Receive, Scope, Send
from visibility.routing import application as visibility_socket

GROUP = "bare"


class Bare(AsyncJsonWebsocketConsumer):
    """Accepts, takes any JSON, and is in no group: the least that Channels offers."""


class Listener(AsyncJsonWebsocketConsumer):
    """In one group, whose frames it sends on."""

    groups = [GROUP]

    async def bare_update(self, event: dict[str, Any]) -> None:
        await self.send_json(event["frame"])


PLAIN = {"/ws/bare/": Bare.as_asgi(), "/ws/group/": Listener.as_asgi()}


def websocket(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """By path; no coroutine of its own, so that no socket pays for the choice."""
    chosen: Any = PLAIN.get(scope["path"], visibility_socket)
    found: Awaitable[None] = chosen(scope, receive, send)
    return found


application = ProtocolTypeRouter({"http": http, "websocket": websocket})
