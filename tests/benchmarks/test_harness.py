"""The arithmetic of the benchmarks, without servers; and the bars with sockets at the size that shows only that they run."""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.benchmarks.bars import BARS
from tests.benchmarks.harness import (
    SIZES,
    Bar,
    Part,
    Turns,
    at_percentile,
    by_turns,
    dump,
    number,
    part_of,
    percentile,
    quartiles,
    table,
    tidy,
    timed,
)
from tests.support.servers import ROOT

# Section 6 of the design. What B8 allows depends on how long it ran; B11 asks for no stale read and for equal last frames.
LIMITS = {
    "B1": {1.5, 1.0}, "B2": {3.0}, "B3": {50.0, 150.0}, "B4": {1.5}, "B5": {1.5, 100.0}, "B6": {1.2}, "B7": {1.5, 1.0},
    "B8": set(), "B9": {1.0}, "B10": {2.2}, "B11": {0.0, 1.0},
}  # fmt: skip
SOCKETS = ("B4", "B6", "B9")


def part(ratio: float, limit: float = 1.5, **more: Any) -> Part:
    return Part(what="work", ratio=ratio, limit=limit, against="the floor", **more)


def bar(*parts: Part, **more: Any) -> Bar:
    return Bar(name="B0", title="a bar", parts=list(parts), **more)


def test_a_size_scales_amounts_and_turns() -> None:
    assert (SIZES["full"].n(1_000), SIZES["short"].n(1_000), SIZES["tiny"].n(1_000), SIZES["tiny"].n(10, 5)) == (
        1_000,
        250,
        10,
        5,
    )
    assert (SIZES["full"].times(25), SIZES["short"].times(25), SIZES["tiny"].times(25)) == (25, 3, 1)


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_percentiles_are_nearest_rank(percent: float, expected: int) -> None:
    values = list(range(1, 101))
    assert percentile(values[::-1], percent) == expected


def test_percentiles_of_few() -> None:
    assert (percentile([3.0], 99), percentile([1.0, 2.0], 50), percentile([1.0, 2.0], 51)) == (3.0, 1.0, 2.0)


def test_quartiles() -> None:
    assert quartiles([4, 1, 3, 2, 5]) == (2, 4)
    assert quartiles([2, 1]) == (1, 2)
    assert quartiles([7]) == (7, 7)


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """`by_turns` collects garbage before each side: in a process as large as pytest's, that is most of what these tests take."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def test_turns_change_who_begins_and_do_not_count_the_warm_ones() -> None:
    order: list[str] = []
    ours, theirs = itertools.count(10), itertools.count(20)

    def side(name: str, took: itertools.count[int]) -> float:
        order.append(name)
        return float(next(took))

    turns = by_turns(
        lambda: side("A", ours), lambda: side("B", theirs), 3, warm=1,
        before=(lambda: order.append("a"), lambda: order.append("b")), meter=itertools.count().__next__, units=(1, 2),
    )  # fmt: skip
    assert "".join(order) == "bBaAaAbBbBaAaAbB"
    assert (turns.ours, turns.floor) == ([11, 12, 13], [21, 22, 23])
    assert turns.cpu == [(1, 0.5)] * 3


def test_turns_end_when_the_time_is_over_but_not_before_three() -> None:
    turns = by_turns(lambda: 1.0, lambda: 2.0, 1_000, seconds=0)
    assert len(turns.ours) == len(turns.floor) == 3
    assert len(by_turns(lambda: 1.0, lambda: 2.0, 2, seconds=0).ours) == 2


def test_a_cost_is_the_median_of_the_turns_ratios() -> None:
    turns = Turns([2.0, 3.0, 40.0], [1.0, 1.0, 2.0], [(2.0, 1.0), (3.0, 1.0), (4.0, 1.0)])
    found = turns.cost("work", 2.5, "the floor", extra=7)
    assert (found.ratio, found.limit, found.least, found.holds) == (3.0, 2.5, False, False)
    assert found.spread == (2.5, 11.5)
    assert found.figures == {"ours": 3.0, "theirs": 1.0, "cpu_ratio": 3.0, "turns": 3, "extra": 7}


def test_a_gain_is_how_many_times_as_fast() -> None:
    found = Turns([1.0, 1.0, 1.0], [50.0, 60.0, 70.0], [(1.0, 50.0)] * 3).gain("work", 50, "the peer")
    assert (found.ratio, found.least, found.holds) == (pytest.approx(60), True, True)
    assert found.figures["cpu_ratio"] == 50


def test_samples_are_compared_at_a_percentile() -> None:
    ours, floor = [float(n) for n in range(1, 101)], [n / 2 for n in range(1, 101)]
    found = at_percentile(ours, floor, 99, "frames", 1.5, "a job", more=1)
    assert (found.ratio, found.holds) == (2.0, False)
    assert found.figures == {"ours": 99.0, "theirs": 49.5, "samples": 100, "more": 1}
    assert found.spread is not None
    assert found.spread[0] <= 2.0 <= found.spread[1]
    assert at_percentile(ours, floor, 99, "frames", 1.5, "a job").spread == found.spread, "the same samples, the same spread"


@pytest.mark.parametrize(
    ("one", "holds", "margin"),
    [
        (part(1.5), True, 1.0),
        (part(3.0), False, 0.5),
        (part(0.0), True, float("inf")),
        (part(50.0, 50.0, least=True), True, 1.0),
        (part(25.0, 50.0, least=True), False, 0.5),
        (part(0.0, 0.0), True, float("inf")),
    ],
)
def test_a_part_holds_by_a_margin(one: Part, holds: bool, margin: float) -> None:
    assert (one.holds, one.margin) == (holds, margin)


def test_a_bar_holds_where_all_that_counts_holds() -> None:
    assert bar(part(1.0), part(1.4)).holds
    assert not bar(part(1.0), part(1.6)).holds
    assert bar(part(1.0), part(9.0, counts=False)).holds
    assert not bar(part(1.0, counts=False)).holds, "nothing was judged"
    assert not bar(part(1.0), errors=["sqlite: away"]).holds
    assert not bar().holds


def test_the_tightest_part_speaks_for_the_bar() -> None:
    gain = part(60.0, 50.0, least=True)
    assert bar(part(0.5), gain, part(99.0, counts=False)).tightest is gain
    missed = part(3.0)
    assert bar(part(0.5), gain, missed).tightest is missed
    assert bar().tightest is None


def test_a_part_survives_its_json() -> None:
    one = part(1.25, 1.5, spread=(1.0, 1.5), database="sqlite", figures={"ours": 0.25, "sockets": 3}, counts=False)
    for again in (one, part(60.0, 50.0, least=True)):
        assert part_of(json.loads(json.dumps(again.as_json()))) == again


def test_a_row_of_a_bar() -> None:
    (row,) = json.loads(dump([bar(part(1.23456), part(1.4, database="postgres"), versions={"Python": "3"}, seconds=1.5)]))
    assert (row["bar"], row["ratio"], row["limit"], row["holds"], row["database"]) == ("B0", 1.4, 1.5, True, "postgres")
    assert [one["ratio"] for one in row["parts"]] == [1.235, 1.4]
    (empty,) = json.loads(dump([bar(errors=["sqlite: away"])]))
    assert (empty["ratio"], empty["limit"], empty["holds"], empty["errors"]) == (None, None, False, ["sqlite: away"])


def test_the_table_says_what_holds_and_what_misses() -> None:
    text = table([
        bar(part(1.0, spread=(0.9, 1.1), figures={"sockets": 1_000}), part(9.0, counts=False), versions={"Python": "3.11"}),
        bar(part(60.0, 50.0, least=True), part(2.0, database="postgres")),
        bar(errors=["sqlite: away"]),
    ])  # fmt: skip
    verdicts = [line.split("a bar")[0].split(maxsplit=1)[1].strip() for line in text.splitlines() if line.startswith("B0")]
    assert verdicts == ["holds", "MISSED", "not measured"]
    for expected in (
        "ok        1 ≤ 1.5",
        "[0.9 … 1.1]",
        "sockets 1,000",
        "on Python 3.11",
        "≥ 50",
        "NO        2",
        "! sqlite: away",
    ):
        assert expected in text


def test_figures_for_people() -> None:
    assert [number(one) for one in (1_234, 1_234.5, 0.123456, True, "x")] == ["1,234", "1,234", "0.123", "True", "x"]
    assert (tidy(1.234567), tidy(12), tidy("x")) == (1.235, 12, "x")


def test_timed_work_is_done_so_many_times() -> None:
    done: list[int] = []
    assert timed(lambda: done.append(1), 5)() >= 0
    assert len(done) == 5


def test_a_part_with_another_limit_than_its_bar_registers_is_refused() -> None:
    BARS["B6"].check(part(1.0, 1.2))
    BARS["B6"].check(part(1.0, 1.3, counts=False))
    BARS["B8"].check(part(8.0, 21.0))
    with pytest.raises(ValueError, match="held to 1"):
        BARS["B6"].check(part(1.0, 1.3))


def test_every_bar_of_the_design_is_registered_with_its_limits_and_what_measures_it() -> None:
    assert list(BARS) == [f"B{n}" for n in range(1, 12)]
    assert {name: set(entry.limits) for name, entry in BARS.items()} == LIMITS
    for entry in BARS.values():
        for where in entry.where.split():
            module, _, function = where.partition(":")
            source = (ROOT / "tests" / "benchmarks" / f"{module}.py").read_text()
            assert f"def {function}(stage: Stage) -> Iterator[Part]:" in source
        assert entry.databases


@pytest.mark.slow
@pytest.mark.parametrize("name", SOCKETS)
def test_bars_with_sockets_run(name: str) -> None:
    """As the command line runs them. The ratios of so few say nothing."""
    command = [sys.executable, "-m", "tests.benchmarks", name, "--json", "--size", "tiny", "--database", "sqlite"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("VISIBILITY_TEST_")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout)
    assert (row["bar"], row["errors"]) == (name, [])
    assert {one["limit"] for one in row["parts"] if one["counts"]} == LIMITS[name]
