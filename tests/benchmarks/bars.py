"""Which bars there are, where each is measured, and by what. Imports nothing of Django."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

BOTH = ("sqlite", "postgres")


class Entry(NamedTuple):
    """`where` is module:function, or several of them; a function takes a `Stage` and yields parts.

    `databases`: on which it makes a difference. `visibility` is merged into the settings. `durable`: PostgreSQL as it comes, that
    waits for the disk.
    """

    title: str
    where: str
    databases: tuple[str, ...] = BOTH
    visibility: Mapping[str, Any] = {}
    durable: bool = False


BARS = {
    "B1": Entry(
        "one save, 1k to 1M followers, 100 watching: the gate's time at 1M, and rows written for the cold", "b1_gate:scale"
    ),
    "B2": Entry("that gate against one indexed select, one Redis range and one RQ enqueue", "b1_gate:floor"),
    "B3": Entry(
        "keys recomputed per second by one worker against one RQ job per key",
        "b3_drain:measure b3_marks:measure",
        visibility={
            "LANES": {
                "hot": {"queue": "visibility-hot", "bound": 100_000, "batch": 200, "idle": 0.0},
                "cold": {"queue": "visibility-cold"},
            }
        },
    ),
    "B4": Entry("commit to frame at a socket client, against a plain RQ job and a bare group_send", "b4_frame:measure"),
    "B5": Entry(
        "renewing 10,000 sessions × 3 watches, against raw ZADDs and a row per heartbeat", "b5_leases:measure", durable=True
    ),
    "B6": Entry("memory per idle socket against a bare AsyncJsonWebsocketConsumer", "b6_memory:measure", ("sqlite",)),
    "B7": Entry("read() of a fresh resource against GET and decode; 200 readers on an expired key", "b7_read:measure"),
    "B8": Entry("10,000 changes a second to one watched resource for 10 s", "b8_storm:measure"),
    "B9": Entry(
        "one update to 1,000 sockets of one process against a bare group_send of the same payload",
        "b9_fanout:measure",
        ("sqlite",),
        visibility={
            "LANES": {"hot": {"queue": "visibility-hot", "idle": 0.0}, "cold": {"queue": "visibility-cold"}},
        },
    ),
    "B10": Entry(
        "100 saves in one transaction with nobody watching, against plain saves", "b10_save:measure", ("postgres", "sqlite")
    ),
    "B11": Entry("a trace replayed with watchers, against fan-out to everybody", "b11_replay:measure", ("sqlite",)),
}
