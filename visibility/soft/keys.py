"""Names of Redis keys. Every key of a shard carries the shard's hash tag, so that one script may touch them all."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from visibility.conf import settings

# How many resources one script takes at a time: enough that the call costs little, few enough that Redis never stands still.
CHUNK = 200


def shards() -> range:
    """All shard numbers."""
    return range(settings.SHARDS)


def shard_of(text: str) -> int:
    """The shard of a resource, user or session."""
    count = settings.SHARDS
    return 0 if count == 1 else crc32(text.encode()) % count


def base(shard: int) -> str:
    """What every key of this shard starts with: `{vis:0}`."""
    return f"{{{settings.PREFIX}:{shard}}}"


def key(shard: int, role: str, *parts: str) -> str:
    """`{vis:0}:role:part…`"""
    return ":".join((base(shard), role, *parts))


def by_shard(names: list[str]) -> dict[int, list[str]]:
    """Names grouped by their shard, order kept."""
    if settings.SHARDS == 1:
        return {0: names} if names else {}
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(shard_of(name), []).append(name)
    return groups


_kept: tuple[tuple[Any, int], int] = ((None, 0), 0)


def keep_ms() -> int:
    """Lifetime of bookkeeping keys in ms: longer than any lease and any snapshot that they speak of."""
    global _kept
    from visibility.datatypes import registry

    # Every script is told, so it is not reckoned anew each time.
    known, longest = _kept
    now = (settings.TTL, registry.revision)
    if known != now:
        longest = int(1000 * max([now[0] * 4, 3600, *(2 * t.ttl * (1 + t.jitter) for t in registry)]))
        _kept = now, longest
    return longest
