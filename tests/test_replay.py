"""`manage.py replay`: reading traces and graphs, deciding who is online when, and small replays on real parts."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from project.replay import report
from project.replay.trace import LEAD, TAIL, BadTrace, Line, compress, followers, pair, plan, read_graph, read_trace
from tests.support import need, wait_for
from tests.support.processes import Process
from tests.test_demo import ROOT, alive, demo_env, relatives

KEYS = {
    "messages",
    "work_done",
    "work_everybody",
    "work_saved",
    "stale_reads",
    "last_frame_equal",
    "freshness",
    "seconds",
}


def write(folder: Path, text: str, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- reading ---


def test_comments_header_order_and_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "# from somewhere\nsrc dst time\n1 2 30\n\n% more\n3,4,10\nann bob 20.5\n5 6 1\n")
    assert read_trace(path, limit=3) == [Line("3", "4", 10), Line("ann", "bob", 20.5), Line("1", "2", 30)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2 3\n1 2\n", "line 2: expected `source target seconds`, found 2 fields: '1 2'"),
        ("1 2 3\n# c\n1 2 3 4\n", "line 3: expected `source target seconds`, found 4 fields: '1 2 3 4'"),
        ("a b time\na b soon\n", "line 2: the third field is to be a time in seconds, not 'soon'"),
        ("1 2 nan\n1 2 inf\n", "line 2: the third field is to be a time in seconds, not 'inf'"),
        ("1 2 3x\n", "line 1: the third field is to be a time in seconds, not '3x'"),
        ("", "no messages in it"),
        ("# nothing\nsrc dst time\n", "no messages in it"),
        (f"{'n' * 61} 2 3\n", "line 1: a name of more than 60 characters"),
    ],
)
def test_bad_traces_name_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadTrace) as error:
        read_trace(write(tmp_path, text))
    assert str(error.value).endswith(said)


def test_traces_that_are_no_text_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"1 2 3\n\xff\xfe\x00")
    with pytest.raises(BadTrace, match="line 2: not UTF-8 text"):
        read_trace(tmp_path / "image")
    with pytest.raises(BadTrace, match="No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(BadTrace, match="Is a directory"):
        read_trace(tmp_path)


def test_graph_with_header_and_bad_line(tmp_path: Path) -> None:
    assert read_graph(write(tmp_path, "nd nw\n0 1\n1 2\n")) == [("0", "1"), ("1", "2")]
    with pytest.raises(BadTrace, match=r"line 2: expected two names, found 3 fields: '1 2 3'"):
        read_graph(write(tmp_path, "0 1\n1 2 3\n"))


# --- who follows whom, who is online when ---


def test_followers_are_contacts_without_a_graph() -> None:
    lines = [Line("a", "b", 1), Line("b", "c", 2), Line("d", "d", 3)]
    assert followers(lines, None) == {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}


def test_graph_is_used_by_name_where_it_can_be() -> None:
    assert followers([Line("1", "2", 1)], [("1", "3"), ("2", "3")]) == {"1": {"3"}, "3": {"1", "2"}, "2": {"3"}}


def test_graph_is_used_in_order_where_names_differ() -> None:
    found = followers([Line("ann", "bob", 1)], [("7", "8"), ("8", "9")])
    assert found == {"ann": {"bob"}, "bob": {"ann", "node-9"}, "node-9": {"bob"}}
    # A graph with fewer nodes than there are people leaves the rest without followers.
    assert followers([Line("ann", "bob", 1), Line("cid", "bob", 2)], [("7", "8")]) == {"ann": {"bob"}, "bob": {"ann"}}


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef"), st.integers(0, 10**7)), min_size=1, max_size=60),
    st.floats(0.5, 100),
)
def test_everybody_is_online_around_their_own_messages(rows: list[tuple[str, str, int]], seconds: float) -> None:
    lines = sorted((Line(a, b, float(t)) for a, b, t in rows), key=lambda line: line.seconds)
    steps = plan(lines, seconds)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    online: dict[str, set[tuple[str, str]]] = {}
    for step in steps:
        if step.what == "comes":
            assert step.person not in online
            online[step.person] = set(step.rooms)
        elif step.what == "goes":
            del online[step.person]
        else:
            assert pair(step.person, step.other) in online[step.person]
    assert [(s.person, s.other) for s in steps if s.what == "says"] == [line[:2] for line in lines]
    assert lines[-1].source in online


def test_nights_are_cut_short() -> None:
    lines = [Line("a", "b", t) for t in (0, 100, 200, 90_000, 90_100)]
    times = compress(lines, 60)
    assert times[0] == 0
    assert times[-1] == pytest.approx(60)
    assert times[3] - times[2] == pytest.approx(3 * (times[1] - times[0]))
    assert compress([Line("a", "b", 5)] * 4, 8) == [0, 2, 4, 6]
    assert LEAD < TAIL


# --- what it says ---


def test_percentiles_are_ranks() -> None:
    values = [n / 100 for n in range(1, 101)]
    random.Random(1).shuffle(values)
    assert report.freshness(values) == {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    assert report.freshness([0.25]) == {"p50": 0.25, "p95": 0.25, "p99": 0.25}
    assert report.freshness([]) == {"p50": None, "p95": None, "p99": None}


def test_figures_have_exactly_the_promised_keys() -> None:
    outcome = report.Outcome(messages=3, stale_reads=1, work={"done": {"feed": 2}, "everybody": {"feed": 6, "room": 2}})
    found = report.figures(outcome, {"feed": [0.1], "room": [0.3]}, 1.26)
    assert found == {
        "messages": 3,
        "work_done": 2,
        "work_everybody": 8,
        "work_saved": 0.75,
        "stale_reads": 1,
        "last_frame_equal": True,
        "freshness": {"p50": 0.1, "p95": 0.3, "p99": 0.3},
        "seconds": 1.3,
    }
    assert set(found) == KEYS
    outcome.unequal = ["feed:1 at ann"]
    assert report.figures(outcome, {}, 1)["last_frame_equal"] is False
    outcome.compared = 4
    more = {"people": 2, "sockets": 2, "cut_off": 1, "problems": {"limit: too much": 2}}
    said = report.text(found, outcome, {}, more)
    assert "1 of 4 differ from the source" in said
    assert "DIFFERS feed:1 at ann" in said
    assert "2 × limit: too much" in said


# --- on real parts ---


def small_trace(folder: Path, messages: int = 120) -> Path:
    """Messages among a dozen people, in bursts."""
    rng, now, lines = random.Random(3), 1_000_000, ["src dst time"]
    for _n in range(messages):
        now += rng.choice((2, 10, 40, 3_000))
        a, b = rng.sample(range(1, 13), 2)
        lines.append(f"{a} {b} {now}")
    return write(folder, "\n".join(lines) + "\n")


def replay(folder: Path, *arguments: str) -> Process:
    command = [sys.executable, str(ROOT / "manage.py"), "replay", *arguments]
    return Process(command, env=demo_env(folder), cwd=ROOT)


def finish(process: Process, seconds: float = 150) -> tuple[int, str]:
    return process.popen.wait(seconds), process.output


def last_json(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in reversed(said.splitlines()) if line.startswith("{")))
    return found


def check(found: dict[str, Any], messages: int) -> None:
    assert set(found) == KEYS
    assert found["messages"] == messages
    assert found["stale_reads"] == 0
    assert found["last_frame_equal"] is True
    assert found["work_done"] > 0
    assert found["work_everybody"] > 0
    assert set(found["freshness"]) == {"p50", "p95", "p99"}
    assert all(value is not None and value > 0 for value in found["freshness"].values())


@pytest.mark.slow
def test_small_replay_is_right_to_the_last_frame(tmp_path: Path) -> None:
    need("valkey")
    with replay(tmp_path, str(small_trace(tmp_path)), "--json") as process:
        code, said = finish(process)
    assert code == 0, said
    check(last_json(said), 120)
    assert "120/120" in said
    # The demo's own database is not touched.
    assert not (tmp_path / "demo.sqlite3").exists()


@pytest.mark.slow
@pytest.mark.chaos
def test_replay_over_a_graph_with_a_worker_killed_halfway(tmp_path: Path) -> None:
    need("valkey")
    graph = write(tmp_path, "nd nw\n" + "".join(f"{a} {b}\n" for a in range(1, 61) for b in range(a + 1, 61, 7)), "graph.txt")
    with replay(
        tmp_path, str(small_trace(tmp_path, 160)), "--json", "--graph", str(graph), "--limit", "150", "--kill-worker"
    ) as process:
        code, said = finish(process)
    assert code == 0, said
    found = last_json(said)
    check(found, 150)
    assert "killed worker process" in said
    assert found["work_saved"] > 0.3


@pytest.mark.slow
def test_table_for_people_and_daphne(tmp_path: Path) -> None:
    need("valkey")
    with replay(tmp_path, str(small_trace(tmp_path, 40)), "--server", "daphne", "--speed", "2") as process:
        code, said = finish(process)
    assert code == 0, said
    for words in ("work saved", "stale reads        0 of", "equal the source", "freshness", "p99"):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.txt"], "missing.txt: No such file or directory"),
        (["trace.txt"], "trace.txt, line 3: expected `source target seconds`, found 1 fields: 'broken'"),
        (["good.txt", "--graph", "trace.txt"], "trace.txt, line 1: expected two names, found 3 fields: '1 2 3'"),
        (["good.txt", "--limit", "0"], "a number above 0, not '0'"),
        (["good.txt", "--speed", "fast"], "a number from 0.01 to 1000, not 'fast'"),
        (["good.txt", "--redis-url", "redis://127.0.0.1:1/0"], "No Redis answers at redis://127.0.0.1:1/0"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    write(tmp_path, "1 2 3\n1 2 4\nbroken\n")
    write(tmp_path, "1 2 3\n", "good.txt")
    paths = [str(tmp_path / word) if word.endswith(".txt") else word for word in arguments]
    with replay(tmp_path, *paths) as process:
        code, output = finish(process, 60)
    assert code != 0
    assert said in output.replace(f"{tmp_path}/", "")
    assert "Traceback" not in output


@pytest.mark.slow
def test_sigterm_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    need("valkey")
    with replay(tmp_path, str(small_trace(tmp_path, 400)), "--speed", "0.2") as process:
        process.wait_until(lambda: "/400" in process.output, 90, "the first progress line")
        family = relatives(process)
        assert len(family) >= 6
        os.kill(process.pid, signal.SIGTERM)
        assert process.popen.wait(30) == 130
        assert "Stopped before the end" in process.output
        wait_for(lambda: not alive(family), 5, "every child is gone")
