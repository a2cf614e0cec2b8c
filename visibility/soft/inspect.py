"""Bounded reads of the soft state for people: the admin, the doctor, `explain`. No KEYS, no SCAN; every answer has a limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from visibility.conf import settings
from visibility.soft import pages
from visibility.soft.client import client, guard, run
from visibility.soft.keys import key, shard_of, shards


class Written(NamedTuple):
    """How often a minute's counts were written, and how often they had been when last carried over."""

    writes: int
    rolled: int


def redis_time() -> float:
    """The Redis server's clock, in seconds since 1970."""
    seconds, micros = _call("time")
    return float(seconds + micros / 1_000_000)


def _call(command: str, *args: Any, **kwargs: Any) -> Any:
    with guard():
        return getattr(client(), command)(*args, **kwargs)


def minutes_written(minutes: Iterable[int]) -> dict[int, Written]:
    """For each minute (since 1970), whether anything was counted since it was carried over."""
    wanted = list(minutes)
    flat = run("minutes", 0, *wanted) if wanted else []
    return {minute: Written(int(flat[2 * i]), int(flat[2 * i + 1])) for i, minute in enumerate(wanted)}


def note_rolled(minute: int, writes: int, ttl: int) -> None:
    """Remember that a minute was carried over as it stood after so many writes."""
    _call("set", key(0, "rolled", str(minute)), writes, ex=ttl)


def minute_fields(minute: int) -> dict[str, int]:
    """The raw fields of one minute."""
    return _fields(_call("hgetall", key(0, "m", str(minute))))


def total_fields() -> dict[str, int]:
    """The raw fields of the counts since Redis was last empty."""
    return _fields(_call("hgetall", key(0, "totals")))


def _fields(raw: dict[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(n) for name, n in raw.items()}


def swap_slo_state(data_type: str, state: str) -> str:
    """Note a promise's state and answer the one noted before ("" for none), in one step."""
    before = _call("set", key(0, "slo", data_type), state, ex=86_400, get=True)
    return before.decode() if before else ""


def write_trail(notes: Iterable[tuple[str, str]], length: int) -> None:
    """Put `(resource, entry)` in front of each resource's trail, which keeps the newest `length`."""
    groups: dict[int, list[str]] = {}
    for resource, entry in notes:
        groups.setdefault(shard_of(resource), []).extend((resource, entry))
    for shard, args in groups.items():
        for start in range(0, len(args), 400):
            run("trail", shard, length, *args[start : start + 400])


def read_trail(resource: str, length: int) -> list[str]:
    """The newest entries of a resource's trail, newest first."""
    return [entry.decode() for entry in _call("lrange", key(shard_of(resource), "trail", resource), 0, length - 1)]


def write_probe() -> None:
    """Write to every shard a key that ends by itself.

    Raises:
        RedisAway: no answer, or no writes taken.
    """
    for shard in shards():
        _call("set", key(shard, "probe"), "1", ex=10)


def server_infos(section: str) -> list[dict[str, Any]]:
    """`INFO section` of the server, or of every node of a cluster."""
    found = _call("info", section)
    nodes = list(found.values())
    return nodes if nodes and all(isinstance(node, dict) for node in nodes) else [found]


def sample_immortal(n: int) -> set[str]:
    """Keys of this app without a lifetime among `n` keys taken at random from the whole database."""
    mine = f"{{{settings.PREFIX}:".encode()
    with guard():
        redis = client()
        draws = range(min(n, 4 * redis.dbsize()))
        if hasattr(redis, "get_node_from_key"):
            found = [redis.randomkey() for _ in draws]
        else:
            pipe = redis.pipeline(transaction=False)
            for _ in draws:
                pipe.randomkey()
            found = pipe.execute()
        names = sorted({name for name in found if name and name.startswith(mine)})
        pipe = redis.pipeline(transaction=False)
        for name in names:
            pipe.ttl(name)
        ends = pipe.execute() if names else []
        return {name.decode(errors="replace") for name, ttl in zip(names, ends, strict=True) if ttl == -1}


def ended_visible(data_type: str, seconds: float) -> int:
    """Keys of a type whose visibility ended longer ago than so, and that are still in the index."""
    return next(pages.ended(int(seconds * 1000), f"visible:{data_type}"))


def ended_claims(lane: str, seconds: float) -> int:
    """Claims of a lane that ended longer ago than so, and that nobody took over."""
    return next(pages.ended(int(seconds * 1000), f"claimed:{lane}"))


def safe_url(url: str) -> str:
    """A Redis URL without its password."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url
