"""What a replay says at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50, 95, 99)
TYPES = ("feed", "badge", "unread", "room")


@dataclass
class Outcome:
    """What a replay found. Times are seconds; `samples` are (data type, freshness)."""

    messages: int = 0
    stale_reads: int = 0
    reads: int = 0
    stale: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
    compared: int = 0
    settled: float = 0.0
    late: float = 0.0
    killed: int = 0
    work: dict[str, dict[str, int]] = field(default_factory=dict)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(percent * len(ordered)) // 100) - 1))]


def freshness(values: Sequence[float]) -> dict[str, float | None]:
    """Seconds from a change's commit to the frame at the watcher's socket."""
    found = {f"p{percent}": percentile(values, percent) for percent in PERCENTILES}
    return {name: None if value is None else round(value, 4) for name, value in found.items()}


def figures(outcome: Outcome, samples: Mapping[str, Sequence[float]], seconds: float) -> dict[str, Any]:
    """The JSON of a replay. `work_saved` is the share of a fan-out to everybody that was not computed, 0 to 1."""
    done, everybody = (sum(outcome.work[side].values()) for side in ("done", "everybody"))
    return {
        "messages": outcome.messages,
        "work_done": done,
        "work_everybody": everybody,
        "work_saved": round(1 - done / everybody, 4) if everybody else 0.0,
        "stale_reads": outcome.stale_reads,
        "last_frame_equal": not outcome.unequal,
        "freshness": freshness([value for values in samples.values() for value in values]),
        "seconds": round(seconds, 1),
    }


def text(found: Mapping[str, Any], outcome: Outcome, samples: Mapping[str, Sequence[float]], more: Mapping[str, Any]) -> str:
    """The same for people, with what stands behind it."""
    lines = [
        "",
        f"  messages           {found['messages']:,} in {found['seconds']:g} s",
        f"  people             {more['people']:,}, who opened {more['sockets']:,} sockets",
        f"  computed           {found['work_done']:,} resources",
        f"  to everybody       {found['work_everybody']:,} resources",
        f"  work saved         {100 * found['work_saved']:.1f} %",
        f"  stale reads        {found['stale_reads']} of {outcome.reads:,} sampled",
        f"  last frames        {_frames(outcome)}",
        "",
        "  freshness          p50        p95        p99        changes shown",
    ]
    for name in ("all", *TYPES):
        values = [v for vs in samples.values() for v in vs] if name == "all" else samples.get(name, [])
        cells = "".join(f"{_seconds(value):<11}" for value in freshness(values).values())
        lines.append(f"  {name:<19}{cells}{len(values):,}")
    lines.append("")
    if outcome.killed:
        lines.append(f"  a worker (process {outcome.killed}) was killed halfway")
    if outcome.late > 1:
        lines.append(f"  the machine was {outcome.late:.0f} s behind the plan, so the replay took that much longer")
    if more["cut_off"]:
        lines.append(f"  {more['cut_off']:,} changes were not shown before their watcher left, and are in no percentile")
    lines += [f"  sockets: {count} × {what}" for what, count in more["problems"].items()]
    lines += [f"  STALE   {one}" for one in outcome.stale[:10]]
    lines += [f"  DIFFERS {one}" for one in outcome.unequal[:10]]
    return "\n".join(lines).rstrip() + "\n"


def _frames(outcome: Outcome) -> str:
    if outcome.unequal:
        return f"{len(outcome.unequal)} of {outcome.compared:,} differ from the source after {outcome.settled:.0f} s"
    return f"all {outcome.compared:,} equal the source, {outcome.settled:.1f} s after the last message"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
