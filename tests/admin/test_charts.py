from __future__ import annotations

import datetime as dt
import re

import pytest
from hypothesis import given, strategies as st

from visibility.admin.charts import HEIGHT, WIDTH, Series, lines, nice, stacked, strip
from visibility.admin.figures import axis, plain

values = st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=60)


@given(st.floats(0.001, 1e9))
def test_a_nice_top_is_just_above(top: float) -> None:
    assert top * (1 - 1e-6) <= nice(top) <= top * 2.5 + 1e-9


@given(values, values)
def test_bars_lie_in_the_box_and_on_each_other(one: list[float | None], other: list[float | None]) -> None:
    n = min(len(one), len(other))
    series = [Series(name="a", css="hot", values=one[:n]), Series(name="b", css="cold", values=other[:n])]
    chart = stacked("s", "t", "u", series, [str(i) for i in range(n)], plain)
    for bar in chart.bars:
        assert 0 <= bar.x <= WIDTH and bar.x + bar.width <= WIDTH + 0.01
        assert bar.y >= -0.01 and bar.y + bar.height <= HEIGHT + 0.01
    assert len(chart.rows) == n
    assert chart.empty == (sum(v or 0 for v in one[:n]) + sum(v or 0 for v in other[:n]) == 0)


@given(values)
def test_lines_lie_in_the_box_and_break_where_there_is_nothing(found: list[float | None]) -> None:
    chart = lines(
        "s", "t", "u", [Series(name="a", css="p50", values=found)], [str(i) for i in range(len(found))], plain, axis, floor=0.001
    )
    (_series, line), *_ = chart.paths
    (_series, dots), *_ = chart.dots
    path = line + dots
    for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path):
        assert 0 <= float(x) <= WIDTH + 0.01
        assert 0 <= float(y) <= HEIGHT
    starts = sum(1 for n, v in enumerate(found) if v is not None and (n == 0 or found[n - 1] is None))
    assert path.count("M") == starts
    padded = [None, *found, None]
    assert dots.count("M") == sum(
        v is not None and before is None and after is None for before, v, after in zip(padded, found, padded[2:], strict=False)
    )
    assert [y for y, _label in chart.y_ticks] == sorted(y for y, _label in chart.y_ticks)
    assert chart.y_ticks[0][0] == 0 and chart.y_ticks[-1][0] == HEIGHT


def test_the_table_says_what_the_drawing_says() -> None:
    series = [Series(name="hot", css="hot", values=[1, None, 12_345])]
    chart = stacked("s", "t", "u", series, ["08:00", "09:00", "10:00"], plain)
    assert chart.rows == [("08:00", ["1"]), ("09:00", ["–"]), ("10:00", ["12\u202f345"])]
    assert chart.x_ticks == ("08:00", "09:00", "10:00")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.001, "1 ms"), (0.1, "100 ms"), (10, "10 s"), (100, "100 s"), (1000, "17 min"), (10_000, "2.8 h")]
)
def test_labels_of_an_axis_are_short(seconds: float, text: str) -> None:
    assert axis(seconds) == text


def test_a_time_line_runs_from_the_oldest_to_now() -> None:
    now = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
    happenings = [((now - dt.timedelta(minutes=m)).isoformat(), "built", "x") for m in (0, 5, 10)]
    assert [dot.x for dot in strip(happenings, now)] == [99, 50, 1]
    assert strip([], now) == []
