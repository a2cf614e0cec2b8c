"""Freshness promises: how much of the time a change was shown in time, what is left of the error budget, how fast it burns.

The measure is `freshness_sent`: from the oldest change not yet shown to the moment its update left for the watchers. What is
shown to nobody does not count; its age is on the page as `oldest`. Alerts look at two windows at once, a long one that says it
matters and a short one that says it still goes on (Google, *The Site Reliability Workbook*, chapter 5, "Multiwindow,
Multi-Burn-Rate Alerts"): for windows of two weeks and more with the workbook's own numbers, for shorter ones scaled.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db.models import OuterRef, Subquery
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from visibility.conf import settings
from visibility.datatypes import registry
from visibility.insight import history, metrics, rollup
from visibility.insight.histogram import Histogram
from visibility.insight.metrics import Figures
from visibility.models import DirtyFlag, FreshnessSLO
from visibility.signals import slo_alert
from visibility.soft import inspect, levels, pages

SHOWN = "freshness_sent"
STEPS = ("freshness_built", SHOWN, "freshness_acked", "freshness_resolved")
MINUTE = 60
FEW = 20  # below this a median or a tail may be anything
MIN_SHOWN = 10  # below this one late change would be an alert
FORTNIGHT = 14 * 86_400


class AlertRule(NamedTuple):
    """Alert when the budget burns at `rate` or faster over both spans; seconds. At rate 1 the budget lasts the window."""

    severity: str
    long: float
    short: float
    rate: float


class State(NamedTuple):
    """An SLO's state: a machine word, the word for people, and the class that colours it."""

    code: str
    words: str | Promise
    css: str


STATES = {
    "none": State("none", _("No data"), "none"),
    "met": State("met", _("Met"), "ok"),
    "burning": State("burning", _("Burning"), "warn"),
    "burning_fast": State("burning_fast", _("Burning fast"), "bad"),
    "missed": State("missed", _("Missed"), "bad"),
}
ALERTING = ("burning", "burning_fast", "missed")


def rules_for(window: float) -> tuple[AlertRule, ...]:
    """The alert rules for an SLO window in seconds."""
    if window >= FORTNIGHT:
        return (
            AlertRule("burning_fast", 3_600, 300, 14.4),
            AlertRule("burning_fast", 6 * 3_600, 1_800, 6),
            AlertRule("burning", 3 * 86_400, 6 * 3_600, 1),
        )
    # A day has no 2 % of budget to spare for noticing: a fifth of it within 1/24 of the window, half of it within a quarter.
    fast, slow = max(window / 24, MINUTE), max(window / 4, 3 * MINUTE)
    return (
        AlertRule("burning_fast", fast, max(fast / 12, MINUTE / 2), max(1.0, 0.2 * window / fast)),
        AlertRule("burning", slow, max(slow / 12, MINUTE / 2), max(1.0, 0.5 * window / slow)),
    )


@dataclass(frozen=True, kw_only=True)
class Burn:
    """Burn rates over one rule's two spans, None where nothing was shown in it; `shown` counts the long one."""

    rule: AlertRule
    long: float | None
    short: float | None
    shown: int

    @property
    def firing(self) -> bool:
        if self.shown < MIN_SHOWN:
            return False
        return (self.long or 0) >= self.rule.rate and (self.short or 0) >= self.rule.rate


@dataclass(frozen=True, kw_only=True)
class Report:
    """One data type's promise against what happened. Durations in seconds; shares 0 to 1; None where there is no data."""

    data_type: str
    seconds: float
    objective: float
    window: int
    shown: int
    late: float
    attained: float | None
    budget_left: float | None
    burns: tuple[Burn, ...]
    state: State
    oldest: float | None = None
    histograms: dict[str, Histogram] = field(default_factory=dict)

    @property
    def few(self) -> bool:
        """Whether there are durations, but too few to read much from their median or tail."""
        return 0 < self.shown < FEW

    def quantile(self, q: float, step: str = SHOWN) -> float | None:
        found = self.histograms.get(step)
        return found.quantile(q) if found else None

    @property
    def p50(self) -> float | None:
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        return self.quantile(0.95)

    @property
    def p99(self) -> float | None:
        return self.quantile(0.99)


def share_late(histogram: Histogram, seconds: float) -> float | None:
    """The share of durations over the target; None where there are none."""
    return 1 - histogram.within(seconds) / histogram.count if histogram else None


def burn_rate(histogram: Histogram, seconds: float, objective: float) -> float | None:
    """How many times faster than allowed the budget is spent; None where there is no data."""
    late = share_late(histogram, seconds)
    return None if late is None else late / (1 - objective)


def judge(attained: float | None, objective: float, burns: Sequence[Burn]) -> State:
    """The state from what was attained over the whole window and the burn rates. Pure."""
    firing = {burn.rule.severity for burn in burns if burn.firing}
    for severity in ("burning_fast", "burning"):
        if severity in firing and not (severity == "burning" and attained is not None and attained < objective):
            return STATES[severity]
    if attained is None:
        return STATES["none"]
    return STATES["met"] if attained >= objective else STATES["missed"]


def sync_slos() -> int:
    """Create the promise of each registered data type, and follow its code unless edited by hand; return how many changed."""
    held = {slo.data_type: slo for slo in FreshnessSLO.objects.all()}
    changed = 0
    for data_type in registry:
        wanted = data_type.freshness
        slo = held.get(data_type.name)
        values = {"seconds": wanted.seconds, "objective": wanted.objective, "window": wanted.window}
        if slo is None:
            changed += FreshnessSLO.objects.get_or_create(data_type=data_type.name, defaults=values)[1]
        elif not slo.edited and any(getattr(slo, name) != value for name, value in values.items()):
            changed += FreshnessSLO.objects.filter(pk=slo.pk, edited=False).update(**values)
    return changed


def oldest_dirty(types: Iterable[str] | None = None) -> dict[str, dt.datetime]:
    """Since when the longest-waiting dirty flag of each type stands, in one query; types without one are left out."""
    first = DirtyFlag.objects.filter(data_type=OuterRef("data_type"), first_at__isnull=False).order_by("first_at")
    slos = FreshnessSLO.objects.annotate(oldest=Subquery(first.values("first_at")[:1]))
    if types is not None:
        slos = slos.filter(data_type__in=list(types))
    return {slo.data_type: slo.oldest for slo in slos if slo.oldest is not None}


def report(data_types: Iterable[str] | None = None, now: dt.datetime | None = None) -> list[Report]:
    """The state of every promise, or of those named: three queries and three calls to Redis, however many types there are."""
    now = now or timezone.now()
    held = FreshnessSLO.objects.all() if data_types is None else FreshnessSLO.objects.filter(data_type__in=list(data_types))
    slos = list(held)
    if not slos:
        return []
    spans = {float(slo.window) for slo in slos}
    spans |= {span for slo in slos for rule in rules_for(slo.window) for span in (rule.long, rule.short)}
    names = [slo.data_type for slo in slos]
    figures = history.read(STEPS, spans, now, data_types=names)
    oldest = oldest_dirty(names)
    return [
        _report(slo, figures, (now - oldest[slo.data_type]).total_seconds() if slo.data_type in oldest else None) for slo in slos
    ]


def _burn(slo: FreshnessSLO, rule: AlertRule, figures: dict[float, Figures]) -> Burn:
    long, short = (figures[span].histogram(SHOWN, slo.data_type) for span in (rule.long, rule.short))
    rates = [burn_rate(histogram, slo.seconds, slo.objective) for histogram in (long, short)]
    return Burn(rule=rule, long=rates[0], short=rates[1], shown=long.count)


def _report(slo: FreshnessSLO, figures: dict[float, Figures], oldest: float | None) -> Report:
    whole = {step: figures[float(slo.window)].histogram(step, slo.data_type) for step in STEPS}
    shown = whole[SHOWN]
    burns = tuple(_burn(slo, rule, figures) for rule in rules_for(slo.window))
    late = share_late(shown, slo.seconds)
    attained = None if late is None else 1 - late
    return Report(
        data_type=slo.data_type,
        seconds=slo.seconds,
        objective=slo.objective,
        window=slo.window,
        shown=shown.count,
        late=(late or 0) * shown.count,
        attained=attained,
        budget_left=None if late is None else 1 - late / (1 - slo.objective),
        burns=burns,
        state=judge(attained, slo.objective, burns),
        oldest=oldest,
        histograms=whole,
    )


def alert(now: dt.datetime | None = None) -> list[Report]:
    """Send `slo_alert` for each promise whose state changed to or from an alerting one since anybody looked; return those.

    Over the whole cluster a change is announced once; after a Redis flush an alert that still stands is announced again.
    """
    changed = []
    for found in report(now=now):
        before = inspect.swap_slo_state(found.data_type, found.state.code)
        if before == found.state.code or not ({before, found.state.code} & set(ALERTING)):
            continue
        changed.append(found)
        worst = max((min(burn.long or 0, burn.short or 0) for burn in found.burns), default=0.0)
        slo_alert.send_robust(found.data_type, state=found.state.code, burn_rate=worst, attained=found.attained)
    return changed


def sample() -> None:
    """Count what can only be looked at, not counted as it happens: watchers of visible resources, how late lanes are.

    Raises:
        RedisAway: Redis does not answer.
    """
    for data_type in registry:
        metrics.observe_all("watchers", pages.crowd(data_type.name).watchers, data_type=data_type.name)
    for lane in settings.LANES:
        metrics.observe("lane_lag", max(0.0, levels.lane_state(lane).lag), lane)


def maintain(now: dt.datetime | None = None, *, starting: bool = False) -> int:
    """What the maintenance loop does here, some times a minute: carry minutes over, look for alerts, prune. Safe to run in any
    number of processes; give `starting` at the first call of a process. Returns how many minutes were carried over.

    Raises:
        RedisAway: Redis does not answer.
    """
    if starting:
        sync_slos()
    moved = rollup.roll(everything=starting)
    if moved:
        sample()
        alert(now)
        rollup.prune(now)
    return moved
