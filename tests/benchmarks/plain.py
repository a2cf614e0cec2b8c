"""The plain side: what one would write without the package. RQ jobs that build one key, and what they store."""

from __future__ import annotations

import json
import os
from typing import Any

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
