"""The charts of the overview and of the promises' pages, from what was counted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import NamedTuple

from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy

from visibility import freshness
from visibility.admin.charts import Chart, Series, lines, stacked
from visibility.insight import history
from visibility.insight.histogram import Histogram
from visibility.insight.ledger import METRICS as LEDGER, Ledger
from visibility.insight.metrics import Figures
from visibility.insight.reasons import span

DAY = 86_400.0
COUNTS = (*LEDGER, "gate_shed", "build_failures", "store_refused", "freshness_sent")
Steps = list[tuple[dt.datetime, Figures]]


class Range(NamedTuple):
    """A span that charts may show, and its step."""

    slug: str
    name: str | Promise
    words: str | Promise
    seconds: float
    step: dt.timedelta
    label: str


RANGES = {
    one.slug: one
    for one in (
        Range("hour", gettext_lazy("Hour"), gettext_lazy("the last 60 minutes"), 59 * 60, dt.timedelta(minutes=1), "H:i"),
        Range("day", gettext_lazy("Day"), gettext_lazy("the last 24 hours"), 23 * 3_600, dt.timedelta(hours=1), "H:i"),
        Range("month", gettext_lazy("Month"), gettext_lazy("the last 30 days"), 29 * DAY, dt.timedelta(days=1), "j M"),
    )
}


def range_of(slug: str) -> Range:
    """The range of this name; of any other, the hour."""
    return RANGES.get(slug, RANGES["hour"])


def plain(value: float) -> str:
    """A count as the axes and tables write it."""
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 10 or value == int(value) else f"{value:g}"


def axis(seconds: float) -> str:
    """A whole decade of seconds, short enough for an axis."""
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    if seconds < 1000:
        return f"{seconds:g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.2g} h"


def label_of(at: dt.datetime, chosen: Range) -> str:
    """A step's label; days are whole UTC days, so that they are not moved into the local zone."""
    return formats.date_format(at if chosen.slug == "month" else timezone.localtime(at), chosen.label)


def counted(
    slug: str,
    title: str,
    steps: Steps,
    chosen: Range,
    rows: Iterable[tuple[str, str, Callable[[Figures], float]]],
    more: str = "",
) -> Chart:
    """A chart of counts by step; `more` is said after their sums."""
    series = [Series(name=name, css=css, values=[value(figures) for _at, figures in steps]) for name, css, value in rows]
    labels = [label_of(at, chosen) for at, _figures in steps]
    sums = ", ".join(f"{one.name} {plain(sum(value or 0 for value in one.values))}" for one in series)
    return stacked(
        slug, title, " ".join(filter(None, (_("In this span: %(sums)s.") % {"sums": sums}, more))), series, labels, plain
    )


def quantiles(
    slug: str, title: str, steps: Steps, chosen: Range, get: Callable[[Figures], Histogram], target: float | None = None
) -> Chart:
    """A chart of a duration's median and tail by step, with the promise where one is given."""
    found = [get(figures) for _at, figures in steps]
    series = [
        Series(name=name, css=css, values=[histogram.quantile(q) for histogram in found])
        for name, css, q in ((_("median"), "p50", 0.5), (_("95th percentile"), "p95", 0.95), (_("99th percentile"), "p99", 0.99))
    ]
    if target is not None:
        series.append(Series(name=_("promise"), css="target", values=[target] * len(steps)))
    whole = Histogram()
    for histogram in found:
        whole.merge(histogram)
    values = {"n": plain(whole.count), "median": _span(whole.quantile(0.5)), "tail": _span(whole.quantile(0.99))}
    summary = _("In this span: %(n)s measured, median %(median)s, 99th percentile %(tail)s.") % values
    if whole.count < freshness.FEW:
        summary = _("In this span: few samples (%(n)s), median %(median)s.") % values
    return lines(slug, title, summary, series, [label_of(at, chosen) for at, _figures in steps], span, axis, floor=0.001)


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(seconds)


def _sum(name: str, label: str | None = None) -> Callable[[Figures], float]:
    return lambda figures: figures.total(name, label=label)


def charts(chosen: Range, steps: Steps, account: Ledger) -> list[Chart]:
    """The overview's charts, of steps that hold `COUNTS`, and the account of their whole span."""
    shed = sum(figures.total("gate_shed") for _at, figures in steps)
    later = {"later": plain(account.caught_up), "saved": plain(account.saved)}
    return [
        counted(
            "changes",
            _("Changes: hot and cold"),
            steps,
            chosen,
            [
                (_("hot"), "hot", _sum("gate_hot", "")),
                (_("marked"), "cold", _sum("gate_cold", "")),
                (_("dropped"), "quiet", _sum("gate_dropped")),
            ],
            _("Of the marked, %(n)s were visible and shed because of a limit.") % {"n": plain(shed)} if shed else "",
        ),
        quantiles("freshness", _("Freshness: change to watcher"), steps, chosen, lambda one: one.histogram("freshness_sent")),
        counted(
            "builds",
            _("Builds"),
            steps,
            chosen,
            [
                (_("built"), "hot", _sum("builds")),
                (_("failed"), "bad", _sum("build_failures")),
                (_("refused"), "warn", _sum("store_refused")),
            ],
        ),
        counted(
            "saved",
            _("Builds not made"),
            steps,
            chosen,
            [
                (_("merged"), "good", _sum("gate_deduped")),
                (_("marked"), "cold", _sum("gate_cold", "")),
                (_("put off"), "warn", _sum("saved_builds")),
            ],
            _("Of the marked, %(later)s were built later: %(saved)s builds saved.") % later,
        ),
        counted(
            "reads",
            _("Reads"),
            steps,
            chosen,
            [
                (_("fresh"), "good", _sum("reads", "fresh")),
                (_("stale"), "warn", _sum("reads", "stale")),
                (_("rebuilt"), "hot", _sum("reads", "rebuilt")),
            ],
        ),
        quantiles("resolved", _("Age of marks when resolved"), steps, chosen, lambda one: one.histogram("freshness_resolved")),
    ]


def promise_charts(data_type: str, seconds: float, chosen: Range, now: dt.datetime) -> list[Chart]:
    """The charts of one promise: one query."""
    steps = history.series(freshness.STEPS, chosen.seconds, chosen.step, now, data_types=[data_type])

    def shown(figures: Figures) -> Histogram:
        return figures.histogram("freshness_sent")

    in_time: list[tuple[str, str, Callable[[Figures], float]]] = [
        (_("in time"), "good", lambda one: shown(one).within(seconds)),
        (_("late"), "bad", lambda one: shown(one).count - shown(one).within(seconds)),
    ]
    return [
        quantiles("sent", _("Change to watcher"), steps, chosen, shown, seconds),
        counted("kept", _("Updates in time"), steps, chosen, in_time),
        quantiles("built", _("Change to build"), steps, chosen, lambda one: one.histogram("freshness_built"), seconds),
        quantiles("acked", _("Change to browser"), steps, chosen, lambda one: one.histogram("freshness_acked"), seconds),
        quantiles("resolved", _("Age of marks when resolved"), steps, chosen, lambda one: one.histogram("freshness_resolved")),
    ]
