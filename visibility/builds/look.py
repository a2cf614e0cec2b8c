"""What a new lease finds: the snapshot that stands, trusted or sent to be rebuilt.

The lease is written before the marks are read (rule 1); trust follows from the marks (rule 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from visibility import dirty
from visibility.builds.rounds import in_transaction, refresh, verdict
from visibility.conf import settings
from visibility.datatypes import DataType, registry
from visibility.push import in_thread
from visibility.soft import clock, looks, snapshots
from visibility.soft.looks import Look
from visibility.soft.snapshots import Stored


class Shown(NamedTuple):
    """The snapshot that stands, if any; `state` fresh or stale; `missed`: changes that it does not show, as far as counted."""

    stored: Stored | None
    state: str
    missed: int

    @property
    def version(self) -> int:
        return self.stored.version if self.stored else 0


def _by_type(resources: Iterable[str]) -> dict[DataType, list[str]]:
    out: dict[DataType, list[str]] = {}
    for name in resources:
        data_type = registry.find(name.partition(":")[0])
        if data_type is not None:
            out.setdefault(data_type, []).append(name)
    return out


def _by_lane(resources: Iterable[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for data_type, names in _by_type(resources).items():
        out.setdefault(data_type.lane, []).extend(names)
    return out


def coming(seen: Look) -> bool:
    """Whether a build is on its way that reads its marks after this visibility began; it will be pushed."""
    if seen.claim_ms is None:
        return seen.due_ms is not None
    # Owner and epoch are ticks of one clock. A claim that is older than the lease may have read its marks before a change that
    # was marked because nobody watched yet.
    return int(seen.epoch or 0) < int(seen.owner or 0)


def _vouched(found: Mapping[str, Look]) -> tuple[dict[str, Shown], dict[str, Look]]:
    """What can be shown without reading marks, and what cannot."""
    shown: dict[str, Shown] = {}
    rest: dict[str, Look] = {}
    for name, seen in found.items():
        clock.seen(seen.now_ms)
        data_type = registry.get(name.partition(":")[0])
        stored = snapshots.unpack(seen.raw, data_type.schema)
        if stored is not None and seen.fresh == stored.version and seen.now_ms < stored.soft_ms:
            shown[name] = Shown(stored, "fresh", 0)
        elif coming(seen) and (seen.hot or stored is None):
            shown[name] = Shown(stored, "stale", 0)
        else:
            rest[name] = seen
    return shown, rest


def judge(found: Mapping[str, Look]) -> dict[str, Shown]:
    """Read the marks of what was looked at before, and trust it or have it built. Uses the database.

    Raises:
        RedisAway: nothing was decided for what is not in the answer.
    """
    out: dict[str, Shown] = {}
    for data_type, names in _by_type(found).items():
        cut = len(data_type.name) + 1
        marks = dirty.marks(data_type, [name[cut:] for name in names])
        trusted: dict[str, Look] = {}
        wanted: list[str] = []
        for name in names:
            seen, mark = found[name], marks[name[cut:]]
            stored = snapshots.unpack(seen.raw, data_type.schema)
            action = verdict(stored, seen.pending, mark, seen.now_ms)
            if action == "serve":
                trusted[name] = seen
                out[name] = Shown(stored, "fresh", 0)
                continue
            out[name] = Shown(stored, "stale", mark.missed(stored.stamp) if stored else mark.changes)
            enough = seen.claim_ms is not None and stored is not None and mark.same(stored.stamp)
            # Not before its back-off is over: a build that keeps failing is not asked for by everybody who looks.
            if not enough and not coming(seen) and not mark.quarantined and seen.not_before_ms <= seen.now_ms:
                wanted.append(name)
        # Inside a transaction the marks may be older than the lease.
        if trusted and not in_transaction():
            looks.trust(data_type.lane, trusted)
        if wanted:
            refresh(data_type, wanted, found)
    return out


def look(resources: Iterable[str]) -> dict[str, Shown]:
    """What stands about resources that were leased just now; asks for builds where it is not current.

    Raises:
        RedisAway: the soft state is out of reach.
    """
    out: dict[str, Shown] = {}
    for lane, names in _by_lane(resources).items():
        shown, rest = _vouched(looks.look(settings.lane(lane).name, names))
        out.update(shown)
        out.update(judge(rest) if rest else {})
    return out


async def alook(resources: Iterable[str]) -> dict[str, Shown]:
    """The asynchronous twin of `look`; only what needs its marks read takes a thread."""
    out: dict[str, Shown] = {}
    rest: dict[str, Look] = {}
    for lane, names in _by_lane(resources).items():
        shown, unknown = _vouched(await looks.alook(settings.lane(lane).name, names))
        out.update(shown)
        rest.update(unknown)
    if rest:
        out.update(await in_thread(judge)(rest))
    return out
