"""What an administrator may do to resources: rebuild, discard, release. Each is safe to repeat."""

from __future__ import annotations

from collections.abc import Iterable

from visibility import dirty
from visibility.conf import settings
from visibility.datatypes import DataType, registry
from visibility.read import refresh
from visibility.soft import claims, leases


def _by_type(resources: Iterable[str]) -> list[tuple[DataType, list[str]]]:
    """Keys by registered type; resources of a type that is not registered here are left out."""
    groups: dict[str, list[str]] = {}
    for resource in dict.fromkeys(resources):
        kind, _, key = resource.partition(":")
        groups.setdefault(kind, []).append(key)
    return [(found, keys) for name, keys in groups.items() if (found := registry.find(name)) and found.lane in settings.LANES]


def rebuild(resources: Iterable[str]) -> int:
    """Ask the lanes to build these, watched or not; answers how many were asked for.

    Raises:
        RedisAway: Redis does not answer.
    """
    done = 0
    for data_type, keys in _by_type(resources):
        refresh(data_type, [f"{data_type.name}:{key}" for key in keys])
        done += len(keys)
    return done


def discard(resources: Iterable[str]) -> int:
    """Forget snapshots, then clear the flags as they stood before: the next read builds anew; who watches gets a build now.

    The snapshot goes first, so that at no moment an old one stands without its mark.

    Raises:
        RedisAway: Redis does not answer; nothing was cleared.
    """
    done = 0
    for data_type, keys in _by_type(resources):
        names = [f"{data_type.name}:{key}" for key in keys]
        seen = dirty.marks(data_type, keys)
        claims.discard(data_type.lane, names)
        dirty.clear(data_type.name, seen)
        watched = leases.visible_among(data_type.name, keys)
        refresh(data_type, [f"{data_type.name}:{key}" for key in keys if key in watched])
        done += len(keys)
    return done


def release(resources: Iterable[str]) -> int:
    """Let quarantined resources be built again, and ask for it; answers how many were in quarantine.

    Raises:
        RedisAway: Redis does not answer; they are released, and built by promotion or at the next read.
    """
    done = 0
    for data_type, keys in _by_type(resources):
        done += dirty.release(data_type.name, keys)
        refresh(data_type, [f"{data_type.name}:{key}" for key in keys])
    return done
