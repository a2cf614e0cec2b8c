"""Checks of what was counted in the last ten minutes: stampedes, writes that came too late, failing builds."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _

from visibility.datatypes import registry
from visibility.doctor.finding import CRITICAL, WARNING, Finding
from visibility.insight import history
from visibility.insight.metrics import Figures

SPAN = 600.0
METRICS = ("reads", "builds", "build_failures", "build_seconds", "lock_waits", "store_refused", "claims_lost", "metrics_dropped")
CROWD = 20
SHARE = 0.2


def counted() -> Iterator[Finding]:
    """All checks of this module, on one reading of the figures."""
    figures = history.read(METRICS, [SPAN])[SPAN]
    for check in (stampede, refused_writes, failing_builds, dropped_counts):
        yield from check(figures)


def stampede(figures: Figures) -> Iterator[Finding]:
    """Readers seldom wait for one another's builds."""
    for data_type in registry:
        name = data_type.name
        waits, builds = figures.total("lock_waits", name), figures.total("builds", name)
        reads = figures.total("reads", name)
        if waits < CROWD or waits < 3 * max(1, builds):
            continue
        yield Finding(
            code="stampede",
            severity=WARNING,
            symptom=_(
                "Readers crowd at missing or stale snapshots of '%(name)s': %(waits)s waits for %(builds)s builds in ten minutes."
            )
            % {"name": name, "waits": waits, "builds": builds},
            evidence={
                "data_type": name,
                "waits": waits,
                "builds": builds,
                "reads": reads,
                "rebuilt": figures.total("reads", name, "rebuilt"),
                "build_p95": figures.histogram("build_seconds", name).quantile(0.95),
                "jitter": data_type.jitter,
                "ttl": data_type.ttl,
                "soft_ttl": data_type.soft_ttl,
            },
            remedy=_(
                "Each build ran once, but its readers waited. Let soft_ttl end well before ttl so that refreshes run behind, "
                "keep jitter above 0 so that keys do not expire together, set active_window so that what is read stays hot, "
                "or make the build faster."
            ),
        )


def refused_writes(figures: Figures) -> Iterator[Finding]:
    """Builds end within their claim."""
    for data_type in registry:
        name = data_type.name
        refused = figures.total("store_refused", name)
        builds = figures.total("builds", name) + refused
        if refused >= 5 and refused > 0.05 * builds:
            yield Finding(
                code="doubled_builds",
                severity=WARNING,
                symptom=_("%(n)s builds of '%(name)s' came too late in ten minutes: somebody else had built it meanwhile.")
                % {"n": refused, "name": name},
                evidence={"data_type": name, "refused": refused, "builds": builds, "claims_lost": figures.total("claims_lost")},
                remedy=_(
                    "Nothing old was stored. Workers lose their claims: raise BUILD_LEASE above the pauses they have (garbage "
                    "collection, swapping, a starved container), and look for workers that were stopped."
                ),
            )


def failing_builds(figures: Figures) -> Iterator[Finding]:
    """Builds seldom fail."""
    for data_type in registry:
        name = data_type.name
        failed, builds = figures.total("build_failures", name), figures.total("builds", name)
        if failed >= 5 and failed > SHARE * (failed + builds):
            yield Finding(
                code="failing_builds",
                severity=CRITICAL if failed > builds else WARNING,
                symptom=_("%(n)s of %(of)s builds of '%(name)s' failed in ten minutes.")
                % {"n": failed, "of": failed + builds, "name": name},
                evidence={"data_type": name, "failed": failed, "builds": builds},
                remedy=_("The log of visibility has the tracebacks, the quarantine in the admin the last error of each."),
            )


def dropped_counts(figures: Figures) -> Iterator[Finding]:
    """Every count reached Redis."""
    dropped = figures.total("metrics_dropped")
    if dropped:
        yield Finding(
            code="counts_dropped",
            severity=WARNING,
            symptom=_("%(n)s counts were dropped: the buffer of a process was full.") % {"n": dropped},
            evidence={"dropped": dropped},
            remedy=_("Redis was away for long, or a metric has too many label values. Figures of that time are too low."),
        )
