"""What the maintenance loop keeps in Redis: that somebody maintains, whose turn a duty is, what fails, how far a walk is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from visibility.soft.client import client, guard, run
from visibility.soft.keys import by_shard, key, shards

CHUNK = 500
CURSOR_SECONDS = 600
ERROR_CHARS = 500


def beat() -> None:
    """Note that a maintenance loop is alive."""
    run("beat", 0)


def silence() -> float | None:
    """Seconds since any maintenance loop was alive; None if none was since Redis was last empty."""
    ago = run("beaten", 0)
    return None if ago < 0 else float(ago) / 1000


def take_turn(duty: str, seconds: float) -> bool:
    """True for one caller over the cluster in this time: spares the others the work, guards nothing."""
    with guard():
        return bool(client().set(key(0, "turn", duty), "1", nx=True, px=max(1, int(seconds * 1000))))


class Trouble(NamedTuple):
    """A duty that fails: since when and when last, in seconds since 1970, and the error."""

    since: float
    last: float
    error: str


def note_trouble(duty: str, error: str, seconds: float) -> None:
    """Note that a duty fails, for `seconds` from now; since when, an earlier note tells."""
    now, before = time.time(), troubles([duty]).get(duty)
    told = json.dumps([before.since if before else now, now, error[:ERROR_CHARS]])
    with guard():
        client().set(key(0, "trouble", duty), told, px=int(seconds * 1000))


def end_trouble(duty: str) -> None:
    """Note that a duty is done again."""
    with guard():
        client().delete(key(0, "trouble", duty))


def troubles(duties: Sequence[str]) -> dict[str, Trouble]:
    """Those of these duties that fail."""
    with guard():
        redis: Any = client()
        found = redis.mget([key(0, "trouble", duty) for duty in duties])
    return {duty: Trouble(*json.loads(raw)) for duty, raw in zip(duties, found, strict=True) if raw}


def at_rest(lane: str, resources: Sequence[str]) -> list[str]:
    """Those of these that are neither pending nor being built nor waiting for another try."""
    return _at_rest(lane, resources, 0)


def unvouched(lane: str, resources: Sequence[str]) -> list[str]:
    """Those at rest for whose snapshot no lease vouches: a read of one looks at its marks."""
    return _at_rest(lane, resources, 1)


def _at_rest(lane: str, resources: Sequence[str], unvouched: int) -> list[str]:
    out: list[str] = []
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            out += [name.decode() for name in run("atrest", shard, lane, unvouched, *names[start : start + CHUNK])]
    return out


def walk_visible(data_type: str, count: int) -> list[str]:
    """About `count` visible keys, continued where the last caller over the cluster stopped, round and round."""
    out: list[str] = []
    with guard():
        redis: Any = client()
        for shard in shards():
            mark = key(shard, "walk", data_type)
            cursor, rows = redis.zscan(key(shard, "visible", data_type), cursor=int(redis.get(mark) or 0), count=count)
            redis.set(mark, cursor, ex=CURSOR_SECONDS)
            out += [name.decode() for name, _ends in rows]
    return out
