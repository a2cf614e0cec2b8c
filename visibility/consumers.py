"""The socket: accepts, hands frames to the hub, and sees to it that the session ends with it.

It uses no channel of its own on the layer and no task: while nothing comes, it waits in the server's own `receive`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user_model

from visibility.conf import settings
from visibility.insight import metrics
from visibility.middleware import Receive, Scope, Send
from visibility.sockets import frames
from visibility.sockets.flow import paced
from visibility.sockets.frames import TOO_FAST, TOO_MANY_SOCKETS, TRY_LATER, Ack, BadFrame, Ping
from visibility.sockets.hub import Hub, hub_here
from visibility.sockets.state import Session
from visibility.soft import clock
from visibility.soft.sessions import NOBODY
from visibility.users import user_key

logger = logging.getLogger("visibility")
# No frame is read while more than this many wait to be sent: a client that asks must also read.
READ_AHEAD = 64
# What a client is told of the limits.
TOLD = ("watches_per_socket", "frame_bytes", "frames_per_second", "frames_burst")


class VisibilityConsumer(AsyncWebsocketConsumer):
    """`ws/visibility/`: the protocol of `visibility.sockets.frames`. No exception leaves it, and its leases end with it."""

    channel_layer_alias = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        session: Session | None = None
        hub = hub_here()
        try:
            if (await receive())["type"] != "websocket.connect":
                return
            await send({"type": "websocket.accept"})
            session = await hub.open(*_identity(scope), paced(send))
            await self._greet(hub, session)
            await self._listen(hub, session, receive)
        except StopConsumer:
            pass
        except Exception:
            logger.exception("a socket failed; it is closed, and may come again")
            await self._give_up(session, send)
        finally:
            if session is not None:
                await hub.leave(session)

    @staticmethod
    async def _greet(hub: Hub, session: Session) -> None:
        if await hub.joins(session):
            limits = {name: hub.limits[name] for name in TOLD}
            session.put(frames.hello(session.sid, settings.HEARTBEAT, limits))
        else:
            session.put(frames.error("limit", f"at most {hub.limits['sockets_per_user']} sockets a user"))
            session.close(TOO_MANY_SOCKETS)

    async def _listen(self, hub: Hub, session: Session, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            if message["type"] == "websocket.receive" and not session.closing:
                self.handle(hub, session, message.get("text"), message.get("bytes"))
                while session.writer is not None and len(session.outbox or ()) > READ_AHEAD:
                    await asyncio.wait([session.writer])

    @staticmethod
    async def _give_up(session: Session | None, send: Send) -> None:
        try:
            if session is not None:
                session.close(TRY_LATER)
            else:
                await send({"type": "websocket.close", "code": TRY_LATER})
        except Exception as error:
            logger.debug("the socket was gone already: %r", error)

    @staticmethod
    def handle(hub: Hub, session: Session, text: str | None, data: bytes | None) -> None:
        """One frame. It always counts as a heartbeat; whatever is wrong with it is answered by an error frame."""
        now = asyncio.get_running_loop().time()
        limits = hub.limits
        session.heard = now
        hub.beats.heard(session)
        size, most = len(text or data or ""), int(limits["frame_bytes"])
        # A frame that is too large costs as many as would have carried it.
        if not session.allow(1 + size // most, limits["frames_per_second"], limits["frames_burst"], now):
            hub.watcher.refuse(session, BadFrame("rate", f"at most {limits['frames_per_second']} frames a second"))
            if session.refused > limits["frames_burst"]:
                hub.end(session, TOO_FAST)
            return
        try:
            if size > most:
                raise BadFrame("limit", f"a frame is at most {most} bytes")
            frame = frames.parse(text, int(limits["watches_per_socket"]))
        except BadFrame as bad:
            hub.watcher.refuse(session, bad)
            return
        match frame:
            case Ping(have):
                hub.beats.ping(session, have)
            case Ack(resource, version):
                _acked(hub, session, resource, version)
            case _:
                hub.watcher.ask(session, frame)


def _acked(hub: Hub, session: Session, resource: str, version: int) -> None:
    topic = hub.topics.get(resource)
    if topic is not None and topic.version == version and topic.event_ms and session.watches.get(topic) == version:
        metrics.observe("freshness_acked", max(0.0, (clock.now_ms() - topic.event_ms) / 1000), topic.type.name)


def _identity(scope: Scope) -> tuple[str, str | None, Any]:
    """User key, login session and account of a scope; the account is kept only for users that no database knows."""
    user = scope.get("user")
    name = user_key(user)
    if name == NOBODY:
        return NOBODY, None, None
    # A lazy user of other middleware counts as what it wraps.
    account = None if issubclass(user.__class__, get_user_model()) else user
    return name, _login(scope, name), account


def _login(scope: Scope, name: str) -> str | None:
    if "visibility.session" in scope:
        found: str | None = scope["visibility.session"]
        return found
    # Behind Channels' own stack the session was loaded to find the user; it is not loaded here.
    session = scope.get("session")
    loaded = getattr(session, "_session_cache", None) or {}
    return session.session_key if session is not None and str(loaded.get("_auth_user_id")) == name else None
