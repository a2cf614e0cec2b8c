from __future__ import annotations

import logging

import pytest

from tests.lanes import watch
from visibility import signals
from visibility.insight import logs, metrics, trail
from visibility.soft import client
from visibility.soft.snapshots import Stored


@pytest.fixture(autouse=True)
def fresh() -> None:
    client.close()
    trail._notes.clear()
    metrics._buffer.take()
    logs.connect()


def snapshot(version: int) -> Stored:
    return Stored(version, 1, 1_700_000_000_250, 0, 1_700_000_060_000, 2, "0.0.0", b"{}")


def record(caplog: pytest.LogCaptureFixture, logger: str) -> logging.LogRecord:
    return next(one for one in caplog.records if one.name == logger)


def test_every_figure_is_an_attribute_of_the_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "visibility")
    logs.built("feed", [("feed:1", snapshot(7))], 0.25)
    signals.event_processed.send_robust("gate", event_ids=["a"], decision={"feed": {"hot": 1}}, seconds=0.01, error=None)
    signals.became_visible.send_robust("feed", resource="feed:1")
    signals.user_online.send_robust("presence", user_id="7")
    signals.pressure_changed.send_robust("hot", stage="pressed", previous="normal")
    signals.slo_alert.send_robust("feed", state="burning_fast", burn_rate=20.0, attained=0.9)
    built = record(caplog, "visibility.build")
    assert (built.data_type, built.resource, built.version, built.seconds) == ("feed", "feed:1", 7, 0.25)  # type: ignore[attr-defined]
    assert record(caplog, "visibility.gate").decision == {"feed": {"hot": 1}}  # type: ignore[attr-defined]
    assert record(caplog, "visibility.lane").levelno == logging.WARNING
    alert = record(caplog, "visibility.slo")
    assert alert.levelno == logging.ERROR and alert.burn_rate == 20.0  # type: ignore[attr-defined]
    extra = {name for one in caplog.records for name in vars(one)} - set(vars(logging.makeLogRecord({})))
    assert extra - {"message", "asctime"} <= set(logs.FIELDS)


def test_a_failure_of_the_gate_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    signals.event_processed.send_robust("gate", event_ids=["a", "b"], decision=None, seconds=None, error="KeyError: 'x'")
    assert record(caplog, "visibility.gate").levelno == logging.ERROR
    assert "KeyError" in caplog.text


def test_the_end_of_an_alert_is_only_information(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "visibility")
    signals.slo_alert.send_robust("feed", state="met", burn_rate=0.0, attained=None)
    assert record(caplog, "visibility.slo").levelno == logging.INFO


def test_connecting_twice_is_connecting_once(caplog: pytest.LogCaptureFixture) -> None:
    logs.connect()
    signals.pressure_changed.send_robust("hot", stage="flooded", previous="pressed")
    assert sum(one.name == "visibility.lane" for one in caplog.records) == 1
    logs.disconnect()
    caplog.clear()
    signals.pressure_changed.send_robust("hot", stage="normal", previous="flooded")
    assert not [one for one in caplog.records if one.name == "visibility.lane"]
    logs.connect()


class TestTrail:
    def test_the_newest_happenings_are_kept(self) -> None:
        for n in range(30):
            trail.note("feed:1", "built", version=n)
        metrics.flush()
        assert [one["version"] for one in trail.read("feed:1")] == list(range(29, 9, -1))

    def test_under_load_notes_are_dropped_and_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted: list[tuple[str, int]] = []
        monkeypatch.setattr(metrics, "count", lambda name, n=1, **_named: counted.append((name, n)))
        for n in range(trail.PER_FLUSH - 3):
            trail.note(f"feed:{n}", "built")
        logs.built("feed", [(f"feed:late{n}", snapshot(n)) for n in range(10)], 0.1)
        assert counted == [("notes_dropped", 7)]
        metrics.flush()
        assert len(trail.read("feed:0")) == len(trail.read("feed:late2")) == 1
        assert trail.read("feed:late3") == []

    def test_signals_leave_notes(self) -> None:
        watch("feed:1")
        signals.became_visible.send_robust("feed", resource="feed:1")
        logs.built("feed", [("feed:1", snapshot(7))], 0.25)
        signals.became_hidden.send_robust("feed", resource="feed:1")
        metrics.flush()
        notes = trail.read("feed:1")
        assert [one["kind"] for one in notes] == ["hidden", "built", "visible"]
        # By the snapshot's own clock and figure, not those of the note.
        assert (notes[1]["at"], notes[1]["seconds"]) == (1_700_000_000.25, 0.002)
