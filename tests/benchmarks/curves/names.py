"""Which curves there are, where each is measured, and on what. Imports nothing of Django."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# Lanes that hold a whole population, and leases that last as long as it takes to make one.
WIDE: Mapping[str, Any] = {
    "TTL": 7_200,
    "HEARTBEAT": 1_800,
    "LANES": {
        "hot": {"queue": "visibility-hot", "bound": 4_000_000, "batch": 100},
        "cold": {"queue": "visibility-cold", "bound": 4_000_000, "batch": 100},
    },
}
# The relation of the defaults, at half of their length.
BRISK: Mapping[str, Any] = {"TTL": 30, "HEARTBEAT": 10, "RECHECK": 60}


class Entry(NamedTuple):
    """`where` is module:function; the function takes a `Stage` and yields results. `visibility` is merged into the settings.

    `databases`: on which it makes a difference; the first alone is used otherwise.
    """

    title: str
    where: str
    databases: tuple[str, ...] = ("sqlite",)
    visibility: Mapping[str, Any] = WIDE


CURVES = {
    "audience": Entry("the gate's time, audience 1k to 1M, 100 watching", "gates:audience", ("postgres", "sqlite")),
    "watchers": Entry("the gate's time, 1 to 10k of the audience watching", "gates:watchers", ("postgres", "sqlite")),
    "resources": Entry("one pend, claim, read and renewal beside 1k to 1M resources, and their memory", "resources:population"),
    "sessions": Entry("renewing 10k to 100k sessions × 3 watches, per session", "sessions:renewal"),
    "sockets": Entry("100 to 10k sockets in one process: memory, heartbeats, fan-out", "sockets:population", visibility=BRISK),
    "shards": Entry("work per resource on a cluster of three masters, 1 to 16 shards", "shards:spread"),
    "events": Entry("one event by who pays, 1 to 1,000 in a transaction", "events:costs", ("postgres",), {}),
    "builds": Entry("one worker's drain, per resource, by size of the batch", "builds:drain", ("postgres",)),
    "memory": Entry(
        "bytes per session, watch, resource and event: Redis, process, database", "memory:table", ("postgres", "sqlite"), {}
    ),
    "import": Entry("what the installed app adds to django.setup()", "startup:imports", visibility={}),
    "request": Entry("what the installed app adds to a request that does not use it", "startup:requests", visibility={}),
}
