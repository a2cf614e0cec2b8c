"""The rounds of a read that found nothing to serve at once: look, read the marks, then serve, build, or wait for who builds."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from django.db import connections

from visibility import dirty, pressure
from visibility.builds import Built, build_claimed, holding, run_build
from visibility.conf import settings
from visibility.datatypes import DataType
from visibility.dirty import Marks
from visibility.exceptions import BuildFailed, RedisAway
from visibility.insight import metrics
from visibility.points import reach
from visibility.soft import claims, clock, looks, pending, snapshots
from visibility.soft.claims import Later, Moved
from visibility.soft.looks import Look
from visibility.soft.pending import Item
from visibility.soft.snapshots import Snapshot, Stored
from visibility.wake import wake

EARLY = 1.0
REFUSED_ENOUGH = 3


def verdict(stored: Stored | None, pending_now: bool, marks: Marks, now_ms: int) -> str:
    """What to do with what stands: serve, refresh (serve, build behind) or build. Pure; see the table of `visibility.read`."""
    if stored is None or pending_now or not marks.same(stored.stamp):
        return "build"
    return "serve" if now_ms < stored.soft_ms else "refresh"


def wants_early(stored: Stored, now_ms: int) -> bool:
    """Whether this reader should ask for a refresh before the soft TTL: by cost and chance (XFetch, Vattani et al. 2015)."""
    left = stored.soft_ms - now_ms
    return left < 20 * stored.cost_ms and left < EARLY * stored.cost_ms * -math.log(1.0 - random.random())  # noqa: S311


def snapshot_of(resource: str, stored: Stored, state: str, missed: int = 0, summary: Mapping[str, int] | None = None) -> Snapshot:
    """What a read answers, from what is stored."""
    return Snapshot(resource, stored.version, stored.body, state, stored.built_ms, stored.event_ms, missed, summary or {})


def in_transaction() -> bool:
    """Whether what this thread reads from a database is its own view; the wrapping of Django's TestCase does not count."""
    return any(
        not getattr(block, "_from_testcase", False)
        for connection in connections.all(initialized_only=True)
        for block in connection.atomic_blocks
    )


def from_source(data_type: DataType, keys: Sequence[str]) -> dict[str, Snapshot]:
    """Build for this caller alone: kept nowhere.

    The version is the time before the source was read, so that whatever was built from a later read is higher. In a transaction
    it is 0, below all: what that sees may be older than its start, or never be committed.

    Raises:
        BuildFailed: a build raised; nothing older is served instead.
    """
    began = clock.now_ms()
    version = 0 if in_transaction() else began * 1000
    data = run_build(data_type, keys)
    out: dict[str, Snapshot] = {}
    for key in keys:
        resource = f"{data_type.name}:{key}"
        if isinstance(data[key], BaseException):
            raise BuildFailed(f"{resource} could not be built: {data[key]}") from data[key]
        out[key] = Snapshot(resource, version, snapshots.encode_body(resource, data[key]), "rebuilt", began, 0)
    metrics.count("reads", len(out), data_type=data_type.name, label="rebuilt")
    return out


class Rest:
    """The keys of a read that are not served yet, and how far it has come."""

    def __init__(self, data_type: DataType, keys: Sequence[str], deadline: float) -> None:
        self.data_type, self.keys, self.deadline = data_type, list(keys), deadline
        self.out: dict[str, Snapshot] = {}
        self.began: dict[str, int] = {}
        self.refused = 0

    def patience(self) -> float:
        """How long to wait for somebody else's build before looking again, in seconds."""
        return max(0.05, min(1.0, self.deadline - time.monotonic()))

    def step(self) -> tuple[str, str] | None:
        """One round. Answers (resource, owner) of a build to wait for, if that is all that is left.

        Raises:
            BuildFailed: as `read`.
        """
        try:
            busy = self._step()
        except RedisAway:
            self.out.update(from_source(self.data_type, self.keys))
            busy = None
        self.keys = [key for key in self.keys if key not in self.out]
        return busy if self.keys else None

    def _resource(self, key: str) -> str:
        return f"{self.data_type.name}:{key}"

    def _step(self) -> tuple[str, str] | None:
        found = looks.look(self.data_type.lane, [self._resource(key) for key in self.keys])
        reach("read.looked")
        inside = in_transaction()
        unsure = [key for key in self.keys if not self._known(key, found[self._resource(key)])]
        marks = dirty.marks(self.data_type, unsure) if unsure else {}
        reach("read.marks")
        self._serve(found, marks, trusting=not inside)
        rest = [key for key in self.keys if key not in self.out]
        if not rest:
            return None
        if inside:
            # A snapshot of what is not committed, or of an older view, must not be kept for others.
            refresh(self.data_type, [self._resource(key) for key in rest if not found[self._resource(key)].queued], found)
            self.out.update(from_source(self.data_type, rest))
            return None
        return self._build(rest, found, marks)

    def _known(self, key: str, seen: Look) -> bool:
        """Whether it is decided without the marks: it has to be built, or it was built since this read began, for others."""
        clock.seen(seen.now_ms)
        stored = snapshots.unpack(seen.raw, self.data_type.schema)
        began = self.began.setdefault(key, seen.last)
        if stored is not None and stored.version > began:
            self.out[key] = snapshot_of(self._resource(key), stored, "rebuilt")
            metrics.count("reads", data_type=self.data_type.name, label="rebuilt")
            return True
        return stored is None or seen.pending

    def _serve(self, found: Mapping[str, Look], marks: Mapping[str, Marks], *, trusting: bool) -> None:
        trusted: dict[str, Look] = {}
        behind: list[str] = []
        for key, mark in marks.items():
            seen = found[self._resource(key)]
            stored = snapshots.unpack(seen.raw, self.data_type.schema)
            action = verdict(stored, seen.pending, mark, seen.now_ms)
            if stored is None or action == "build":
                continue
            state = "fresh" if action == "serve" else "stale"
            self.out[key] = snapshot_of(self._resource(key), stored, state)
            metrics.count("reads", data_type=self.data_type.name, label=state)
            if action == "serve" and seen.visible_ms > 0 and trusting:
                trusted[self._resource(key)] = seen
            early = action == "serve" and wants_early(stored, seen.now_ms)
            if (action == "refresh" or early) and not seen.queued and seen.not_before_ms <= seen.now_ms:
                behind.append(self._resource(key))
        if trusted:
            looks.trust(self.data_type.lane, trusted)
        if behind:
            refresh(self.data_type, behind, found)

    def _build(self, keys: list[str], found: Mapping[str, Look], marks: Mapping[str, Marks]) -> tuple[str, str] | None:
        lane = self.data_type.lane
        names = [self._resource(key) for key in keys]
        # Who looked before a build ended does not build again.
        taken, refused = claims.claim_named(lane, names, settings.BUILD_LEASE, {name: found[name].version for name in names})
        cut = len(self.data_type.name) + 1
        failed: BuildFailed | None = None
        with ExitStack() as stack:
            held = [(owned, stack.enter_context(holding(lane, owned))) for owned in taken]
            for owned, lost in held:
                for resource, one in build_claimed(self.data_type, lane, owned, owned.rows, lost).items():
                    failed = self._take(resource[cut:], one, found, marks) or failed
        waiting: tuple[str, str] | None = None
        for resource, why in refused.items():
            if isinstance(why, Moved):
                continue
            if isinstance(why, Later):
                failed = self._fallback(resource[cut:], found, marks, why.error) or failed
            elif time.monotonic() >= self.deadline:
                failed = (
                    self._fallback(resource[cut:], found, marks, f"still being built after {settings.BUILD_TIMEOUT} s") or failed
                )
            else:
                metrics.count("lock_waits", data_type=self.data_type.name)
                waiting = (resource, why.owner)
        if failed is not None:
            raise failed
        if self.refused > REFUSED_ENOUGH or time.monotonic() >= self.deadline:
            # Built again and again, and each time a newer one was there or the claim was gone: enough for this reader.
            self.out.update(from_source(self.data_type, [key for key in keys if key not in self.out]))
        return waiting

    def _take(self, key: str, one: Built, found: Mapping[str, Look], marks: Mapping[str, Marks]) -> BuildFailed | None:
        """What this reader's own build of a key came to."""
        resource = self._resource(key)
        if one.error is not None:
            why = f"{type(one.error).__name__}: {one.error}"
            return self._fallback(key, found, {**marks, key: one.marks}, why, one.error)
        if one.stored is None:
            self.refused += 1
            return None
        stale = snapshots.unpack(found[resource].raw, self.data_type.schema)
        missed = one.marks.missed(stale.stamp) if stale else one.marks.changes
        self.out[key] = snapshot_of(resource, one.stored, "rebuilt", missed, one.summary)
        metrics.count("reads", data_type=self.data_type.name, label="rebuilt")
        return None

    def _fallback(
        self, key: str, found: Mapping[str, Look], marks: Mapping[str, Marks], why: str, cause: BaseException | None = None
    ) -> BuildFailed | None:
        """Serve what is stale; with nothing to serve, answer the error to raise once the other keys are done."""
        resource = self._resource(key)
        stale = snapshots.unpack(found[resource].raw, self.data_type.schema)
        if stale is None:
            error = BuildFailed(f"{resource} could not be built: {why}")
            error.__cause__ = cause
            return error
        metrics.count("reads", data_type=self.data_type.name, label="stale")
        self.out[key] = snapshot_of(resource, stale, "stale", marks.get(key, Marks()).missed(stale.stamp))
        return None


def refresh(data_type: DataType, resources: Sequence[str], found: Mapping[str, Look] | None = None) -> None:
    """Ask the lane to build these whether or not somebody watches; what the lane cannot take stays as it is.

    What stands may be served meanwhile: whether it is current, the marks tell. With `found`, as the caller looked, what was
    built since then is left alone, unless that build had begun before the look: it may have read too early.
    """
    lane, window = settings.lane(data_type.lane), pressure.window(data_type)
    items = [
        Item(r, 0, refresh=True, window=window, seen=found[r].version if found and found[r].claim_ms is None else None)
        for r in resources
    ]
    wake(lane.name, pending.pend(lane, items).wake)
