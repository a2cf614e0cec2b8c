"""Charts as plain figures that a template turns into SVG: paths and bars in a box of 100 × 40, labels as text beside it. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WIDTH, HEIGHT = 100.0, 40.0
Format = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One row of values, None where there is none. `css` names its colour and stroke."""

    name: str
    css: str
    values: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A rectangle of the drawing, with the text that a pointer resting on it shows."""

    x: float
    y: float
    width: float
    height: float
    css: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What the template draws: `paths` and `dots` (series, path data; dots are points without a neighbour), `bars`, tick labels,
    and the table behind it all."""

    slug: str
    title: str
    summary: str
    series: Sequence[Series]
    labels: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    y_ticks: Sequence[tuple[float, str]]
    paths: Sequence[tuple[Series, str]] = ()
    dots: Sequence[tuple[Series, str]] = ()
    bars: Sequence[Bar] = ()
    empty: bool = field(default=False)

    @property
    def x_ticks(self) -> Sequence[str]:
        """The first, the middle and the last label."""
        if len(self.labels) < 3:
            return self.labels
        return (self.labels[0], self.labels[len(self.labels) // 2], self.labels[-1])


def nice(top: float) -> float:
    """The least of 1, 2, 2.5, 5 × 10ⁿ that is not below; 1 for next to nothing."""
    if top < 1e-12:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= top * (1 - 1e-9))


def _values(series: Sequence[Series]) -> list[float]:
    return [value for one in series for value in one.values if value is not None]


def _table(series: Sequence[Series], labels: Sequence[str], text: Format) -> list[tuple[str, Sequence[str]]]:
    return [
        (label, ["–" if one.values[n] is None else text(one.values[n] or 0.0) for one in series])
        for n, label in enumerate(labels)
    ]


def stacked(slug: str, title: str, summary: str, series: Sequence[Series], labels: Sequence[str], text: Format) -> Chart:
    """Bars, one a label, the series on top of each other."""
    tops = [sum(one.values[n] or 0.0 for one in series) for n in range(len(labels))]
    top = nice(max(tops, default=0.0))
    slot = WIDTH / max(1, len(labels))
    bars = []
    for n, label in enumerate(labels):
        base = HEIGHT
        for one in series:
            value = one.values[n] or 0.0
            if value <= 0:
                continue
            height = value / top * HEIGHT
            base -= height
            shown = f"{label}: {one.name} {text(value)}"
            box = Bar(
                x=round(n * slot + slot * 0.12, 3),
                y=round(base, 3),
                width=round(slot * 0.76, 3),
                height=round(height, 3),
                css=one.css,
                title=shown,
            )
            bars.append(box)
    ticks = [(0.0, text(top)), (HEIGHT / 2, text(top / 2)), (HEIGHT, text(0.0))]
    rows = _table(series, labels, text)
    return Chart(
        slug=slug,
        title=title,
        summary=summary,
        series=series,
        labels=labels,
        rows=rows,
        y_ticks=ticks,
        bars=bars,
        empty=not any(tops),
    )


def lines(
    slug: str,
    title: str,
    summary: str,
    series: Sequence[Series],
    labels: Sequence[str],
    text: Format,
    axis: Format,
    *,
    floor: float,
) -> Chart:
    """Lines over a logarithmic scale of whole decades from `floor`; for durations, which spread over many."""
    values = [value for value in _values(series) if value > 0]
    low = math.floor(math.log10(max(floor, min(values, default=floor))) + 1e-9)
    high = math.ceil(math.log10(max(values, default=floor * 10)) - 1e-9)
    high = max(high, low + 1)
    if high - low > 3 and (high - low) % 2:
        high += 1  # so that every second decade has a label, the first and the last too

    def y(value: float) -> float:
        place = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return round(HEIGHT * (1 - min(1.0, place)), 3)

    step = WIDTH / max(1, len(labels) - 1)
    ticks = [(y(10.0**power), axis(10.0**power)) for power in range(high, low - 1, -2 if high - low > 3 else -1)]
    drawn = [(one, *_path(one.values, step, y)) for one in series]
    rows = _table(series, labels, text)
    return Chart(
        slug=slug,
        title=title,
        summary=summary,
        series=series,
        labels=labels,
        rows=rows,
        y_ticks=ticks,
        paths=[(one, path) for one, path, _ in drawn],
        dots=[(one, dots) for one, _, dots in drawn],
        empty=not values,
    )


def _path(values: Sequence[float | None], step: float, y: Callable[[float], float]) -> tuple[str, str]:
    """Path data of the lines, and of the points that have no neighbour to draw a line to."""
    joined: list[str] = []
    dots: list[str] = []
    pen_down = False
    for n, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        place = f"{round(n * step, 3):g} {y(value):g}"
        if not pen_down and (n + 1 == len(values) or values[n + 1] is None):
            dots.append(f"M{place}h0.01")
        else:
            joined.append(f"{'L' if pen_down else 'M'}{place}")
            pen_down = True
    return "".join(joined), "".join(dots)


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A tick of the time line's strip."""

    x: float
    top: float
    bottom: float
    kind: str
    title: str


def strip(happenings: Sequence[tuple[str, str, str]], now: dt.datetime) -> list[Dot]:
    """Happenings (ISO 8601, kind, text) as ticks from the oldest at the left to now at the right."""
    moments = [dt.datetime.fromisoformat(at) for at, _kind, _text in happenings]
    if not moments:
        return []
    first = min(moments)
    whole = max(1.0, (now - first).total_seconds())
    return [
        Dot(
            x=round(1 + 98 * min(1.0, (at - first).total_seconds() / whole), 2),
            top=1.0 if kind in ("built", "failed") else 3.0,
            bottom=9.0 if kind in ("built", "failed") else 7.0,
            kind=kind,
            title=f"{at:%H:%M:%S} {text}",
        )
        for at, (_iso, kind, text) in zip(moments, happenings, strict=True)
    ]
