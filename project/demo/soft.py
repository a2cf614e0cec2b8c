"""The demo's own soft state in Redis: who is typing, and the meter of work done against fan-out to everybody.

Both may vanish at any moment. Nothing here raises when Redis is away: a message is sent all the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import redis
from django.conf import settings

TYPING_SECONDS = 5
METER = "demo:meter"
METER_TTL = 30 * 86_400


@lru_cache(maxsize=4)
def _client(url: str) -> Any:
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=2.0, socket_connect_timeout=0.5)


def client() -> Any:
    """This process's connection pool."""
    return _client(settings.REDIS_URL)


def count(fields: Mapping[str, int]) -> None:
    """Add to the meter. Fields are `done|<data type>` (resources built) and `everybody|<data type>` (resources affected)."""
    with contextlib.suppress(redis.RedisError), client().pipeline(transaction=False) as pipe:
        for field, n in fields.items():
            pipe.hincrby(METER, field, n)
        pipe.expire(METER, METER_TTL)
        pipe.execute()


def meter() -> dict[str, dict[str, int]]:
    """`{"done": {data type: n}, "everybody": {data type: n}}` since Redis was last empty."""
    out: dict[str, dict[str, int]] = {"done": {}, "everybody": {}}
    with contextlib.suppress(redis.RedisError):
        for field, n in client().hgetall(METER).items():
            side, _, data_type = field.partition("|")
            out.setdefault(side, {})[data_type] = int(n)
    return out


def type_in(room: int, user: int, *, still: bool = True) -> None:
    """Somebody is typing in a room, for the next few seconds; or has stopped."""
    name = f"demo:typing:{room}"
    with contextlib.suppress(redis.RedisError), client().pipeline() as pipe:
        if still:
            pipe.zadd(name, {str(user): time.time() + TYPING_SECONDS})
        else:
            pipe.zrem(name, str(user))
        pipe.expire(name, 10 * TYPING_SECONDS)
        pipe.execute()


def typing_in(rooms: Iterable[int]) -> dict[int, dict[int, float]]:
    """Who types in each room: {room: {user: seconds left}}."""
    rooms = list(rooms)
    now = time.time()
    try:
        with client().pipeline(transaction=False) as pipe:
            for room in rooms:
                pipe.zrangebyscore(f"demo:typing:{room}", now, "+inf", withscores=True)
            found = pipe.execute()
    except redis.RedisError:
        return {room: {} for room in rooms}
    return {room: {int(user): until - now for user, until in pairs} for room, pairs in zip(rooms, found, strict=True)}
