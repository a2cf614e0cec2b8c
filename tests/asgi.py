"""The test project's ASGI application: Django's views and the visibility socket."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
http = get_asgi_application()

# Imported after the apps are ready.
from channels.routing import ProtocolTypeRouter  # noqa: E402

from visibility.routing import application as visibility_socket  # noqa: E402

application = ProtocolTypeRouter({"http": http, "websocket": visibility_socket})
