"""What was saved: builds not made, and the worker seconds that they would have cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from visibility.insight.metrics import Figures

METRICS = (
    "gate_hot", "gate_cold", "gate_dropped", "gate_deduped", "gate_shed", "saved_builds", "builds", "build_seconds",
    "freshness_resolved", "reads",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """One data type's account of a span. A scope's mark counts once, however many resources it stands for, so that `saved` is
    the least that was saved."""

    data_type: str
    hot: int
    cold: int
    merged: int
    dropped: int
    put_off: int
    made: int
    resolved: int
    seconds_each: float

    @property
    def hot_share(self) -> float | None:
        """The share of changes that went the hot way; None where there were none."""
        total = self.hot + self.cold + self.dropped
        return self.hot / total if total else None

    @property
    def saved(self) -> int:
        """Builds that one job a change would have made and that were not: merged, marked and not read since, dropped, put off."""
        return max(0, self.merged + self.cold + self.dropped + self.put_off - self.resolved)

    @property
    def saved_seconds(self) -> float:
        return self.saved * self.seconds_each

    @property
    def saved_share(self) -> float | None:
        """The share of builds saved; None where nothing happened."""
        total = self.saved + self.made
        return self.saved / total if total else None


def ledger(figures: Figures, data_types: Iterable[str]) -> list[Ledger]:
    """The account of each data type, from figures that hold `METRICS`."""
    out = []
    for name in data_types:
        made = figures.total("builds", name)
        cost = figures.histogram("build_seconds", name).total
        out.append(
            Ledger(
                data_type=name,
                hot=figures.total("gate_hot", name, ""),
                cold=figures.total("gate_cold", name, ""),
                merged=figures.total("gate_deduped", name),
                dropped=figures.total("gate_dropped", name),
                put_off=figures.total("saved_builds", name),
                made=made,
                resolved=figures.histogram("freshness_resolved", name).count,
                seconds_each=cost / made if made else 0.0,
            )
        )
    return out
