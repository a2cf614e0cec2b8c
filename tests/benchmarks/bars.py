"""Which bars there are, where each is measured, and by what. Imports nothing of Django."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.benchmarks.harness import Part

BOTH = ("sqlite", "postgres")


class Entry(NamedTuple):
    """`where` is module:function, or several of them; a function takes a `Stage` and yields parts.

    `limits`: those that parts which count may have, from section 6 of the design; none, where they depend on the run.
    `databases`: on which it makes a difference. `visibility` is merged into the settings. `durable`: PostgreSQL as it comes, that
    waits for the disk.
    """

    title: str
    where: str
    limits: tuple[float, ...]
    databases: tuple[str, ...] = BOTH
    visibility: Mapping[str, Any] = {}
    durable: bool = False

    def check(self, part: Part) -> None:
        """Raises ValueError if this part is held to something else than the bar."""
        if part.counts and self.limits and part.limit not in self.limits:
            raise ValueError(f"{part.what} is held to {part.limit}; its bar is {' or '.join(map(str, self.limits))}")


BARS = {
    "B1": Entry(
        "one save, 1k to 1M followers, 100 watching: the gate's time at 1M, and rows written for the cold",
        "b1_gate:scale",
        (1.5, 1.0),
    ),
    "B2": Entry("that gate against one indexed select, one Redis range and one RQ enqueue", "b1_gate:floor", (3.0,)),
    "B3": Entry(
        "keys recomputed per second by one worker against one RQ job per key",
        "b3_drain:measure b3_marks:measure",
        (50.0, 150.0),
        visibility={
            "LANES": {
                "hot": {"queue": "visibility-hot", "bound": 100_000, "batch": 500, "idle": 0.0},
                "cold": {"queue": "visibility-cold"},
            }
        },
    ),
    "B4": Entry("commit to frame at a socket client, against a plain RQ job and a bare group_send", "b4_frame:measure", (1.5,)),
    "B5": Entry(
        "renewing 10,000 sessions × 3 watches, against raw ZADDs and a row per heartbeat",
        "b5_leases:measure",
        (1.5, 100.0),
        durable=True,
    ),
    "B6": Entry("memory per idle socket against a bare AsyncJsonWebsocketConsumer", "b6_memory:measure", (1.2,), ("sqlite",)),
    "B7": Entry(
        "read() of a fresh resource against GET and decode; 200 readers on an expired key", "b7_read:measure", (1.5, 1.0)
    ),
    "B8": Entry("10,000 changes a second to one watched resource for 10 s", "b8_storm:measure", ()),
    "B9": Entry(
        "one update to 1,000 sockets of one process against a bare group_send of the same payload",
        "b9_fanout:measure",
        (1.0,),
        ("sqlite",),
        visibility={
            "LANES": {"hot": {"queue": "visibility-hot", "idle": 0.0}, "cold": {"queue": "visibility-cold"}},
        },
    ),
    "B10": Entry(
        "100 saves in one transaction with nobody watching, against plain saves",
        "b10_save:measure",
        (2.2,),
        ("postgres", "sqlite"),
    ),
    "B11": Entry("a trace replayed with watchers, against fan-out to everybody", "b11_replay:measure", (0.0, 1.0), ("sqlite",)),
}
