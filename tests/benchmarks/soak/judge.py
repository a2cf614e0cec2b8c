"""When a series of samples grows. Nothing here knows Django, so that it can be tested alone.

The rule, over the second half of the samples (the first is for warming up): a series **grows** if its line by least squares rises
by more than three standard errors of its slope, and over that half by more than what does not matter: 2 % of its level, and
`least` of its unit. A series whose `least` is None must be 0 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.curves.core import Point, rise
from tests.benchmarks.harness import number

ERRORS, SHARE = 3.0, 0.02


@dataclass(kw_only=True)
class Verdict:
    """What became of one series. `per_hour`: its slope in the second half; `noise`: three standard errors of it, per hour."""

    name: str
    unit: str
    first: float
    last: float
    per_hour: float
    noise: float
    grows: bool

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in vars(self).items()}


def second_half(samples: Sequence[Point]) -> list[Point]:
    """Those later than the middle of the time."""
    if not samples:
        return []
    middle = (samples[0][0] + samples[-1][0]) / 2
    return [one for one in samples if one[0] >= middle]


def standard_error(samples: Sequence[Point]) -> float:
    """Of the slope of their line; 0 where they lie on it, infinite for fewer than three."""
    if len(samples) < 3:
        return math.inf
    slope = rise(samples)
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in samples)
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return math.sqrt(rest / (len(samples) - 2) / spread) if spread else math.inf


def judge(name: str, unit: str, samples: Sequence[Point], least: float | None) -> Verdict:
    """Samples are `(seconds, value)`."""
    half = second_half(samples)
    first, last = samples[0][1], samples[-1][1]
    slope, error = rise(half), standard_error(half)
    took = half[-1][0] - half[0][0] if half else 0.0
    level = sum(y for _, y in half) / max(1, len(half))
    grown = slope * took
    grows = slope > ERRORS * error and grown > SHARE * level and grown > (least or 0.0)
    if least is None:
        grows = any(y for _, y in samples)
    noise = ERRORS * error * 3600
    return Verdict(name=name, unit=unit, first=first, last=last, per_hour=slope * 3600, noise=noise, grows=grows)


def table(verdicts: Sequence[Verdict]) -> str:
    """A line a series."""
    width = max([len(one.name) for one in verdicts], default=4)
    lines = [f"{'':<{width}}  {'first':>10}  {'last':>10}  {'an hour':>10}  {'noise ±':>10}"]
    for one in verdicts:
        figures = "  ".join(f"{number(round(value, 2)):>10}" for value in (one.first, one.last, one.per_hour, one.noise))
        lines.append(f"{one.name:<{width}}  {figures}  {one.unit:<5} {'GROWS' if one.grows else 'no growth'}")
    return "\n".join(lines)
