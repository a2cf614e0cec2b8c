"""Checks of how the project is set up: this app's system checks, the channel layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis
from django.conf import settings as django_settings
from django.core import checks
from django.utils.translation import gettext as _

from visibility.conf import settings
from visibility.doctor.finding import CRITICAL, WARNING, Finding


def system_checks() -> Iterator[Finding]:
    """What `manage.py check` says about this app."""
    for message in checks.run_checks():
        if message.id and message.id.startswith("visibility.") and not message.is_silenced():
            yield Finding(
                code=message.id,
                severity=CRITICAL if message.level >= checks.ERROR else WARNING,
                symptom=str(message.msg),
                evidence={"object": str(message.obj)} if message.obj else {},
                remedy=str(message.hint or ""),
            )


def _layer() -> Mapping[str, Any]:
    layers = getattr(django_settings, "CHANNEL_LAYERS", None) or {}
    found: Mapping[str, Any] = layers.get(settings.CHANNEL_LAYER) or {}
    return found


def in_memory_layer() -> Iterator[Finding]:
    """The channel layer reaches other processes."""
    backend = str(_layer().get("BACKEND", ""))
    if backend.endswith("InMemoryChannelLayer"):
        yield Finding(
            code="in_memory_layer",
            severity=WARNING,
            symptom=_("The channel layer is in memory: what a worker builds never reaches a socket until the next heartbeat."),
            evidence={"layer": settings.CHANNEL_LAYER, "backend": backend},
            remedy=_("Set CHANNEL_LAYERS to channels_redis.pubsub.RedisPubSubChannelLayer or core.RedisChannelLayer."),
        )
    if not backend:
        yield Finding(
            code="no_layer",
            severity=WARNING,
            symptom=_("There is no channel layer: updates reach sockets by their heartbeat only."),
            evidence={"layer": settings.CHANNEL_LAYER},
            remedy=_("Set CHANNEL_LAYERS, for example to channels_redis.pubsub.RedisPubSubChannelLayer."),
        )


def socket_timeout() -> Iterator[Finding]:
    """redis-py 8 gives every socket 5 s, in which a quiet consumer on the core layer dies (channels_redis#422)."""
    layer = _layer()
    if not str(layer.get("BACKEND", "")).endswith("core.RedisChannelLayer") or int(redis.__version__.split(".")[0]) < 8:
        return
    hosts = (layer.get("CONFIG") or {}).get("hosts") or ["redis://localhost:6379"]
    bad = [number for number, host in enumerate(hosts) if not _waits(host)]
    if bad:
        yield Finding(
            code="socket_timeout",
            severity=CRITICAL,
            symptom=_("Idle sockets die after 5 s: redis-py 8 sets a socket timeout, which the core channel layer cannot bear."),
            evidence={"redis_py": redis.__version__, "layer": settings.CHANNEL_LAYER, "hosts": bad},
            remedy=_(
                "Write hosts as dictionaries with socket_timeout None, or use channels_redis.pubsub.RedisPubSubChannelLayer."
            ),
        )


def _waits(host: Any) -> bool:
    return isinstance(host, Mapping) and "socket_timeout" in host and host["socket_timeout"] is None
