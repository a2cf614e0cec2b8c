"""A curve as an SVG picture, by hand: log axes, points and lines, slopes in the legend. Readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from tests.benchmarks.curves.core import Curve, told

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 54, 60
# Mid-tones with about 4:1 on white and on near-black; the marks differ too, for those who see no colours.
COLOURS = ("#2f80d0", "#c8611a", "#2f9e62", "#b0509c", "#8a7a1c")
GREY = "#808080"
FONT = "font-family='system-ui,sans-serif'"


class Axis:
    """One axis: from values to pixels. Logarithmic, or linear where `linear` (then from 0)."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, linear: bool = False) -> None:
        self.start, self.end, self.linear = start, end, linear
        if linear:
            low, high = min([0.0, *values]), max(values) or 1.0
            self.low, self.high = low, high + 0.05 * (high - low)
        else:
            low, high = math.log10(min(values)), math.log10(max(values))
            # At least a decade: a flat line is to look flat.
            missing = max(0.0, 1.0 - (high - low))
            self.low, self.high = low - missing / 2 - 0.06, high + missing / 2 + 0.06

    def at(self, value: float) -> float:
        """The pixel of a value."""
        place = value if self.linear else math.log10(value)
        return self.start + (self.end - self.start) * (place - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[float]:
        """Where a line and a figure stand: 1, 10, 100; with 2 and 5 between where that is few."""
        if self.linear:
            step = 10 ** math.floor(math.log10(self.high or 1.0))
            step = next(s for s in (step / 5, step / 2, step, step * 2) if self.high / s <= 6.5)
            return [step * n for n in range(math.ceil(self.low / step), int(self.high / step) + 1)]
        for within in ((1,), (1, 3), (1, 2, 5)):
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            found = [m * 10.0**d for d in decades for m in within if self.low <= math.log10(m * 10.0**d) <= self.high]
            if len(found) >= 3:
                break
        return found


def short(value: float) -> str:
    """A figure for an axis: 1k, 1M, 0.05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def draw(curve: Curve, *, linear: bool = False) -> str:
    """The picture. `linear`: for a course over time, without slopes."""
    points = [point for one in curve.series for point in one.points if linear or min(point) > 0]
    across = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, linear=linear)
    legend = HEIGHT - BOTTOM
    up = Axis([y for _, y in points], legend, TOP + 18 * len(curve.series), linear=linear)
    size = f"viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT} font-size='12' fill='{GREY}' role='img'>",
        f"<title>{escape(curve.title)}</title>",
        f"<text x='{LEFT}' y='24' font-size='15' font-weight='600'>{escape(curve.title)}</text>",
        *_grid(across, up, curve),
    ]
    for n, one in enumerate(curve.series):
        colour = COLOURS[n % len(COLOURS)]
        places = [(across.at(x), up.at(y)) for x, y in one.points if linear or min(x, y) > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        if not linear:
            lines += [_mark(n, x, y, colour) for x, y in places]
        at = TOP - 8 + 18 * n
        lines.append(_mark(n, LEFT + 12, at - 4, colour))
        name = one.name if linear else f"{one.name}: {told(one.slope)}"
        lines.append(f"<text x='{LEFT + 24}' y='{at}' fill='{colour}' font-weight='600'>{escape(name)}</text>")
    return "\n".join([*lines, "</svg>", ""])


def _grid(across: Axis, up: Axis, curve: Curve) -> Iterator[str]:
    top, bottom = up.end, up.start
    for x in across.ticks():
        at = across.at(x)
        yield f"<path d='M{at:.1f} {top:.1f}V{bottom}' stroke='{GREY}' stroke-opacity='.25'/>"
        yield f"<text x='{at:.1f}' y='{bottom + 18}' text-anchor='middle'>{short(x)}</text>"
    for y in up.ticks():
        at = up.at(y)
        yield f"<path d='M{LEFT} {at:.1f}H{WIDTH - RIGHT}' stroke='{GREY}' stroke-opacity='.25'/>"
        yield f"<text x='{LEFT - 8}' y='{at + 4:.1f}' text-anchor='end'>{short(y)}</text>"
    yield f"<path d='M{LEFT} {top:.1f}V{bottom}H{WIDTH - RIGHT}' fill='none' stroke='{GREY}'/>"
    yield f"<text x='{(LEFT + WIDTH - RIGHT) / 2}' y='{HEIGHT - 16}' text-anchor='middle'>{escape(curve.x)}</text>"
    middle = (top + bottom) / 2
    yield f"<text transform='translate(18 {middle:.1f}) rotate(-90)' text-anchor='middle'>{escape(curve.y)}</text>"


def _mark(n: int, x: float, y: float, colour: str) -> str:
    if n % 3 == 0:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'/>"
    if n % 3 == 1:
        return f"<rect x='{x - 4:.1f}' y='{y - 4:.1f}' width='8' height='8' fill='{colour}'/>"
    return f"<path d='M{x:.1f} {y - 5:.1f}l5 9h-10z' fill='{colour}'/>"
