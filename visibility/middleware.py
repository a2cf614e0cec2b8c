"""What stands before the socket: the page's origin must be this site's own, and the session says who the user is.

A refused socket is accepted first and then closed with a code of its own; closed before, the browser sees only that it failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.http import parse_cookie
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from visibility.sockets.batches import Batches
from visibility.sockets.frames import ORIGIN_REFUSED, TRY_LATER
from visibility.users import session_store, users_of

logger = logging.getLogger("visibility")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


async def refuse(receive: Receive, send: Send, code: int) -> None:
    """Accept, then close with a code that says why."""
    if (await receive())["type"] == "websocket.connect":
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": code})


def header(scope: Scope, name: bytes) -> str | None:
    """A header's value, or None."""
    for key, value in scope.get("headers", ()):
        if key == name:
            return str(value.decode("latin1"))
    return None


def own_origin(origin: str, host: str | None) -> bool:
    """Whether a page of this origin may open a socket to this host.

    It may if it has the very host and port that was asked, or a host named in `ALLOWED_HOSTS` on the same or the standard port,
    or if it stands in `CSRF_TRUSTED_ORIGINS`. Here `*` allows no foreign page.
    """
    try:
        parts = urlsplit(origin.lower())
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in PORTS or not parts.hostname:
        return False
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    standard = PORTS[parts.scheme]
    asked, asked_port = split_domain_port((host or "").lower())
    same_port = (port or standard) == int(asked_port or standard)
    hosts = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    if asked == name and same_port and validate_host(name, hosts):
        return True
    named = [pattern for pattern in hosts if pattern != "*"]
    if validate_host(name, named) and (same_port or (port or standard) == standard):
        return True
    return any(_trusted(parts.scheme, parts.netloc, pattern) for pattern in settings.CSRF_TRUSTED_ORIGINS)


def _trusted(scheme: str, netloc: str, pattern: str) -> bool:
    wanted = urlsplit(pattern.lower())
    if wanted.scheme != scheme:
        return False
    return is_same_domain(netloc, wanted.netloc.removeprefix("*")) if "*" in wanted.netloc else netloc == wanted.netloc


class OwnOrigin:
    """Refuse pages of other sites. A client that names no origin is no browser page, and is let through to the session check."""

    def __init__(self, app: App) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        origin = header(scope, b"origin")
        host = header(scope, b"x-forwarded-host" if settings.USE_X_FORWARDED_HOST else b"host") or header(scope, b"host")
        if origin is not None and not own_origin(origin, host):
            logger.warning("a socket from the origin %.200r was refused", origin)
            return refuse(receive, send, ORIGIN_REFUSED)
        return self.app(scope, receive, send)


async def _load(keys: Sequence[str]) -> list[Any]:
    found = await database_sync_to_async(users_of)(keys)
    return [found.get(key) for key in keys]


_loading: WeakKeyDictionary[asyncio.AbstractEventLoop, Batches[str, Any]] = WeakKeyDictionary()


class SessionUser:
    """Put the session's user into the scope. It reads the session, never writes or flushes it, and takes hashes made with an
    older secret key. A user that is there already (from a middleware of the project) stays."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "user" not in scope:
            try:
                scope = await self.with_user(scope)
            except Exception:
                logger.exception("a socket's session could not be read")
                await refuse(receive, send, TRY_LATER)
                return
        await self.app(scope, receive, send)

    @staticmethod
    async def with_user(scope: Scope) -> Scope:
        """A copy of the scope with `session`, `user`, and the session's key if the user came from it."""
        key = parse_cookie(header(scope, b"cookie") or "").get(settings.SESSION_COOKIE_NAME)
        user = None
        if key:
            loop = asyncio.get_running_loop()
            user = await _loading.setdefault(loop, Batches(_load))(key)
        return {
            **scope,
            "session": session_store(key),
            "user": AnonymousUser() if user is None else user,
            "visibility.session": key if user is not None else None,
        }
