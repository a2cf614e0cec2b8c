"""Every metric there is, with its labels. `docs/metrics.md` has the same table; a test holds code, catalogue and page together.

Labels are few and their values too: `data_type`, `lane`, and `result` (a word from a small set). Never a key, a user or an id.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """`kind` is counter, seconds (a histogram of durations) or amounts (a histogram of numbers)."""

    kind: str
    labels: tuple[str, ...]
    help: str


COUNTER, SECONDS, AMOUNTS = "counter", "seconds", "amounts"
_TYPE, _TYPE_RESULT, _LANE = ("data_type",), ("data_type", "result"), ("lane",)

CATALOGUE: dict[str, Metric] = {
    "events": Metric(COUNTER, _TYPE, "Changes that reached the gate"),
    "gate_hot": Metric(COUNTER, _TYPE_RESULT, "Resources that a change made stale while somebody watched: recomputed"),
    "gate_cold": Metric(COUNTER, _TYPE_RESULT, "Marks written for what nobody watches, one a resource or scope"),
    "gate_dropped": Metric(COUNTER, _TYPE, "Changes of hidden resources dropped, as their type says"),
    "gate_deduped": Metric(COUNTER, _TYPE, "Changes that joined a recompute already pending: enqueues skipped"),
    "gate_shed": Metric(COUNTER, _TYPE, "Visible resources that were only marked because of a limit"),
    "gate_seconds": Metric(SECONDS, (), "Time of a gate pass, all its events together"),
    "shed": Metric(COUNTER, _TYPE_RESULT, "What was shed, by reason: bound, share, tenant, resource, redis, flooded, lane"),
    "promoted": Metric(COUNTER, _TYPE, "Marked resources put into their lane because somebody watches them"),
    "pressure_changes": Metric(COUNTER, ("result",), "Changes of a lane's pressure stage, by the new stage"),
    "builds": Metric(COUNTER, _TYPE, "Snapshots built and stored"),
    "build_failures": Metric(COUNTER, _TYPE, "Builds that raised"),
    "build_seconds": Metric(SECONDS, _TYPE, "Time of a build, a batch counted once"),
    "saved_builds": Metric(COUNTER, _TYPE, "Builds not made because nobody watched any more when a worker came to them"),
    "store_refused": Metric(COUNTER, _TYPE, "Versioned writes refused: a newer one was there, or the claim had ended"),
    "claims_lost": Metric(COUNTER, _LANE, "Claims that ended under a running build"),
    "lock_waits": Metric(COUNTER, _TYPE, "Readers that waited for somebody else's build"),
    "lock_seconds": Metric(SECONDS, _LANE, "Time for which claims were held, a batch counted once"),
    "reads": Metric(COUNTER, _TYPE_RESULT, "Reads, by what they were given: fresh, stale, rebuilt"),
    "precomputed": Metric(COUNTER, (), "Hidden resources built while all lanes were idle"),
    "push_failures": Metric(COUNTER, (), "Batches of updates that the channel layer did not take"),
    "pushes": Metric(COUNTER, _TYPE, "Updates sent to sockets"),
    "freshness_built": Metric(SECONDS, _TYPE, "From the oldest change not shown to its build, watched resources"),
    "freshness_sent": Metric(SECONDS, _TYPE, "From the oldest change not shown to the update's departure to watchers"),
    "freshness_acked": Metric(SECONDS, _TYPE, "From the oldest change not shown to the browser's acknowledgement"),
    "freshness_resolved": Metric(SECONDS, _TYPE, "Age of a mark when it was resolved, resources that nobody watched"),
    "watchers": Metric(AMOUNTS, _TYPE, "Watchers of a visible resource, sampled once a minute"),
    "lane_lag": Metric(SECONDS, _LANE, "How late the oldest entry of a lane is, sampled once a minute"),
    "metrics_dropped": Metric(COUNTER, (), "Counts dropped because a process's buffer was full"),
    "notes_dropped": Metric(COUNTER, (), "Happenings not noted for inspector pages"),
}
