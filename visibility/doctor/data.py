"""Checks of the database: events that nobody took, failures, quarantine, marks that stand too long, promises."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from django.utils import timezone
from django.utils.translation import gettext as _

from visibility import dirty, freshness
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.doctor.finding import CRITICAL, WARNING, Finding
from visibility.events import outbox as outbox_rows
from visibility.models import DirtyFlag, Event, Rollup
from visibility.soft import inspect, leases

BOUND = 1_000
LOOKED_AT = 2_000
OVERDUE = 10.0


def away(error: Exception) -> Finding:
    """The database does not answer."""
    return Finding(
        code="database_away",
        severity=CRITICAL,
        symptom=_("The database does not answer, or its tables are missing."),
        evidence={"error": f"{type(error).__name__}: {error}"},
        remedy=_("Bring it back, or run manage.py migrate. Watched resources that are fresh are still served from Redis."),
    )


def _many(n: int) -> str:
    return _("More than %(n)s") % {"n": BOUND} if n > BOUND else str(n)


def outbox() -> Iterator[Finding]:
    """Events are taken through the gate soon after their commit."""
    now = timezone.now()
    limit = now - dt.timedelta(seconds=settings.OUTBOX_GRACE + OVERDUE)
    for alias in outbox_rows.aliases():
        waiting = Event.objects.using(alias).filter(processed_at=None, created_at__lt=limit).order_by("created_at")
        first = waiting.values_list("created_at", flat=True).first()
        if first is None:
            continue
        n, age = waiting[: BOUND + 1].count(), (now - first).total_seconds()
        yield Finding(
            code="outbox_waits",
            severity=CRITICAL if age > 60 else WARNING,
            symptom=_("%(n)s events were committed and not taken through the gate.") % {"n": _many(n)},
            evidence={"waiting": n, "at_most": BOUND, "oldest_seconds": round(age), "gate": settings.GATE, "database": alias},
            remedy=_(
                "The process that wrote them died, or Redis was away; the maintenance loop takes them over, so see that it runs. "
                "With GATE='worker', see that a worker runs. Nothing is lost: the rows stand until they are done."
            ),
        )


def failed_events() -> Iterator[Finding]:
    """The gate's code did not raise lately."""
    recent = Event.objects.order_by("-id").values_list("pk", "outcome", "error", "data_type", "model")[:LOOKED_AT]
    failed = [row for row in recent if row[1] == Event.Outcome.FAILED]
    if failed:
        _pk, _outcome, error, data_type, model = failed[0]
        yield Finding(
            code="failed_events",
            severity=CRITICAL,
            symptom=_("%(n)s of the newest %(of)s events failed in the gate: their audience was not told.")
            % {"n": len(failed), "of": LOOKED_AT},
            evidence={
                "failed": len(failed),
                "newest": str(failed[0][0]),
                "type": data_type or model,
                "error": error.strip()[-500:],
            },
            remedy=_("Correct the @on method named in the error; then touch() the rows concerned. Soft TTLs correct the rest."),
        )


def quarantine() -> Iterator[Finding]:
    """No resource fails again and again."""
    held = DirtyFlag.objects.filter(quarantined_at__isnull=False)
    n = held[: BOUND + 1].count()
    if n:
        rows = held.order_by("-quarantined_at").values_list("data_type", "key", "last_error")[:3]
        yield Finding(
            code="quarantine",
            severity=WARNING,
            symptom=_("%(n)s resources are in quarantine: their builds failed in a row.") % {"n": _many(n)},
            evidence={"quarantined": n, "newest": [[f"{kind}:{key}", error[:200]] for kind, key, error in rows]},
            remedy=_("Correct what the error names, then release them in the admin (Dirty flags, action Release)."),
        )


def stale_state() -> Iterator[Finding]:
    """Nobody looks at what has been marked for long."""
    stale: dict[str, float] = {}
    names: list[str] = []
    for data_type in registry:
        limit = max(OVERDUE, 3 * data_type.freshness.seconds)
        old = [(key, (timezone.now() - first).total_seconds()) for key, first in dirty.oldest(data_type.name, 200)]
        late = dict(pair for pair in old if pair[1] > limit)
        seen = leases.visible_among(data_type.name, list(late)) if late else set()
        if seen:
            stale[data_type.name] = round(max(late[key] for key in seen))
            names += [f"{data_type.name}:{key}" for key in sorted(seen)[:3]]
    if stale:
        yield Finding(
            code="stale_state",
            severity=CRITICAL,
            symptom=_("Somebody looks at resources that changed long ago and were not built since."),
            evidence={"oldest_seconds": stale, "resources": names[:5]},
            remedy=_(
                "The maintenance loop promotes what is marked and visible: see that it runs, the workers too, and no lane is "
                "flooded. "
                "visibility_explain RESOURCE says what holds one up."
            ),
        )


def promises() -> Iterator[Finding]:
    """Freshness is as promised."""
    for found in freshness.report():
        if found.state.code in freshness.ALERTING:
            yield Finding(
                code="promise_" + found.state.code,
                severity=CRITICAL if found.state.code == "burning_fast" else WARNING,
                symptom=_("%(data_type)s: %(attained)s within %(seconds)s s, not %(objective)s.")
                % {
                    "data_type": found.data_type,
                    "attained": f"{found.attained or 0:.2%}",
                    "seconds": f"{found.seconds:g}",
                    "objective": f"{found.objective:.2%}",
                },
                evidence={
                    "data_type": found.data_type,
                    "attained": found.attained,
                    "p95": found.p95,
                    "budget_left": found.budget_left,
                    "burn_rates": [[burn.rule.long, burn.long, burn.short] for burn in found.burns],
                },
                remedy=_("Look at the lane's lag and at build_seconds; if the promise is out of reach, change it in the admin."),
            )


def nobody_carries_over() -> Iterator[Finding]:
    """Counted minutes become rows."""
    last = int(inspect.redis_time() // 60)
    written = inspect.minutes_written(range(last - 15, last - 4))
    left = [minute for minute, one in written.items() if one.writes and not one.rolled]
    if left:
        newest = Rollup.objects.order_by("-minute").values_list("minute", flat=True).first()
        yield Finding(
            code="no_rollups",
            severity=WARNING,
            symptom=_("%(n)s of the last minutes were counted and not carried over to the database.") % {"n": len(left)},
            evidence={"minutes": len(left), "newest_rollup": newest.isoformat() if newest else None},
            remedy=_("The maintenance loop does it: see that it runs. Redis keeps minutes for three hours only."),
        )
