"""What becomes of one data type's share of a gate pass: hot, cold, shed or dropped. The steps stand in `visibility.gate`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import router

from visibility import dirty, pressure
from visibility.conf import settings
from visibility.datatypes import Hidden
from visibility.events import audience, outbox
from visibility.events.collect import stamp
from visibility.events.handlers import Collected
from visibility.exceptions import RedisAway
from visibility.gate.plan import Found, Need, Plan, found
from visibility.insight import metrics
from visibility.models import DirtyFlag, ScopeMark
from visibility.points import reach
from visibility.soft import claims, clock, leases, looks, pending
from visibility.soft.pending import Item
from visibility.sql.retry import retried
from visibility.wake import wake

logger = logging.getLogger("visibility")
FEW = 500
SAMPLE = 10


@dataclass
class Verdict:
    """What was decided for one data type: counts, reasons, a few of the hot keys, and what is left to do (see `outbox`)."""

    hot: int = 0
    cold: int = 0
    merged: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    sample: list[str] = field(default_factory=list)
    left: str = ""
    error: str = ""
    label: str = ""

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"hot": self.hot, "cold": self.cold, "reasons": dict(self.reasons)}
        if self.sample:
            out["sample"] = self.sample
        if self.left:
            out["left"] = self.left
        return out

    def count(self, name: str) -> None:
        """Into the metrics."""
        metrics.count("gate_hot", self.hot, data_type=name, label=self.label)
        metrics.count("gate_cold", self.cold - self.reasons["dropped"], data_type=name, label=self.label)
        metrics.count("gate_deduped", self.merged, data_type=name)
        metrics.count("gate_dropped", self.reasons["dropped"], data_type=name)
        for reason in SHED:
            metrics.count("shed", self.reasons[reason], data_type=name, label=reason)
        metrics.count("gate_shed", sum(self.reasons[reason] for reason in SHED), data_type=name)


SHED = ("bound", "share", "tenant", "resource", "redis", "flooded", "lane")


def decide(plan: Plan, verdict: Verdict, keep: Callable[[], None]) -> None:
    """Do for one data type what its share of the events asks for.

    Args:
        keep: called between chunks; holds the events while this takes long.

    Raises:
        Whatever the database or a data type's own code raises; Redis being away is dealt with here.
    """
    _Decision(plan, verdict, keep).run()


class _Decision:
    """The state of one `decide`. Once Redis was away in it, it stays so for the rest: everything is marked."""

    def __init__(self, plan: Plan, verdict: Verdict, keep: Callable[[], None]) -> None:
        self.plan, self.verdict, self.keep = plan, verdict, keep
        self.data_type, self.name = plan.data_type, plan.data_type.name
        self.away = self.flooded = False
        # Found visible in this pass, after the scopes were marked: not looked at again.
        self.seen: set[str] = set()

    def run(self) -> None:
        plan = self.plan
        if plan.scopes:
            retried(lambda: dirty.mark_scopes(self.name, plan.scopes, stamp(plan.at)), router.db_for_write(ScopeMark))
            self.verdict.cold += len(plan.scopes)
            self.verdict.reasons["scope"] += len(plan.scopes)
            reach("gate.scopes")
        try:
            self.lane = settings.lane(self.data_type.lane)
            self.flooded = pressure.marks_only(self.data_type)
            self.window = pressure.window(self.data_type)
        except LookupError as error:
            # The system check says so, too; until the lane exists everything of this type is marked.
            self._put_off("lane", str(error))
        self._take(plan.keys)
        self._take(self._covered(), covered=True)
        for one in found(plan.queries, self.data_type, self._failed):
            with self._apart(one.items):
                for keys in self._walk(one):
                    self._take(dict.fromkeys(keys, one.need))

    def _walk(self, one: Found) -> Iterator[list[str]]:
        return audience.chunks(one.keys) if one.queryset is None else audience.walk(one.queryset, self.data_type)

    def _failed(self, items: list[Collected], error: Exception) -> None:
        """An audience that cannot be read costs its own events another try, and nobody else's."""
        logger.error("an audience of %s cannot be read for %d events", self.name, len(items), exc_info=error)
        self.verdict.reasons["error"] += 1
        for item in items:
            item.failed.add(self.name)
            item.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    @contextmanager
    def _apart(self, items: list[Collected]) -> Iterator[None]:
        try:
            yield
        except RedisAway:
            raise
        except Exception as error:
            self._failed(items, error)

    def _put_off(self, reason: str, error: str = "") -> None:
        self.away, self.why = True, reason
        self.verdict.left = outbox.LOOK
        self.verdict.error = self.verdict.error or error

    def _covered(self) -> Mapping[str, Need]:
        """What needs no mark of its own, as far as it is visible: found from the visible side where that is smaller."""
        plan, out = self.plan, dict(self.plan.covered)
        if self.away:
            return out
        try:
            if plan.covered_queries or plan.lost:
                count, keys = leases.visible_up_to(self.name, FEW)
                reach("gate.counted")
                if count:
                    for one in found(plan.covered_queries, self.data_type, self._failed):
                        with self._apart(one.items):
                            for key in self._overlap(one, count, keys):
                                self._join(out, key, one.need)
                    for scope, query in plan.lost.items():
                        with self._apart(query.items):
                            for chunk in audience.chunks(keys if keys is not None else leases.visible_iter(self.name)):
                                for key in audience.depending(self.data_type, chunk, {scope}):
                                    self._join(out, key, query.need)
        except RedisAway as error:
            self._put_off("redis", str(error))
        return out

    @staticmethod
    def _join(needs: dict[str, Need], key: str, need: Need) -> None:
        if key not in needs:
            needs[key] = need
            return
        # The one that is there may be that of other keys, too.
        joined = Need()
        joined.join(needs[key])
        joined.join(need)
        needs[key] = joined

    def _overlap(self, one: Found, count: int, keys: list[str] | None) -> Iterator[str]:
        """The keys of an audience that may be visible."""
        queryset = one.queryset
        if queryset is None or not audience.can_narrow(queryset):
            for chunk in self._walk(one):
                among = leases.visible_among(self.name, chunk)
                self.seen |= among
                yield from among
                self.keep()
            return
        if keys is not None:
            among = audience.narrow(queryset, keys)
            self.seen |= among
            yield from among
            return
        # Many are visible: walk the audience, unless it turns out to be the larger side.
        seen: dict[str, None] = {}
        for chunk in self._walk(one):
            seen.update(dict.fromkeys(chunk))
            self.keep()
            if len(seen) > count:
                break
        else:
            yield from seen
            return
        for chunk in audience.chunks(leases.visible_iter(self.name)):
            yield from audience.narrow(queryset, chunk)
            self.keep()

    def _take(self, needs: Mapping[str, Need], *, covered: bool = False) -> None:
        for names in audience.chunks(needs):
            part = {name: needs[name] for name in names}
            if self.flooded:
                self._flood(part, covered=covered)
            else:
                self._split(part, covered=covered)
            self.keep()

    def _look(self, keys: Iterable[str]) -> set[str]:
        if self.away:
            return set()
        try:
            return leases.visible_among(self.name, list(keys))
        except RedisAway as error:
            self._put_off("redis", str(error))
            return set()

    def _split(self, needs: dict[str, Need], *, covered: bool) -> None:
        visible = self.seen.intersection(needs) if covered else set()
        if len(visible) < len(needs):
            visible |= self._look([key for key in needs if key not in visible])
        reach("gate.looked")
        self._pend({key: need for key, need in needs.items() if key in visible}, "visible")
        cold = {key: need for key, need in needs.items() if key not in visible}
        if not cold or covered:
            return
        if self.data_type.hidden is Hidden.DROP and not self.away:
            self._drop(cold)
        if self.data_type.hidden is not Hidden.DROP or self.away:
            self._mark(cold, self.why if self.away else "hidden")
        reach("gate.marked")
        again = self._look(cold)
        reach("gate.relooked")
        self.verdict.cold -= len(again)
        self._pend({key: cold[key] for key in again}, "appeared")

    def _pend(self, needs: dict[str, Need], why: str) -> None:
        """Into the lane; what it sheds is marked, and no longer trusted though it is visible."""
        if not needs:
            return
        verdict, cut = self.verdict, len(self.name) + 1
        now, hidden = time.time(), float(self.data_type.background or 0)
        server = clock.now_ms()
        items = [
            Item(f"{self.name}:{key}", server - int(max(0.0, now - n.at) * 1000), n.event, False, self.window, hidden, n.tenant)
            for key, n in needs.items()
        ]
        try:
            done = pending.pend(self.lane, items)
        except RedisAway as error:
            self._put_off("redis", str(error))
            self._mark(needs, "redis")
            return
        reach("gate.pended")
        wake(self.lane.name, done.wake, done.idle)
        verdict.hot += done.accepted
        verdict.merged += done.merged
        verdict.reasons[why] += done.accepted
        verdict.sample += list(needs)[: SAMPLE - len(verdict.sample)]
        if done.shed:
            self._mark({name[cut:]: needs[name[cut:]] for name, _ in done.shed}, "")
            verdict.reasons.update(reason for _, reason in done.shed)
            self._distrust([name for name, _ in done.shed])

    def _distrust(self, resources: list[str]) -> None:
        try:
            looks.distrust(resources)
        except RedisAway as error:
            self._put_off("redis", str(error))

    def _mark(self, needs: Mapping[str, Need], why: str) -> None:
        """Flags in the database, one statement a chunk."""
        if not needs:
            return
        summarise = self.data_type.hidden is Hidden.SUMMARISE
        changes = {key: need.changes for key, need in needs.items()}
        kinds = {key: need.kinds for key, need in needs.items()} if summarise else None
        at = stamp(min(need.at for need in needs.values()))
        retried(lambda: dirty.mark(self.name, changes, at, kinds), router.db_for_write(DirtyFlag))
        self.verdict.cold += len(needs)
        if why:
            self.verdict.reasons[why] += len(needs)

    def _drop(self, needs: Mapping[str, Need]) -> None:
        try:
            claims.discard(self.lane.name, [f"{self.name}:{key}" for key in needs])
        except RedisAway as error:
            self._put_off("redis", str(error))
            return
        self.verdict.cold += len(needs)
        self.verdict.reasons["dropped"] += len(needs)

    def _flood(self, needs: dict[str, Need], *, covered: bool) -> None:
        """Marks only, visible resources too; promotion brings them back when the flood is over."""
        if not covered:
            self._mark(needs, "flooded")
        visible = self._look(needs)
        if covered:
            self.verdict.cold += len(visible)
            self.verdict.reasons["flooded"] += len(visible)
        if visible:
            self._distrust([f"{self.name}:{key}" for key in visible])
