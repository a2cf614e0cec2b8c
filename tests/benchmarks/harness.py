"""How two sides are compared, and what a bar says at its end. Nothing here knows Django, so that it can be tested alone.

Both sides run by turns, A B, B A, A B …, so that what else the machine does falls on both. Of each turn the ratio is taken;
what is reported is the median of these ratios, and as spread their quartiles.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Side = Callable[[], float]


@dataclass(frozen=True)
class Size:
    """How much a bar does: `factor` scales its amounts, `rounds` its turns. TINY shows only that it runs."""

    name: str
    factor: float
    rounds: int

    def n(self, amount: int, least: int = 1) -> int:
        """`amount` at this size."""
        return max(least, int(amount * self.factor))

    def times(self, rounds: int) -> int:
        """Turns, where a full run takes `rounds`."""
        return max(1, min(rounds, self.rounds))


SIZES = {size.name: size for size in (Size("tiny", 0.01, 1), Size("short", 0.25, 3), Size("full", 1.0, 1000))}


@dataclass(kw_only=True)
class Part:
    """One ratio of a bar and what it came from. `least`: the limit is a lower one. Spread: the quartiles of the turns' ratios."""

    what: str
    ratio: float
    limit: float
    against: str
    least: bool = False
    spread: tuple[float, float] | None = None
    database: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    counts: bool = True

    @property
    def holds(self) -> bool:
        return self.ratio >= self.limit if self.least else self.ratio <= self.limit

    @property
    def margin(self) -> float:
        """Above 1: by how much it holds; below: by how much it misses."""
        if self.least:
            return self.ratio / self.limit if self.limit else float("inf")
        return self.limit / self.ratio if self.ratio else float("inf")

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "database": self.database,
            "ratio": tidy(self.ratio),
            "limit": self.limit,
            "limit_is": "at least" if self.least else "at most",
            "holds": self.holds,
            "spread": None if self.spread is None else [tidy(one) for one in self.spread],
            "against": self.against,
            "counts": self.counts,
            "figures": {name: tidy(value) for name, value in self.figures.items()},
        }


def part_of(row: dict[str, Any]) -> Part:
    """The part that said this JSON."""
    spread = row["spread"]
    return Part(
        what=row["what"], ratio=row["ratio"], limit=row["limit"], against=row["against"], least=row["limit_is"] == "at least",
        spread=None if spread is None else (spread[0], spread[1]), database=row["database"], figures=row["figures"],
        counts=row["counts"],
    )  # fmt: skip


@dataclass(kw_only=True)
class Bar:
    """What one bar came to: the parts of all databases, or why it could not be measured."""

    name: str
    title: str
    parts: list[Part] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        judged = [part for part in self.parts if part.counts]
        return bool(judged) and not self.errors and all(part.holds for part in judged)

    @property
    def tightest(self) -> Part | None:
        """The part that speaks for the bar: the one that is nearest to its limit, or furthest over it."""
        return min((part for part in self.parts if part.counts), key=lambda part: part.margin, default=None)

    def as_json(self) -> dict[str, Any]:
        """The row of the bar; ratio and limit are those of its tightest part."""
        worst = self.tightest
        found = (
            worst.as_json() if worst else dict.fromkeys(("ratio", "limit", "limit_is", "spread", "what", "database", "against"))
        )
        return {
            "bar": self.name,
            "ratio": found["ratio"],
            "limit": found["limit"],
            "holds": self.holds,
            "title": self.title,
            **{name: found[name] for name in ("limit_is", "spread", "what", "database", "against")},
            "seconds": tidy(self.seconds),
            "versions": self.versions,
            "errors": self.errors,
            "parts": [part.as_json() for part in self.parts],
        }


def tidy(value: Any) -> Any:
    """Numbers with four digits that mean something."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Turns:
    """What each turn took on both sides, in seconds (or any other unit, the same on both).

    `cpu`: what it took of processor time in all processes concerned, which other work on the machine changes less.
    """

    ours: list[float]
    floor: list[float]
    cpu: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Ours by theirs: how many times the floor's cost."""
        return [a / b for a, b in zip(self.ours, self.floor, strict=True)]

    def cost(self, what: str, limit: float, against: str, **figures: Any) -> Part:
        """A part that asks for at most `limit` times the floor's cost."""
        return self._part(self.ratios, what, limit, against, least=False, figures=figures)

    def gain(self, what: str, limit: float, against: str, **figures: Any) -> Part:
        """A part that asks to be at least `limit` times as fast as the peer."""
        return self._part([1 / ratio for ratio in self.ratios], what, limit, against, least=True, figures=figures)

    def _part(
        self, ratios: Sequence[float], what: str, limit: float, against: str, *, least: bool, figures: dict[str, Any]
    ) -> Part:
        own: dict[str, Any] = {"ours": statistics.median(self.ours), "theirs": statistics.median(self.floor)}
        if self.cpu and all(a > 0 and b > 0 for a, b in self.cpu):
            own["cpu_ratio"] = statistics.median(b / a if least else a / b for a, b in self.cpu)
        own["turns"] = len(ratios)
        return Part(
            what=what, ratio=statistics.median(ratios), limit=limit, against=against, least=least, spread=quartiles(ratios),
            figures={**own, **figures},
        )  # fmt: skip


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The values that a quarter is below, and above."""
    ordered = sorted(values)
    if len(ordered) < 3:
        return ordered[0], ordered[-1]
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, high


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(percent * len(ordered)) // 100) - 1))]


def at_percentile(
    ours: Sequence[float], floor: Sequence[float], percent: float, what: str, limit: float, against: str, **figures: Any
) -> Part:
    """A part that compares the percentiles of two sets of samples. Spread: the quartiles over 200 resamples of both."""
    ratio = percentile(ours, percent) / percentile(floor, percent)
    chance = random.Random(5)
    again = [
        percentile(chance.choices(ours, k=len(ours)), percent) / percentile(chance.choices(floor, k=len(floor)), percent)
        for _ in range(200)
    ]
    own = {"ours": percentile(ours, percent), "theirs": percentile(floor, percent), "samples": len(ours)}
    return Part(what=what, ratio=ratio, limit=limit, against=against, spread=quartiles(again), figures={**own, **figures})


def by_turns(
    ours: Side,
    floor: Side,
    rounds: int,
    *,
    warm: int = 1,
    seconds: float = 20.0,
    before: tuple[Callable[[], object] | None, Callable[[], object] | None] = (None, None),
    meter: Callable[[], float] | None = None,
    units: tuple[int, int] = (1, 1),
) -> Turns:
    """Run both sides by turns and keep what they took.

    Args:
        ours, floor: run once and answer the seconds that count.
        rounds: turns, each of both sides; fewer where `seconds` are over (never less than three, if so many were asked for).
        warm: turns before that, which do not count.
        before: called before each side, untimed.
        meter: answers the processor time used so far; `units` is by what each side's is divided.
    """
    turns = Turns([], [])
    ends = time.monotonic() + seconds
    for n in range(-warm, rounds):
        if n >= min(3, rounds) and time.monotonic() > ends:
            break
        used = [0.0, 0.0]
        for which in (0, 1) if n % 2 == 0 else (1, 0):
            prepare = before[which]
            if prepare is not None:
                prepare()
            gc.collect()
            begun = meter() if meter is not None else 0.0
            took = (ours, floor)[which]()
            used[which] = (meter() - begun) / units[which] if meter is not None else 0.0
            if n >= 0:
                (turns.ours, turns.floor)[which].append(took)
        if n >= 0 and meter is not None:
            turns.cpu.append((used[0], used[1]))
    return turns


def timed(work: Callable[[], object], times: int = 1) -> Side:
    """A side that does `work` so many times and answers what one took."""

    def side() -> float:
        begun = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - begun) / times

    return side


def say(text: str) -> None:
    """A line of progress, to stderr: stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


def number(value: Any) -> str:
    """A figure for people."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(bars: Iterable[Bar]) -> str:
    """All bars for a terminal: a line a part, and of each the figures below it."""
    lines: list[str] = []
    for bar in bars:
        verdict = "holds" if bar.holds else "not measured" if not bar.parts else "MISSED"
        lines += ["", f"{bar.name:<4} {verdict:<8} {bar.title}  ({bar.seconds:.0f} s)"]
        for part in bar.parts:
            sign = "≥" if part.least else "≤"
            spread = f" [{number(part.spread[0])} … {number(part.spread[1])}]" if part.spread else ""
            mark = ("ok " if part.holds else "NO ") if part.counts else "   "
            where = f"{part.database}: " if part.database else ""
            lines.append(f"     {mark}{number(part.ratio):>8} {sign} {number(part.limit):<6}{spread}  {where}{part.what}")
            lines.append(f"              against {part.against}")
            if part.figures:
                lines.append("              " + ", ".join(f"{name} {number(value)}" for name, value in part.figures.items()))
        lines += [f"     ! {error}" for error in bar.errors]
        if bar.versions:
            lines.append("     on " + ", ".join(f"{name} {version}" for name, version in bar.versions.items()))
    return "\n".join(lines)


def dump(bars: Iterable[Bar]) -> str:
    """All bars as JSON: a list of rows."""
    return json.dumps([bar.as_json() for bar in bars], indent=2)
