"""HTTP by Django, with static files, and the socket of visibility at `ws/visibility/`."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django_application = get_asgi_application()

# Imported after the apps are ready.
from channels.routing import ProtocolTypeRouter  # noqa: E402
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler  # noqa: E402

from visibility.routing import application as visibility_socket  # noqa: E402

application = ProtocolTypeRouter({"http": ASGIStaticFilesHandler(django_application), "websocket": visibility_socket})
