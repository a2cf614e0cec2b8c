"""The socket as an ASGI application, to stand beside a project's own::

    from channels.routing import ProtocolTypeRouter
    from visibility.routing import application as visibility_socket

    application = ProtocolTypeRouter({"http": get_asgi_application(), "websocket": visibility_socket})

With sockets of your own beside it, put `websocket_urlpatterns` into your URLRouter, behind `OwnOrigin` and `SessionUser`.
"""

from __future__ import annotations

from typing import Any

from channels.routing import URLRouter
from django.urls import path

from visibility.consumers import VisibilityConsumer
from visibility.middleware import OwnOrigin, Receive, Scope, Send, SessionUser, refuse
from visibility.sockets.frames import NO_SUCH_PATH


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(receive, send, NO_SUCH_PATH)


# Django's `path` is typed for views; URLRouter's patterns end in ASGI applications.
_path: Any = path
websocket_urlpatterns: list[Any] = [_path("ws/visibility/", VisibilityConsumer.as_asgi(), name="visibility-socket")]
_router: Any = URLRouter([*websocket_urlpatterns, _path("", _nothing_here), _path("<path:other>", _nothing_here)])
application = OwnOrigin(SessionUser(_router))
