"""The maintenance loop: each duty, alone, twice at once, in an outage; and the loop and command around them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import override_settings
from django.utils import timezone

from tests import lanes
from tests.app.models import Counter
from tests.conftest import Live
from tests.lanes import change, drain, ids, look, pend, watch
from tests.support import servers, wait_for
from visibility import dirty, gate, maintain, pressure, promotion
from visibility.conf import settings
from visibility.models import AppliedVersion, DirtyFlag, Event, NaturalKey, ScopeMark
from visibility.signals import became_hidden
from visibility.soft import client as soft_client, leases, upkeep

NAMES = {"lanes", "promote", "presence", "outbox", "audit", "precompute", "freshness", "prune"}


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    promotion._cursors.clear()
    pressure.forget()
    maintain._failing.clear()
    yield
    maintain._failing.clear()
    pressure.forget()


def now() -> Any:
    return timezone.now()


def duty(name: str) -> maintain.Duty:
    return next(one for one in maintain.DUTIES if one.name == name)


def test_a_tick_does_every_duty_and_says_what_it_did(db: None, probes: Path) -> None:
    assert maintain.tick() == dict.fromkeys(NAMES, 0)
    watch("probe:a")
    dirty.mark("probe", {"a": 1})
    assert maintain.tick()["promote"] == 1


# --- lanes --------------------------------------------------------------------------------------------------------------


def test_a_lane_with_work_and_nobody_on_the_way_is_woken_once(db: None, probes: Path, redis: redis_py.Redis) -> None:
    pend("probe:a")
    redis.delete("{vis:0}:wake:hot")
    assert maintain.rouse_lanes(now()) == 1
    assert maintain.rouse_lanes(now()) == 0
    assert len(ids()) == 1


def test_J5_ended_claims_are_roused(db: None, probes: Path, redis: redis_py.Redis) -> None:
    watch("probe:a")
    pend("probe:a")
    lanes.claim()
    redis.zadd("{vis:0}:claimed:hot", {"probe:a": 1})
    assert maintain.rouse_lanes(now()) == 1
    assert drain() == 1


def test_it_leaves_a_heartbeat(db: None, redis: redis_py.Redis) -> None:
    assert upkeep.silence() is None
    maintain.rouse_lanes(now())
    assert 0 <= (upkeep.silence() or 0.0) < 1
    assert redis.pttl("{vis:0}:maintained") > 0
    redis.set("{vis:0}:maintained", "1")
    assert (upkeep.silence() or 0.0) > 1_000


def _in_thread(step: Any) -> None:
    try:
        step()
    finally:
        connection.close()


# --- presence, outbox ---


def test_what_became_hidden_is_announced_once(db: None, probes: Path, redis: redis_py.Redis) -> None:
    told: list[str] = []

    def receive(sender: str, resource: str, **kwargs: Any) -> None:
        told.append(resource)

    became_hidden.connect(receive)
    try:
        watch("probe:a", "probe:b")
        redis.zadd("{vis:0}:visible:probe", {"a": 1})
        threads = [threading.Thread(target=_in_thread, args=(lambda: maintain.sweep_presence(now()),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        became_hidden.disconnect(receive)
    assert told == ["probe:a"]
    assert leases.visible_count("probe") == 1


def test_events_that_nobody_finished_are_taken_over(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(gate, "run", lambda items: None)
        Counter.objects.create(name="a", value=1)
    watch("counter:a")
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "OUTBOX_GRACE": 0.3}):
        # Its own process may still be at it.
        assert maintain.redrive(now()) == 0
        wait_for(lambda: maintain.redrive(now()) == 1, 3)
    assert look("counter:a").pending
    assert Event.objects.get().processed_at is not None


# --- pruning ------------------------------------------------------------------------------------------------------------


def test_what_has_served_is_deleted_and_the_rest_is_not(db: None) -> None:
    old, young = now() - timedelta(days=30), now() - timedelta(hours=1)
    for at in (old, young):
        Event.objects.create(source="emit", created_at=at, processed_at=at)
        NaturalKey.objects.create(name=str(at), expires_at=at if at is old else now() + timedelta(hours=1))
        AppliedVersion.objects.create(data_type="price", key=str(at), version=1, updated_at=at)
        ScopeMark.objects.create(data_type="feed", scope=str(at), mark=1, last_at=at)
        DirtyFlag.objects.create(data_type="feed", key=f"clean {at}", mark=1, last_at=at)
        DirtyFlag.objects.create(data_type="feed", key=f"dirty {at}", mark=1, last_at=at, first_at=at)
    Event.objects.create(source="emit", created_at=old)
    assert maintain.prune(now()) == 5
    assert Event.objects.count() == 2
    assert NaturalKey.objects.count() == AppliedVersion.objects.count() == ScopeMark.objects.count() == 1
    assert DirtyFlag.objects.count() == 3
    assert maintain.prune(now()) == 0


def test_a_flag_outlives_every_snapshot_that_is_older(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 4: pruned too early, a snapshot stamped before the flag would look current again."""
    from visibility.datatypes import registry

    monkeypatch.setattr(type(registry.get("probe")), "ttl", 40 * 86_400)
    DirtyFlag.objects.create(data_type="probe", key="a", mark=1, last_at=now() - timedelta(days=39))
    assert maintain.prune(now()) == 0


def test_pruning_goes_by_batches(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintain, "PRUNE_BATCH", 10)
    NaturalKey.objects.bulk_create([NaturalKey(name=str(n), expires_at=now() - timedelta(days=1)) for n in range(25)])
    assert [maintain.prune(now()) for _ in range(4)] == [10, 10, 5, 0]


# --- the loop -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def loop(transactional_db: None) -> Iterator[threading.Event]:
    """The loop in a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=maintain.loop, args=(stop,))
    thread.start()
    yield stop
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_the_loop_promotes_and_rouses_by_itself(loop: threading.Event, probes: Path, redis: redis_py.Redis) -> None:
    watch("probe:a")
    dirty.mark("probe", {"a": 1})
    wait_for(lambda: look("probe:a").queued and ids(), 10)
    wait_for(lambda: (upkeep.silence() or 9.0) < 1.5, 5)


def test_after_a_full_batch_the_next_one_does_not_wait_for_its_period(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain, "PRUNE_BATCH", 10)
    monkeypatch.setattr(maintain, "MOMENT", 0.05)
    monkeypatch.setattr(maintain, "DUTIES", (maintain.Duty("prune", 60, maintain.prune, full=10),))
    monkeypatch.setattr(maintain.random, "uniform", lambda low, high: low)
    NaturalKey.objects.bulk_create([NaturalKey(name=str(n), expires_at=now() - timedelta(days=1)) for n in range(25)])
    stop = threading.Event()
    thread = threading.Thread(target=maintain.loop, args=(stop,))
    thread.start()
    try:
        wait_for(lambda: not NaturalKey.objects.exists(), 10)
    finally:
        stop.set()
        thread.join(10)


def test_the_loop_outlives_a_redis_outage(
    loop: threading.Event, probes: Path, own_redis: servers.RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    wait_for(lambda: upkeep.silence() is not None, 5)
    own_redis.kill()
    wait_for(lambda: "maintenance: lanes waits" in caplog.text, 10)
    own_redis.start()
    wait_for(lambda: "maintenance: lanes goes on" in caplog.text, 10)
    soft_client.close()
    watch("probe:a")
    dirty.mark("probe", {"a": 1})
    wait_for(lambda: look("probe:a").queued, 10)
    # Told once, not at every try.
    assert caplog.text.count("maintenance: lanes waits") == 1


def test_one_duty_s_trouble_is_logged_and_the_others_go_on(
    db: None, probes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(dirty, "dirty_among", broken)
    watch("probe:a")
    done = maintain.tick()
    assert done["promote"] is None and done["lanes"] == 0 and done["prune"] == 0
    assert "promote failed" in caplog.text


def test_an_error_is_told_once_with_its_traceback_and_then_now_and_then(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = ["one", "one", "two", "one", ""]

    def run(now: Any) -> int:
        if error := errors.pop(0):
            raise ValueError(error)
        return 0

    one = maintain.Duty("audit", 2, run)
    for _try in range(4):
        assert maintain.perform(one, now()) is None
    assert caplog.text.count("audit failed") == caplog.text.count("Traceback") == 2
    assert "still fails" not in caplog.text
    began = upkeep.troubles(["audit", "lanes"])["audit"]
    assert began.error == "ValueError: one" and began.since < began.last
    errors.insert(0, "one")
    monkeypatch.setattr(maintain, "AGAIN", 0.0)
    maintain.perform(one, now())
    assert "audit still fails: ValueError: one" in caplog.text
    assert maintain.perform(one, now()) == 0
    assert "audit goes on" in caplog.text and upkeep.troubles(["audit"]) == {}


def test_duties_are_taken_in_turns_over_the_cluster(db: None) -> None:
    taken = [maintain.perform(duty("promote"), now(), in_turn=True) for _ in range(5)]
    assert taken == [0, None, None, None, None]
    assert [maintain.perform(duty("lanes"), now(), in_turn=True) for _ in range(3)] == [0, 0, 0]
    wait_for(lambda: maintain.perform(duty("promote"), now(), in_turn=True) == 0, 3, "the turn comes again")


def test_the_command_runs_until_told_to_stop(live: Live, probes: Path) -> None:
    process = live.command("visibility_maintain", ready="running")
    other = live.command("visibility_maintain", ready="running")
    change("a", 1)
    watch("probe:a")
    dirty.mark("probe", {"a": 1})
    wait_for(lambda: look("probe:a").queued and ids(), 15)
    assert process.stop() == 0
    assert other.alive


def test_the_command_does_everything_once(db: None, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("visibility_maintain", "--once")
    assert {line.partition(":")[0] for line in capsys.readouterr().out.splitlines()} == NAMES


def test_done_once_with_redis_away_the_command_fails(
    transactional_db: None, own_redis: servers.RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    own_redis.kill()
    try:
        with pytest.raises(SystemExit):
            call_command("visibility_maintain", "--once")
    finally:
        own_redis.start()
    assert "lanes: failed" in capsys.readouterr().out
