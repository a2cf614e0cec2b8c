"""The test project's settings, as one would run it: no debug, queues for the plain side, a channel layer that holds a crowd."""

from __future__ import annotations

import os
from importlib.util import find_spec

from tests.settings import *  # noqa: F403
from tests.settings import CHANNEL_LAYERS, INSTALLED_APPS, REDIS_URL, RQ_QUEUES, VISIBILITY

# The layer's capacity is per process. With its default of 100 a bare group_send to 1,000 sockets of one process loses most.
CHANNEL_LAYERS["default"]["CONFIG"]["capacity"] = 20_000
RQ_QUEUES["plain"] = {"URL": REDIS_URL}
LOGGING_CONFIG = None
ASGI_APPLICATION = "tests.benchmarks.site.application"
ROOT_URLCONF = "tests.urls"
INSTALLED_APPS = [*INSTALLED_APPS, *os.environ.get("BENCHMARK_APPS", "").split()]
# The peer of B5.
if find_spec("channels_presence"):
    INSTALLED_APPS.append("channels_presence")
VISIBILITY.setdefault("LIMITS", {"sockets_per_user": 100_000})
# The peer of B7.
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "redis": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL, "KEY_PREFIX": "peer"},
}
