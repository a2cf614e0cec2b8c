"""The doctor: checks of everything around the app, each of which answers with symptom, evidence and remedy.

`examine()` runs every check once against the live system and answers findings, the worst first. A check that cannot run because
Redis or the database is away is left out: the finding that says so stands alone. Nothing is changed. Bounded: no KEYS, no SCAN,
no count over a whole table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from django.db import DatabaseError
from django.utils.translation import gettext as _

from visibility.doctor import data, lanes, place, soft, traffic
from visibility.doctor.finding import CRITICAL, INFO, SEVERITIES, WARNING, Finding
from visibility.exceptions import RedisAway

__all__ = ["CHECKS", "CRITICAL", "INFO", "SEVERITIES", "WARNING", "Finding", "examine", "exit_code"]

log = logging.getLogger("visibility.doctor")
Check = Callable[[], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    soft.reachable,
    soft.eviction,
    soft.memory,
    soft.immortal_keys,
    soft.clock_skew,
    place.system_checks,
    place.in_memory_layer,
    place.socket_timeout,
    lanes.queues_reachable,
    lanes.no_worker,
    lanes.piling_up,
    lanes.pressed,
    lanes.doubled_jobs,
    lanes.ended_claims,
    lanes.hanging_builds,
    lanes.nobody_maintains,
    lanes.failing_duties,
    soft.named_locks,
    soft.dead_leases,
    data.outbox,
    data.failed_events,
    data.quarantine,
    data.stale_state,
    data.promises,
    data.nobody_carries_over,
    traffic.counted,
)


def examine(checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Run the checks; the worst findings first. Never raises: a check that fails is a finding."""
    found: list[Finding] = []
    for check in checks:
        try:
            found += check()
        except RedisAway:
            if not any(one.code == "redis_away" for one in found):
                found += soft.reachable()
        except DatabaseError as error:
            if not any(one.code == "database_away" for one in found):
                found.append(data.away(error))
        except Exception as error:
            log.exception("the check %s failed", check.__name__)
            found.append(
                Finding(
                    code="check_failed",
                    severity=WARNING,
                    symptom=_("The check %(check)s could not be made.") % {"check": check.__name__},
                    evidence={"error": f"{type(error).__name__}: {error}"},
                    remedy=_("Look at the traceback in the log of visibility.doctor; other findings stand as they are."),
                )
            )
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def exit_code(found: Iterable[Finding]) -> int:
    """0: nothing to do; 1: warnings; 2: something is broken now."""
    worst = {one.severity for one in found}
    return 2 if CRITICAL in worst else 1 if WARNING in worst else 0
