"""The gate: which resources of an audience are visible, and what becomes of them and of the rest. One pass, many events.

| step | does |
|---|---|
| scopes | marks them, before anything is looked at (rule 2) |
| look | which keys are visible; a QuerySet is narrowed from its smaller side |
| hot | into the lane's pending set, and the lane is woken; what the lane sheds is marked |
| cold | marked (DEFER, SUMMARISE) or forgotten (DROP); then looked at again, and what became visible goes hot (rule 2) |
| finish | one UPDATE writes decision and time into the events' rows |

While Redis is away everything is marked, and the events stay in the outbox to look again. Time and rows grow with what is
visible, and with the audience only where it is hidden and names no scope.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connections, router
from django.utils.module_loading import import_string

from visibility.conf import settings
from visibility.datatypes import is_shadow
from visibility.events import outbox, rebuild
from visibility.events.handlers import Collected
from visibility.exceptions import RedisAway
from visibility.gate import decide
from visibility.gate.decide import Verdict
from visibility.gate.plan import Plan, plans_of
from visibility.gate.shadow import only_count
from visibility.insight import metrics
from visibility.insight.spans import traced
from visibility.models import Event
from visibility.points import reach
from visibility.signals import event_processed
from visibility.soft.client import client, guard
from visibility.sql.retry import retried

logger = logging.getLogger("visibility")
FANOUT = "visibility.recompute.enqueue_fanout"
BUDGET = 10.0
PASS = 500


def run(items: Sequence[Collected], more: Sequence[tuple[str, UUID]] = ()) -> None:
    """Take committed events through the gate, or hand them to the fan-out job (`GATE = "worker"`). Never raises.

    Args:
        more: database and id of events that only their rows know; passes of their own.
    """
    reach("gate.start")
    try:
        _late_rows(items)
    except Exception:
        logger.exception("events could not be written after their transaction; they go through the gate as they are")
    if settings.GATE == "worker":
        more = ()
        written = [item for item in items if item.written]
        items = [item for item in items if not item.written]
        if written:
            try:
                import_string(FANOUT)()
            except Exception:
                logger.exception("no fan-out job could be enqueued; %d events wait for the maintenance loop", len(written))
    if items:
        run_pass(items)
    for alias in dict.fromkeys(alias for alias, _ in more):
        ids = [pk for own, pk in more if own == alias]
        for start in range(0, len(ids), PASS):
            rows = Event.objects.using(alias).filter(pk__in=ids[start : start + PASS], processed_at=None)
            run_pass(rebuild.from_rows(rows, alias))


def _late_rows(items: Sequence[Collected]) -> None:
    """Rows that the change's own database has no table for go to the one where events belong, after the fact."""
    late = [item for item in items if item.row is not None]
    home = connections[router.db_for_write(Event)]
    if late and outbox.write(home, [item.row() for item in late if item.row is not None]):
        for item in late:
            item.written, item.row = home.alias, None


@traced("gate", lambda items: [item.id for item in items])
def run_pass(items: Sequence[Collected]) -> dict[str, Verdict]:
    """One pass over these events: everything of section 2 of the design up to the pending set and the marks. Never raises."""
    started = time.monotonic()
    try:
        rebuild.load(items)
    except Exception as error:
        logger.exception("the instances of %d events could not be loaded", len(items))
        for item in items:
            if item.reload is not None:
                item.failed.update(route.data_type.name for route in item.reload.routes)
                item.errors.append(f"{type(error).__name__}: {error}")
    keep = _Keeper(items, started)
    verdicts: dict[str, Verdict] = {}
    for name, plan in plans_of(items).items():
        verdicts[name] = only_count(plan) if is_shadow(name) else _decide(plan, keep)
    seconds = time.monotonic() - started
    try:
        _finish(items, verdicts, seconds)
    except Exception:
        # The outbox still has them, and what was done is done again without harm.
        logger.exception("%d events could not be noted as processed; maintenance takes them again", len(items))
    _tell(items, verdicts, seconds)
    return verdicts


def _decide(plan: Plan, keep: _Keeper) -> Verdict:
    verdict = Verdict()
    try:
        decide.decide(plan, verdict, keep)
    except Exception as error:
        logger.exception("the gate failed for %d resources and scopes of %s", plan.size, plan.data_type.name)
        verdict.left, verdict.error = outbox.ALL, f"{plan.data_type.name}: {type(error).__name__}: {error}"
        verdict.reasons["error"] += 1
    return verdict


class _Keeper:
    """Keeps other processes off the events of a pass that takes long."""

    def __init__(self, items: Sequence[Collected], started: float) -> None:
        self.items, self.next = items, started + min(float(settings.OUTBOX_GRACE) / 2, outbox.CLAIM / 3)

    def __call__(self) -> None:
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + outbox.CLAIM / 3
        for alias, ids in _by_database(self.items).items():
            outbox.hold(alias, [item.id for item in ids])


def _by_database(items: Iterable[Collected]) -> dict[str, list[Collected]]:
    out: dict[str, list[Collected]] = {}
    for item in items:
        if item.written is not None:
            out.setdefault(item.written, []).append(item)
    return out


def _left_of(item: Collected, verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """What this pass leaves to do of one event, by data type."""
    out = {name: v.left for name in item.audiences if (v := verdicts.get(name)) is not None and v.left}
    return out | dict.fromkeys(item.failed, outbox.ALL)


def _finish(items: Sequence[Collected], verdicts: Mapping[str, Verdict], seconds: float) -> None:
    decision = {name: verdict.as_json() for name, verdict in verdicts.items()}
    for alias, group in _by_database(items).items():
        done: list[Collected] = []
        rest: dict[tuple[Any, ...], list[Collected]] = {}
        for item in group:
            left = _left_of(item, verdicts)
            if left:
                errors = [*item.errors, *(v.error for name in left if (v := verdicts.get(name)) is not None and v.error)]
                rest.setdefault((tuple(sorted(left.items())), "; ".join(errors)), []).append(item)
            else:
                done.append(item)
        reach("gate.finish")
        if done:
            ids = [item.id for item in done]
            retried(lambda alias=alias, ids=ids: outbox.finish(alias, ids, decision, seconds * 1000), alias)  # type: ignore[misc]
        for (left_pairs, error), some in rest.items():
            own = {name: {k: v for k, v in one.items() if k != "left"} for name, one in decision.items()}
            for name, how in left_pairs:
                own.setdefault(name, {"hot": 0, "cold": 0, "reasons": {"error": 1}})["left"] = how
            outbox.leave(alias, [item.id for item in some], own, error, seconds * 1000)
    reach("gate.done")


def _tell(items: Sequence[Collected], verdicts: Mapping[str, Verdict], seconds: float) -> None:
    concerned: dict[str, int] = {}
    for item in items:
        for name in item.audiences:
            concerned[name] = concerned.get(name, 0) + 1
    for name, n in concerned.items():
        metrics.count("events", n, data_type=name)
    for name, verdict in verdicts.items():
        verdict.count(name)
    event_processed.send_robust(
        "gate",
        event_ids=[str(item.id) for item in items],
        decision={name: verdict.as_json() for name, verdict in verdicts.items()},
        seconds=seconds,
        error="; ".join(filter(None, [*(v.error for v in verdicts.values()), *(e for item in items for e in item.errors)])),
    )


def redrive(limit: int = 500, older_than: float | None = None) -> int:
    """Take unprocessed events through the gate, many in one pass; answers how many. Any number of processes may call it.

    Args:
        limit: events in one pass; passes follow until nothing is due or ten seconds are over.
        older_than: seconds for which an event that no pass has touched is left to its own process; None means
            `OUTBOX_GRACE`, and 0 with `GATE = "worker"`, where nobody else takes it.
    """
    grace = older_than if older_than is not None else 0.0 if settings.GATE == "worker" else float(settings.OUTBOX_GRACE)
    ends = time.monotonic() + BUDGET
    total = 0
    for alias in outbox.aliases():
        while time.monotonic() < ends:
            rows = outbox.claim(alias, limit, grace, deferred=_redis_answers())
            reach("redrive.claimed")
            if rows:
                run_pass(rebuild.from_rows(rows, alias))
            total += len(rows)
            if len(rows) < limit:
                break
    return total


def _redis_answers() -> bool:
    try:
        with guard():
            client().ping()
    except RedisAway:
        return False
    return True
