"""Curves and figures, and what is reckoned from them. Nothing here knows Django, so that it can be tested alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.benchmarks.harness import number

Point = tuple[float, float]


def slope(points: Sequence[Point]) -> float | None:
    """The exponent b of y = a · x^b, by least squares over the logarithms; None for fewer than two x, or without logarithms."""
    if len({x for x, _ in points}) < 2 or any(x <= 0 or y <= 0 for x, y in points):
        return None
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def rise(points: Sequence[Point]) -> float:
    """How much y grows for one x more: least squares, without logarithms. 0 for fewer than two x."""
    mean_x = sum(x for x, _ in points) / max(1, len(points))
    mean_y = sum(y for _, y in points) / max(1, len(points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def by_turns(sides: dict[float, Callable[[], float]], rounds: int) -> list[Point]:
    """Run all sides by turns, there and back, and answer the median of what each answered, by its x."""
    found: dict[float, list[float]] = {x: [] for x in sides}
    for n in range(rounds):
        for x in list(sides) if n % 2 == 0 else list(sides)[::-1]:
            found[x].append(sides[x]())
    return [(x, median(values)) for x, values in found.items()]


@dataclass(kw_only=True)
class Series:
    """One line of a curve."""

    name: str
    points: list[Point]

    @property
    def slope(self) -> float | None:
        return slope(self.points)


@dataclass(kw_only=True)
class Curve:
    """Series over one x. `x`, `y`: what the axes say, with the unit. `how`: one sentence on what was measured."""

    name: str
    title: str
    x: str
    y: str
    how: str
    series: list[Series] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "title": self.title, "x": self.x, "y": self.y, "how": self.how,
            "series": [
                {"name": one.name, "slope": _tidy(one.slope), "points": [[x, _tidy(y)] for x, y in one.points]}
                for one in self.series
            ],
        }  # fmt: skip


@dataclass(kw_only=True)
class Figures:
    """Rows without an x: `(what, value, unit, note)`."""

    name: str
    title: str
    how: str
    rows: list[tuple[str, float, str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        rows = [{"what": what, "value": _tidy(value), "unit": unit, "note": note} for what, value, unit, note in self.rows]
        return {"name": self.name, "title": self.title, "how": self.how, "rows": rows}


Result = Curve | Figures


def result_of(row: dict[str, Any]) -> Result:
    """The curve or figures that said this JSON."""
    if "rows" in row:
        rows = [(one["what"], one["value"], one["unit"], one["note"]) for one in row["rows"]]
        return Figures(name=row["name"], title=row["title"], how=row["how"], rows=rows)
    series = [Series(name=one["name"], points=[(x, y) for x, y in one["points"]]) for one in row["series"]]
    return Curve(name=row["name"], title=row["title"], x=row["x"], y=row["y"], how=row["how"], series=series)


def merge(results: Iterable[Result]) -> list[Result]:
    """Results of the same name become one: another database, or another server, is another series."""
    out: dict[str, Result] = {}
    for one in results:
        known = out.setdefault(one.name, one)
        if isinstance(one, Curve) and isinstance(known, Curve) and known is not one:
            known.series += one.series
        elif isinstance(one, Figures) and isinstance(known, Figures) and known is not one:
            known.rows += one.rows
    return list(out.values())


def told(value: float | None) -> str:
    """A slope for people."""
    return "no slope" if value is None else f"slope {value + 0.0:.2f}".replace("-0.00", "0.00")


def text(result: Result) -> str:
    """A result for a terminal."""
    lines = ["", f"{result.name}: {result.title}", f"  {result.how}"]
    if isinstance(result, Figures):
        width = max((len(what) for what, *_ in result.rows), default=0)
        lines += [f"  {what:<{width}}  {number(value):>10} {unit:<6} {note}".rstrip() for what, value, unit, note in result.rows]
        return "\n".join(lines)
    for one in result.series:
        lines.append(f"  {one.name}: {told(one.slope)}   [{result.y}, over {result.x}]")
        lines.append("    " + "   ".join(f"{x:,.0f} → {number(y)}" for x, y in one.points))
    return "\n".join(lines)


def dump(results: Iterable[Result], about: dict[str, Any]) -> str:
    """All results as JSON, with what they were taken on."""
    return json.dumps({**about, "results": [one.as_json() for one in results]}, indent=1)


def _tidy(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
