"""Pressure: how full each lane is, and what is left out while it is.

| stage | begins | ends | meanwhile |
|---|---|---|---|
| normal | | | |
| pressed | half full, or late | under 30 % and half as late | windows × 4, no precompute, promotion by the batch |
| flooded | 90 % full, or five times as late | under 60 % and half as late | windows × 8, marks only, except must-deliver |

Full means pending and claimed against the lane's bound. Late means that the oldest entry is past its due time by the shortest
freshness promise of the lane; it counts only where more than two batches wait (a lane with little in it lacks a worker).
Any process that asks judges, at most once a second, and the stage lies in Redis: a change is announced by one of them.
"""

from __future__ import annotations

import enum
import logging
import time

from visibility.conf import Lane, settings
from visibility.datatypes import DataType, registry
from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.signals import pressure_changed
from visibility.soft import levels
from visibility.soft.levels import LaneState

logger = logging.getLogger("visibility")
CACHE_SECONDS = 1.0


class Stage(enum.StrEnum):
    """How hard a lane is pressed."""

    NORMAL = "normal"
    PRESSED = "pressed"
    FLOODED = "flooded"


FACTORS = {Stage.NORMAL: 1.0, Stage.PRESSED: 4.0, Stage.FLOODED: 8.0}
ORDER = list(Stage)
# A stage begins at (fullness, lateness) and ends below its second pair; lateness in promises of the lane.
BEGINS = {Stage.PRESSED: (0.5, 1.0), Stage.FLOODED: (0.9, 5.0)}
ENDS = {Stage.PRESSED: (0.3, 0.5), Stage.FLOODED: (0.6, 2.5)}
_judged: dict[str, tuple[float, Stage]] = {}


def judge(before: Stage, fullness: float, lateness: float) -> Stage:
    """The stage that follows `before`. Pure. `fullness`: pending by bound; `lateness`: lag by promise, 0 if it does not count."""
    for stage in reversed(ORDER[1:]):
        full, late = BEGINS[stage] if ORDER.index(before) < ORDER.index(stage) else ENDS[stage]
        if fullness >= full or lateness >= late:
            return stage
    return Stage.NORMAL


def promise(lane: str) -> float:
    """The shortest freshness that a type of this lane promises, in seconds."""
    return min((t.freshness.seconds for t in registry if t.lane == lane), default=2.0)


def _weigh(lane: Lane, state: LaneState) -> tuple[float, float]:
    crowded = state.due > 2 * lane.batch
    return (state.pending + state.claimed) / lane.bound, state.lag / promise(lane.name) if crowded else 0.0


def evaluate(lane: Lane) -> Stage:
    """Judge a lane now; whoever changes its stage sends `pressure_changed`.

    Raises:
        RedisAway: Redis does not answer.
    """
    state = levels.lane_state(lane.name)
    before = Stage(state.stage) if state.stage in FACTORS else Stage.NORMAL
    after = judge(before, *_weigh(lane, state))
    if after != before and levels.swap_stage(lane.name, before, after):
        metrics.count("pressure_changes", label=after)
        logger.info("lane %s: %s → %s with %d pending, %.1f s late", lane.name, before, after, state.pending, state.lag)
        pressure_changed.send_robust(lane.name, stage=after, previous=before)
    _judged[lane.name] = (time.monotonic() + CACHE_SECONDS, after)
    return after


def stage(lane: str) -> Stage:
    """The stage of a lane, at most a second old; while Redis is away, the last one known.

    Raises:
        LookupError: no such lane.
    """
    until, known = _judged.get(lane, (0.0, Stage.NORMAL))
    if time.monotonic() < until:
        return known
    try:
        return evaluate(settings.lane(lane))
    except RedisAway:
        _judged[lane] = (time.monotonic() + CACHE_SECONDS, known)
        return known


def forget() -> None:
    """Forget what this process has judged; for tests."""
    _judged.clear()


def window_factor(lane: str) -> float:
    """By how much coalescing windows of a lane are widened now."""
    return FACTORS[stage(lane)]


def window(data_type: DataType) -> float:
    """Seconds in which at most one build of a resource of this type starts, as things are.

    Widened windows stay within half of the freshness promise, unless the type's own is longer.
    """
    factor = window_factor(data_type.lane)
    if factor == 1.0:
        return data_type.coalesce
    return max(data_type.coalesce, min(data_type.freshness.seconds / 2, max(data_type.coalesce, 0.1) * factor))


def marks_only(data_type: DataType) -> bool:
    """Whether the gate only marks, visible resources too: the lane is flooded and the type is nice to have."""
    return not data_type.must_deliver and stage(data_type.lane) is Stage.FLOODED


def room(lane: Lane) -> int:
    """How many marked resources may be promoted into this lane now without pressing it.

    Raises:
        RedisAway: Redis does not answer.
    """
    now = evaluate(lane)
    if now is Stage.FLOODED:
        return 0
    state = levels.lane_state(lane.name)
    free = int(lane.bound * BEGINS[Stage.PRESSED][0] * 0.9) - state.pending - state.claimed
    return max(free, 0 if now is Stage.NORMAL else min(lane.batch, lane.bound - state.pending - state.claimed))
