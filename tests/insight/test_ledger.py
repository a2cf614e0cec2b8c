from __future__ import annotations

from visibility.insight.histogram import Histogram
from visibility.insight.ledger import Ledger, ledger, together
from visibility.insight.metrics import Figures


def account(kind: str = "feed", resolved: int = 0, seconds: float = 0.0, **counts: int) -> Ledger:
    figures = Figures({(name, kind, ""): n for name, n in counts.items()})
    if resolved:
        figures.histograms["freshness_resolved", kind] = Histogram.of([60.0] * resolved)
    if seconds:
        figures.histograms["build_seconds", kind] = Histogram.of([seconds])
    (found,) = ledger(figures, [kind])
    return found


def test_what_is_saved_is_what_was_marked_merged_and_put_off_less_what_was_built_later() -> None:
    found = account(resolved=30, seconds=2.0, gate_cold=95, gate_deduped=3, saved_builds=2, builds=10, gate_hot=5)
    assert (found.saved, found.caught_up) == (70, 30)
    assert found.saved_share == 70 / 80
    assert found.seconds_each == 0.2
    assert found.saved_seconds == 70 * 0.2
    assert found.hot_share == 5 / 100


def test_what_a_type_drops_is_told_and_not_counted_as_saved() -> None:
    found = account(gate_dropped=1000, builds=2, seconds=0.1)
    assert (found.dropped, found.saved, found.saved_seconds) == (1000, 0, 0.0)


def test_one_mark_of_a_scope_that_many_readers_catch_up_with_makes_no_debt() -> None:
    assert account(resolved=500, gate_cold=1, gate_deduped=4).saved == 4


def test_without_a_build_nobody_knows_what_one_takes() -> None:
    found = account(gate_cold=9)
    assert (found.saved, found.seconds_each, found.saved_seconds) == (9, None, None)
    assert account().saved_share is account().hot_share is None


def test_shadow_decisions_are_no_savings() -> None:
    figures = Figures({("gate_cold", "feed", "shadow"): 50, ("gate_hot", "feed", "shadow"): 5})
    (found,) = ledger(figures, ["feed"])
    assert (found.saved, found.changes) == (0, 0)


def test_a_total_is_the_sum_of_its_rows() -> None:
    rows = [
        account("feed", resolved=500, gate_cold=10, builds=4, seconds=0.4),
        account("badge", gate_cold=7, gate_deduped=2, builds=1, seconds=1.0),
        account("work", gate_dropped=80),
    ]
    whole = together(rows)
    assert whole.saved == sum(row.saved for row in rows) == 9
    assert whole.saved_seconds == sum(row.saved_seconds or 0 for row in rows) == 9.0
    assert together([]).saved_seconds is None
