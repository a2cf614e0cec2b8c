"""What curves, soak and the scaling page reckon, without servers; and that the page says what its figures say."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks.curves import scale
from tests.benchmarks.curves.__main__ import kept
from tests.benchmarks.curves.core import Curve, Figures, Series, by_turns, dump, merge, result_of, rise, slope, text, told
from tests.benchmarks.curves.svg import Axis, draw, short
from tests.benchmarks.soak.judge import judge, second_half, table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def curve(*points: tuple[float, float], name: str = "c", line: str = "a") -> Curve:
    return Curve(name=name, title="A <title>", x="n", y="ms", how="by hand", series=[Series(name=line, points=list(points))])


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_the_slope_is_the_exponent(power: float) -> None:
    found = slope([(n, 7 * n**power) for n in (1, 10, 100, 1_000)])
    assert found == pytest.approx(power, abs=1e-9)


def test_one_outlier_moves_the_slope_a_little() -> None:
    found = slope([(n, n * (2 if n == 100 else 1)) for n in (1, 10, 100, 1_000, 10_000)])
    assert found == pytest.approx(1.0, abs=0.1)


def test_what_has_no_slope_says_so() -> None:
    assert slope([(1, 1)]) is None
    assert slope([(1, 1), (1, 2)]) is None
    assert slope([(1, 0), (2, 5)]) is None
    assert told(None) == "no slope"
    assert told(-0.001) == "slope 0.00"


def test_rise_is_per_one_more() -> None:
    assert rise([(10, 1_030), (20, 1_060), (30, 1_090)]) == pytest.approx(3)
    assert rise([(10, 5)]) == 0


def test_sides_are_run_by_turns_and_the_median_counts() -> None:
    ran: list[float] = []

    def side(x: float) -> float:
        ran.append(x)
        return x * len(ran)

    points = by_turns({1: lambda: side(1), 2: lambda: side(2)}, 3)
    assert ran == [1, 2, 2, 1, 1, 2]
    assert points == [(1, 4), (2, 6)]


def test_results_survive_their_json() -> None:
    one = curve((1, 2.5), (10, 3))
    rows = Figures(name="f", title="t", how="h", rows=[("what", 1.5, "ms", "note")])
    assert [result_of(each.as_json()).as_json() for each in (one, rows)] == [one.as_json(), rows.as_json()]
    assert "slope 0.08" in text(one)
    assert "1.5 ms" in text(rows)


def test_databases_become_lines_of_one_curve() -> None:
    found = merge([curve((1, 1), line="a"), curve((1, 1), name="other"), curve((1, 2), line="b")])
    assert [one.name for one in found] == ["c", "other"]
    assert isinstance(found[0], Curve) and [one.name for one in found[0].series] == ["a", "b"]


def test_a_curve_measured_again_takes_its_old_place(tmp_path: Path) -> None:
    file = tmp_path / "curves.json"
    assert len(kept(file, [curve((1, 1))])) == 1
    file.write_text(dump([curve((1, 1)), curve((1, 1), name="other")], {}))
    found = kept(file, [curve((5, 5)), curve((1, 1), name="new")])
    assert [one.name for one in found] == ["c", "other", "new"]
    assert isinstance(found[0], Curve) and found[0].series[0].points == [(5, 5)]


def numbers(picture: str) -> list[float]:
    """The coordinates of all lines."""
    lines = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}polyline")  # noqa: S314
    return [float(one) for line in lines for pair in line.attrib["points"].split() for one in pair.split(",")]


@pytest.mark.parametrize("points", [[(1, 1), (1e6, 1e3)], [(100, 5.0), (200, 5.0)], [(1, 1e-3)], [(3, 0.0), (4, 7)]])
def test_a_picture_is_well_formed_and_inside_its_frame(points: list[tuple[float, float]]) -> None:
    picture = draw(curve(*points))
    assert "A &lt;title&gt;" in picture
    assert all(0 <= one <= 720 for one in numbers(picture))
    # No background, and no colour that vanishes on a light or a dark page.
    assert "<rect width" not in picture and "#fff" not in picture and "#000" not in picture


def test_a_course_over_time_is_drawn_without_logarithms() -> None:
    picture = draw(curve((0, 10), (1, 12), (2, 0)), linear=True)
    assert "slope" not in picture
    assert len(numbers(picture)) == 6


def test_axes_have_figures_for_people() -> None:
    assert [short(one) for one in (0.05, 7, 1_000, 30_000, 2e6, 3e9)] == ["0.05", "7", "1k", "30k", "2M", "3G"]
    assert Axis([1, 1e6], 0, 600).ticks() == [1, 10, 100, 1e3, 1e4, 1e5, 1e6]
    assert len(Axis([5.0, 5.1], 0, 600).ticks()) >= 3
    flat = Axis([5.0, 5.0], 0, 600)
    assert flat.at(5.0) == pytest.approx(300)


def samples(*, slope: float, noise: float, level: float = 100.0, jump: float = 0.0) -> list[tuple[float, float]]:
    """Ten minutes, a sample each ten seconds; `slope` is per hour, `jump` comes in the first half."""
    chance = random.Random(5)
    return [(t, level + (jump if t > 100 else 0) + slope * t / 3600 + chance.gauss(0, noise)) for t in range(0, 601, 10)]


@pytest.mark.parametrize(
    ("course", "grows"),
    [
        ({"slope": 0, "noise": 1}, False),
        ({"slope": 120, "noise": 0.5}, True),
        # It warms up, then stands.
        ({"slope": 0, "noise": 0.2, "jump": 50}, False),
        # Sure, but too little to matter: a tenth of a per cent in the half.
        ({"slope": 1.2, "noise": 0.001}, False),
        # It may grow, but the noise is larger.
        ({"slope": 30, "noise": 20}, False),
        ({"slope": -120, "noise": 0.5}, False),
    ],
)
def test_growth_is_told_from_noise(course: dict[str, float], grows: bool) -> None:
    found = judge("RSS", "MiB", samples(**course), 1.0)
    assert found.grows is grows
    assert ("GROWS" in table([found])) is grows


def test_what_must_be_zero_may_never_be_anything_else() -> None:
    assert not judge("keys without a lifetime", "", [(0, 0), (10, 0), (20, 0)], None).grows
    assert judge("keys without a lifetime", "", [(0, 0), (10, 3), (20, 0)], None).grows


def test_a_run_that_ended_at_once_is_judged_without_an_error() -> None:
    assert second_half([]) == []
    assert not judge("RSS", "MiB", [(0, 50.0)], 1.0).grows


COSTS = scale.Costs(
    sockets=10_000, together_application=50, together_database=20, together_redis=2, socket_bytes=2**15,
    beat_process=100, beat_redis=50, push=10, event_application=500, event_database=200, event_redis=20,
    event_bytes=1_000, build_worker=300, build_database=50, build_redis=40, resource_bytes=1_000, session_bytes=600,
)  # fmt: skip


def test_needs_are_reckoned_from_costs() -> None:
    load = scale.Load(name="", sessions=200_000, events=1_000, hot=2_000, reach=5, resources=1e6)
    found = scale.need(load, COSTS)
    # 10,000 heartbeats a second: 1 core for them and 0.1 for pushes, at half load; but twenty processes for the sockets.
    assert found["ASGI processes"] == 20
    assert found["memory of ASGI, GiB"] == pytest.approx(200_000 / 2**15)
    assert found["workers"] == 2
    assert found["cores of Redis"] == pytest.approx((0.5 + 0.02 + 0.08) * 2)
    assert found["cores that write events"] == pytest.approx(1)
    assert found["the same, 100 together"] == pytest.approx(0.1)
    assert found["cores of the database"] == pytest.approx((0.2 + 0.1) * 2)
    assert found["cores of the database, events 100 together"] == pytest.approx((0.02 + 0.1) * 2)
    assert found["the same, events 100 together"] == pytest.approx((0.5 + 0.002 + 0.08) * 2)
    assert found["event rows a day, GiB"] == pytest.approx(86_400_000_000 / 2**30)


def test_processor_time_may_need_more_processes_than_sockets_do() -> None:
    load = scale.Load(name="", sessions=10_000, events=0, hot=10_000, reach=10, resources=0)
    # 500 heartbeats are 0.05 cores, 100,000 pushes 1 core; half is used of each.
    assert scale.need(load, COSTS)["ASGI processes"] == 3


def test_the_scaling_page_says_what_its_figures_say() -> None:
    page = (DOCS / "scaling.md").read_text()
    results = scale.load(DOCS / "images" / "curves.json")
    assert scale.fill(page, results) == page
    assert page.count("<!-- end -->") == 5
    for name, one in results.items():
        if isinstance(one, Curve):
            picture = (DOCS / "images" / f"curve-{name}.svg").read_text()
            assert picture == draw(one)
            assert f"images/curve-{name}.svg" in page
