"""Promotion: what was only marked while it was visible goes back to its lane, as far as there is room.

Marks of visible resources stand after a flood, a full lane, a limit, an outage of Redis or a death at the wrong moment.
"""

from __future__ import annotations

import time
from datetime import datetime

from visibility import dirty, pressure
from visibility.conf import Lane, settings
from visibility.datatypes import DataType, registry
from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.points import reach
from visibility.soft import leases, looks, pending, snapshots, upkeep
from visibility.soft.pending import Item
from visibility.wake import wake

WHOLE = 2_000
PAGE = 500
PAGES = 4
PROMOTE_SECONDS = 0.5
PROMOTE_PAUSE = 0.05
AUDIT_PAGE = 1_000
# Where paging through the dirty flags of a type goes on: (time, key) of the last row seen.
_cursors: dict[str, tuple[datetime, str] | None] = {}


def _lanes() -> list[tuple[DataType, Lane]]:
    """Registered types with their lanes; a type whose lane is missing is the system check's matter."""
    return [(t, settings.lane(t.lane)) for t in registry if t.lane in settings.LANES]


def pend_behind(data_type: DataType, lane: Lane, since: dict[str, int]) -> int:
    """Put resources into their lane, `{key: oldest change in ms}`; answers how many it took."""
    window, hidden = pressure.window(data_type), data_type.background or 0.0
    items = [Item(f"{data_type.name}:{key}", ms, window=window, hidden_window=hidden) for key, ms in since.items()]
    done = pending.pend(lane, items)
    wake(lane.name, done.wake, done.idle)
    return done.accepted


def _rooms() -> dict[str, int]:
    """How many marked resources each lane may take now."""
    return {name: pressure.room(settings.lane(name)) for name in settings.LANES}


def promote() -> int:
    """Visible resources whose flag stands go to their lane, oldest first over all its types, as many as do not press it.

    While more are waiting than there was room for, it goes on for a part of its period.
    """
    ends, total, more = time.monotonic() + PROMOTE_SECONDS, 0, False
    while True:
        taken, more = _promote(more)
        total += taken
        if not more or time.monotonic() >= ends:
            return total
        time.sleep(PROMOTE_PAUSE)


def _promote(more: bool) -> tuple[int, bool]:
    """One round; also whether more wait than there was room for; where no lane had room, as it was before."""
    found: dict[str, list[tuple[datetime, str, str]]] = {}
    rooms, types = _rooms(), {data_type.name: data_type for data_type, _lane in _lanes()}
    for data_type, lane in _lanes():
        if rooms[lane.name]:
            rows = ((at, data_type.name, key) for key, at in _dirty_visible(data_type, lane, rooms[lane.name]).items())
            found.setdefault(lane.name, []).extend(rows)
    reach("maintain.promote")
    total = 0
    if found:
        more = False
    for name, waiting in found.items():
        chosen = sorted(waiting)[: rooms[name]]
        more = more or (len(waiting) >= rooms[name] and pressure.stage(name) is pressure.Stage.NORMAL)
        for kind in {kind for _at, kind, _key in chosen}:
            since = {key: int(at.timestamp() * 1000) for at, own, key in chosen if own == kind}
            taken = pend_behind(types[kind], settings.lane(name), since)
            metrics.count("promoted", taken, data_type=kind)
            total += taken
    return total, more


def _dirty_visible(data_type: DataType, lane: Lane, room: int) -> dict[str, datetime]:
    """Dirty, visible and at rest: through the visible ones where they are few, else through the flags, some pages a call."""
    name = data_type.name
    count, keys = leases.visible_up_to(name, WHOLE)
    if not count:
        return {}
    if keys is not None:
        return _resting(name, lane, dirty.dirty_among(name, keys))
    out: dict[str, datetime] = {}
    for _page in range(PAGES):
        rows = dirty.oldest(name, PAGE, after=_cursors.get(name))
        seen = leases.visible_among(name, [key for key, _at in rows])
        out |= _resting(name, lane, {key: at for key, at in rows if key in seen})
        # What there was no room for is the oldest the next time.
        _cursors[name] = (rows[-1][1], rows[-1][0]) if len(rows) == PAGE and len(out) < room else None
        if _cursors[name] is None:
            break
    return out


def _resting(name: str, lane: Lane, found: dict[str, datetime]) -> dict[str, datetime]:
    rest = {resource[len(name) + 1 :] for resource in upkeep.at_rest(lane.name, [f"{name}:{key}" for key in found])}
    return {key: at for key, at in found.items() if key in rest}


def audit() -> int:
    """Walk on through the visible resources: where nothing is pending and nothing is trusted, compare snapshot and marks.

    A scope's mark names no resource, so that promotion does not see it: this finds what a flood or a lost process left behind.
    The first snapshot of a resource is its watcher's or reader's matter.

    Raises:
        ExceptionGroup: the walk of some types failed; the others were walked.
    """
    rooms, total = _rooms(), 0
    failed: dict[str, Exception] = {}
    for data_type, lane in _lanes():
        if not rooms[lane.name]:
            continue
        try:
            taken = _walk(data_type, lane, rooms[lane.name])
        except RedisAway:
            raise
        except Exception as error:
            failed[data_type.name] = error
            continue
        rooms[lane.name], total = max(0, rooms[lane.name] - taken), total + taken
    if failed:
        told = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed.items())
        raise ExceptionGroup(told, list(failed.values()))
    return total


def _walk(data_type: DataType, lane: Lane, room: int) -> int:
    keys = upkeep.walk_visible(data_type.name, AUDIT_PAGE)
    names = upkeep.unvouched(lane.name, [f"{data_type.name}:{key}" for key in keys])[:room]
    return sum(_audit(data_type, lane, names[start : start + dirty.CHUNK]) for start in range(0, len(names), dirty.CHUNK))


def _audit(data_type: DataType, lane: Lane, names: list[str]) -> int:
    found = looks.look(lane.name, names)
    cut = len(data_type.name) + 1
    marks = dirty.marks(data_type, [name[cut:] for name in found])
    behind: dict[str, int] = {}
    current: dict[str, looks.Look] = {}
    for name, seen in found.items():
        stored, mark = snapshots.unpack(seen.raw, data_type.schema), marks[name[cut:]]
        if stored is None or seen.visible_ms <= 0 or seen.queued:
            continue
        if mark.same(stored.stamp):
            current[name] = seen
        elif not mark.quarantined:
            behind[name[cut:]] = seen.now_ms
    looks.trust(lane.name, current)
    if not behind:
        return 0
    metrics.count("promoted", len(behind), data_type=data_type.name)
    return pend_behind(data_type, lane, behind)
