"""What was counted over spans of time, for charts and promises; one query for any number of spans.

Read from `Rollup` in the coarsest grain that covers a span, and from the minutes that only Redis holds so far.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.db.models import Q
from django.utils import timezone

from visibility.exceptions import RedisAway
from visibility.insight.histogram import Histogram
from visibility.insight.metrics import Figures
from visibility.insight.rollup import DAY, HOUR, RECENT, minute_at
from visibility.models import Rollup
from visibility.soft import inspect

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
A_MINUTE, AN_HOUR, A_DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)
FINE = dt.timedelta(hours=2)


class Part(NamedTuple):
    """Rows of one grain (`""` minutes, `@hour`, `@day`) that begin in `[start, end)`."""

    grain: str
    start: dt.datetime
    end: dt.datetime


class Row(NamedTuple):
    """One stored figure."""

    at: dt.datetime
    metric: str
    grain: str
    data_type: str
    label: str
    value: float
    buckets: dict[str, int] | None

    def within(self, parts: Iterable[Part]) -> bool:
        return any(self.grain == part.grain and part.start <= self.at < part.end for part in parts)


def _floor(at: dt.datetime, step: dt.timedelta) -> dt.datetime:
    return at - (at - EPOCH) % step


def _ceil(at: dt.datetime, step: dt.timedelta) -> dt.datetime:
    return _floor(at + step - dt.timedelta(microseconds=1), step)


def cover(seconds: float, now: dt.datetime) -> list[Part]:
    """The fewest rows that cover the last `seconds`. The running hour and day are kept up to date as their minutes end, so only
    the edge at the start is read in finer grain."""
    minute = _floor(now - dt.timedelta(seconds=seconds), A_MINUTE).astimezone(dt.UTC)
    end = now + A_MINUTE
    hour = _ceil(minute, AN_HOUR)
    day = _ceil(hour, A_DAY)
    if now - minute <= FINE + A_MINUTE or hour >= end:
        return [Part("", minute, end)]
    if day >= end:
        return [Part("", minute, hour), Part(HOUR, hour, end)]
    return [Part("", minute, hour), Part(HOUR, hour, day), Part(DAY, day, end)]


def fetch(parts: Iterable[Part], metrics: Sequence[str], *, data_types: Sequence[str] | None = None) -> list[Row]:
    """The rows of these metrics in any of these parts: one query."""
    where = Q(pk__in=())
    for grain, start, end in set(parts):
        where |= Q(metric__in=[name + grain for name in metrics], minute__gte=start, minute__lt=end)
    rows = Rollup.objects.filter(where)
    if data_types is not None:
        rows = rows.filter(data_type__in=data_types)
    out = []
    for at, metric, kind, label, value, buckets in rows.values_list("minute", "metric", "data_type", "label", "value", "buckets"):
        name, sign, grain = metric.partition("@")
        out.append(Row(at, name, sign + grain, kind, label, value, buckets))
    return out


def figures_of(rows: Iterable[Row]) -> Figures:
    """Counters and histograms summed over rows."""
    out = Figures()
    for row in rows:
        if row.buckets is None:
            series = (row.metric, row.data_type, row.label)
            out.counters[series] = out.counters.get(series, 0) + int(row.value)
        else:
            held = out.histograms.setdefault((row.metric, row.data_type), Histogram())
            held.merge(Histogram.from_json(row.buckets, row.value))
    return out


def open_minutes() -> dict[dt.datetime, Figures]:
    """The latest minutes as Redis holds them, where something was written since they were carried over; none while it is away."""
    try:
        last = int(inspect.redis_time() // 60)
        written = inspect.minutes_written(range(last - RECENT, last + 1))
        return {minute_at(m): Figures.parse(inspect.minute_fields(m)) for m, w in written.items() if w.writes > w.rolled}
    except RedisAway:
        return {}


def read(
    metrics: Sequence[str],
    spans: Iterable[float],
    now: dt.datetime | None = None,
    *,
    data_types: Sequence[str] | None = None,
) -> dict[float, Figures]:
    """Figures over the last so many seconds, for each span asked for."""
    now = now or timezone.now()
    covers = {span: cover(span, now) for span in spans}
    # Redis first: what is carried over between the two reads is then seen in the database, not lost.
    unrolled = open_minutes()
    parts = {part for found in covers.values() for part in found}
    rows = fetch(parts | _minutes(unrolled), metrics, data_types=data_types)
    missing = _missing(unrolled, rows, metrics, data_types)
    out = {}
    for span, found in covers.items():
        figures = figures_of(row for row in rows if row.within(found))
        for at, more in missing.items():
            if found[0].start <= at < found[-1].end:
                figures.merge(more)
        out[span] = figures
    return out


def _minutes(unrolled: Iterable[dt.datetime]) -> set[Part]:
    return {Part("", at, at + A_MINUTE) for at in unrolled}


def _missing(
    unrolled: dict[dt.datetime, Figures], rows: list[Row], metrics: Sequence[str], data_types: Sequence[str] | None
) -> dict[dt.datetime, Figures]:
    """What Redis holds of these minutes on top of their rows."""
    return {
        at: _keep(figures.minus(figures_of(r for r in rows if not r.grain and r.at == at)), metrics, data_types)
        for at, figures in unrolled.items()
    }


def _keep(figures: Figures, metrics: Sequence[str], data_types: Sequence[str] | None) -> Figures:
    def wanted(metric: str, kind: str) -> bool:
        return metric in metrics and (data_types is None or kind in data_types)

    return Figures(
        {key: n for key, n in figures.counters.items() if wanted(key[0], key[1])},
        {key: h for key, h in figures.histograms.items() if wanted(*key)},
    )


def series(
    metrics: Sequence[str],
    seconds: float,
    step: dt.timedelta,
    now: dt.datetime | None = None,
    *,
    data_types: Sequence[str] | None = None,
) -> list[tuple[dt.datetime, Figures]]:
    """Figures by step (whole minutes, hours or days) over the last `seconds`, oldest first, empty steps included: one query."""
    now = now or timezone.now()
    grain = DAY if step % A_DAY == dt.timedelta() else HOUR if step % AN_HOUR == dt.timedelta() else ""
    start = _floor(now - dt.timedelta(seconds=seconds), step).astimezone(dt.UTC)
    unrolled = open_minutes()
    part = Part(grain, start, now + step)
    rows = fetch({part} | _minutes(unrolled), metrics, data_types=data_types)
    by_step: dict[dt.datetime, list[Row]] = {}
    for row in rows:
        if row.within([part]):
            by_step.setdefault(_floor(row.at, step), []).append(row)
    missing: dict[dt.datetime, Figures] = {}
    for at, more in _missing(unrolled, rows, metrics, data_types).items():
        missing.setdefault(_floor(at, step), Figures()).merge(more)
    out = []
    at = start
    while at <= now:
        out.append((at, figures_of(by_step.get(at, ())).merge(missing.get(at, Figures()))))
        at += step
    return out
