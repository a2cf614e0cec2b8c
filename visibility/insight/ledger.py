"""What was saved: builds not made, and the worker seconds that they would have cost.

The yardstick is one build for each change of each resource. What falls short of it:

| counted | what |
|---|---|
| merged | changes that joined a recompute already waiting |
| marked | marks written instead of a build, one a resource or scope: nobody watched, or a limit was met |
| put off | claimed, then marked instead of built because nobody watched any more |
| caught up | taken off again: marked resources that were built later after all, at most as many as were marked |

Changes that a type drops while hidden are told and not counted: by its own word nobody would have built them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from visibility.insight.metrics import Figures

METRICS = (
    "gate_hot", "gate_cold", "gate_dropped", "gate_deduped", "saved_builds", "builds", "build_seconds", "freshness_resolved",
    "reads",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """An account of a span, of one data type or of many. A scope's mark counts once, however many resources it stands for, so
    that `saved` is the least that was saved. Seconds are None where no build was made that tells what one takes."""

    data_type: str
    hot: int
    marked: int
    merged: int
    dropped: int
    put_off: int
    made: int
    caught_up: int
    build_seconds: float
    saved_seconds: float | None

    @property
    def changes(self) -> int:
        """What the gate decided, one for each resource or scope."""
        return self.hot + self.marked + self.dropped

    @property
    def hot_share(self) -> float | None:
        """The share of changes that found somebody watching; None where there were none."""
        return self.hot / self.changes if self.changes else None

    @property
    def saved(self) -> int:
        """Builds that one for each change would have made and that were not; see the module."""
        return self.merged + self.marked + self.put_off - self.caught_up

    @property
    def saved_share(self) -> float | None:
        """The share of builds saved; None where nothing happened."""
        whole = self.saved + self.made
        return self.saved / whole if whole else None

    @property
    def seconds_each(self) -> float | None:
        return self.build_seconds / self.made if self.made else None


def ledger(figures: Figures, data_types: Iterable[str]) -> list[Ledger]:
    """The account of each data type, from figures that hold `METRICS`."""
    return [_account(figures, name) for name in data_types]


def _account(figures: Figures, name: str) -> Ledger:
    marked, put_off = figures.total("gate_cold", name, ""), figures.total("saved_builds", name)
    merged, made = figures.total("gate_deduped", name), figures.total("builds", name)
    caught_up = min(figures.histogram("freshness_resolved", name).count, marked + put_off)
    seconds = figures.histogram("build_seconds", name).total
    return Ledger(
        data_type=name,
        hot=figures.total("gate_hot", name, ""),
        marked=marked,
        merged=merged,
        dropped=figures.total("gate_dropped", name),
        put_off=put_off,
        made=made,
        caught_up=caught_up,
        build_seconds=seconds,
        saved_seconds=(merged + marked + put_off - caught_up) * seconds / made if made else None,
    )


def together(accounts: Iterable[Ledger]) -> Ledger:
    """The sum of accounts: each figure of it is the sum of theirs, so that a total never tells another story than its rows."""
    rows = list(accounts)
    counts = ("hot", "marked", "merged", "dropped", "put_off", "made", "caught_up")
    known = [row.saved_seconds for row in rows if row.saved_seconds is not None]
    return Ledger(
        data_type="",
        **{name: sum(getattr(row, name) for row in rows) for name in counts},
        build_seconds=sum(row.build_seconds for row in rows),
        saved_seconds=sum(known) if known else None,
    )
