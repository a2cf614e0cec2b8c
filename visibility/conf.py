"""Settings: one dict, `VISIBILITY`, read live, so that `override_settings` works everywhere.

`settings.NAME` answers the project's value or the default below. `LANES`, `RATE_LIMITS` and `LIMITS`
are merged one level deep. Unknown keys are reported by `visibility.checks`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings as django_settings

DEFAULTS: dict[str, Any] = {
    # Where the soft state lives: redis://, rediss://, unix://, sentinel://a:1,b:2/service/db, cluster://a:1,b:2
    "REDIS_URL": "redis://127.0.0.1:6379/0",
    "PREFIX": "vis",
    "SHARDS": 1,
    # Leases, in seconds.
    "HEARTBEAT": 20,
    "TTL": 60,
    "LINGER": 5,
    "RECHECK": 60,
    # Lanes: RQ queue, bound on pending resources, resources per batch, and the optional tuning of `Lane`.
    "LANES": {
        "hot": {"queue": "visibility-hot", "bound": 10_000, "batch": 100},
        "cold": {"queue": "visibility-cold", "bound": 1_000, "batch": 50},
    },
    # {"tenant": "100/s", "resource": "10/s"}; None means no limit.
    "RATE_LIMITS": {"tenant": None, "resource": None},
    "GATE": "inline",
    "SHADOW": False,
    "EVENT_TTL": 86_400,
    # An unprocessed outbox row older than this many seconds is taken over by the maintenance loop.
    "OUTBOX_GRACE": 5,
    # A build's claim: seconds until another may take it over, unless it is renewed.
    "BUILD_LEASE": 15,
    "BUILD_TIMEOUT": 120,
    "PRECOMPUTE": False,
    "NODE": None,
    "CHANNEL_LAYER": "default",
    "LIMITS": {
        "watches_per_socket": 200,
        "sockets_per_user": 50,
        "frame_bytes": 16_384,
        "frames_per_second": 20,
        "frames_burst": 100,
        "queue": 256,
        "payload_bytes": 8_192,
        "snapshot_bytes": 1_048_576,
    },
}

NESTED = ("LANES", "RATE_LIMITS", "LIMITS")


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One RQ queue with a bound. `budget` and `idle` are seconds; `share` caps one tenant's part of the bound."""

    name: str
    queue: str
    bound: int = 1_000
    batch: int = 50
    budget: float = 10.0
    idle: float = 0.25
    gather: float = 0.0
    share: float = 1.0
    workers: int = 1


class Settings:
    """Attribute access to `VISIBILITY` with defaults; nothing is cached."""

    def __getattr__(self, name: str) -> Any:
        if name not in DEFAULTS:
            raise AttributeError(f"VISIBILITY has no setting {name!r}")
        own: Mapping[str, Any] = getattr(django_settings, "VISIBILITY", None) or {}
        value = own.get(name, DEFAULTS[name])
        if name in NESTED and isinstance(value, Mapping):
            # LANES replaces: a project that names its lanes does not want the default ones besides.
            return dict(value) if name == "LANES" else {**DEFAULTS[name], **value}
        return value

    def lane(self, name: str) -> Lane:
        """The lane of this name.

        Raises:
            LookupError: no such lane in `VISIBILITY["LANES"]`.
        """
        try:
            options = self.LANES[name]
        except KeyError:
            raise LookupError(f"VISIBILITY['LANES'] has no lane {name!r}; it has {sorted(self.LANES)}") from None
        return Lane(name=name, **options)


settings = Settings()
