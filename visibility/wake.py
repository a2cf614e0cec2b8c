"""Tell whoever carries the work that a lane needs a drain, without importing it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from django.utils.module_loading import import_string

from visibility.sql import hygiene

logger = logging.getLogger("visibility")
CARRIER = "visibility.recompute.enqueue_drain"
hygiene.watch()


def wake(lane: str, shards: Iterable[int], idle: Collection[int] = ()) -> None:
    """Enqueue one drain per shard. Never raises: a lost wake is made good by the maintenance loop.

    Args:
        idle: shards of which it is known that no drain waits.
    """
    for shard in shards:
        try:
            import_string(CARRIER)(lane, shard, look=shard not in idle)
        except Exception:
            logger.exception("lane %s shard %s could not be woken; maintenance will", lane, shard)
