"""How full the lanes are, which stage of pressure they are in, and whether somebody is on the way to drain them."""

from __future__ import annotations

from typing import NamedTuple

from visibility.soft.client import run
from visibility.soft.keys import shards


class LaneState(NamedTuple):
    """Figures of a lane over all shards; ages in seconds."""

    pending: int
    due: int
    claimed: int
    expired: int
    lag: float
    oldest: str
    woken: bool
    age: float
    stage: str = "normal"


def lane_state(lane: str) -> LaneState:
    """How full a lane is and how long its oldest entry has waited past its due time."""
    rows = [run("lane", shard, lane) for shard in shards()]
    worst = max(rows, key=lambda row: row[4])
    waiting, due, claimed, expired = (sum(row[n] for row in rows) for n in range(4))
    woken = any(row[6] for row in rows)
    oldest = max(row[7] for row in rows) / 1000
    lag, name = max(0.0, worst[4] / 1000), worst[5].decode()
    return LaneState(waiting, due, claimed, expired, lag, name, woken, oldest, rows[0][8].decode())


def swap_stage(lane: str, before: str, after: str) -> bool:
    """Change a lane's pressure stage where it stands as it was read; True for the one caller over the cluster who changed it."""
    return bool(run("stage", 0, lane, before, after))


def rouse(lane: str) -> list[int]:
    """Shards whose lane has work and nobody on the way: enqueue a drain for each."""
    return [shard for shard in shards() if run("rouse", shard, lane)]
