"""Workers as real processes: `visibility_worker`, `rqworker`, `rqworker-pool`, the forking Worker; how they end and come back."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis as redis_py
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from tests.conftest import Live
from tests.lanes import change, look, pend, watch
from tests.support import servers, wait_for
from tests.support.probe import builds, order
from tests.support.processes import Process, session_members
from visibility import recompute, wake, workers
from visibility.conf import settings
from visibility.doctor import engine
from visibility.read import read
from visibility.soft import client as soft_client, levels, snapshots, upkeep


def stored(resource: str = "probe:a") -> Any:
    one = snapshots.unpack(look(resource).raw, 1)
    return one and json.loads(one.body)


def ask(key: str = "a", value: int = 1, lane: str = "hot", kind: str = "probe") -> None:
    change(key, value)
    watch(f"{kind}:{key}")
    wake.wake(lane, pend(f"{kind}:{key}", lane=lane).wake)


def children(process: Process) -> list[int]:
    """The worker processes of a `visibility_worker`."""
    out = []
    for pid in session_members(process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"--child" in command:
            out.append(pid)
    return out


def crew(live: Live, *arguments: str, up: int = 0, **options: Any) -> Process:
    """A `visibility_worker`, once `up` of its workers listen: each is a whole project to import on a busy machine."""
    process = live.command("visibility_worker", *arguments, ready="visibility workers", **options)
    if up:
        with redis_py.Redis.from_url(settings.REDIS_URL) as client:
            process.wait_until(lambda: client.scard("rq:workers") >= up, 90, f"{up} workers listen")
    return process


# --- numbers ------------------------------------------------------------------------------------------------------------


def test_how_many_of_each_lane() -> None:
    assert workers.lane_counts([]) == {"hot": 1, "cold": 1}
    assert workers.lane_counts(["hot=3", "cold=0"]) == {"hot": 3, "cold": 0}
    assert workers.lane_counts(["cold"]) == {"cold": 1}
    lanes = {"hot": {"queue": "visibility-hot", "workers": 4}, "cold": {"queue": "visibility-cold"}}
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "LANES": lanes}):
        assert workers.lane_counts([]) == {"hot": 4, "cold": 1}
        assert workers.lane_counts(["hot"]) == {"hot": 4}


@pytest.mark.parametrize("option", ["warm=1", "hot=many", "hot=-1", "=2"])
def test_a_wrong_lane_is_an_error_of_the_command(option: str) -> None:
    with pytest.raises(CommandError):
        call_command("visibility_worker", "--lane", option)


def test_a_worker_has_one_queue_with_its_own_serializer() -> None:
    queues = {"visibility-hot": {"URL": settings.REDIS_URL, "SERIALIZER": "rq.serializers.JSONSerializer"}}
    with override_settings(RQ_QUEUES=queues):
        worker = workers.make_worker("hot")
        assert [queue.name for queue in worker.queues] == ["visibility-hot"]
        assert worker.serializer.__name__ == "JSONSerializer"
        worker.connection.close()


# --- every way to run them ------------------------------------------------------------------------------------------------


def test_visibility_worker_serves_every_lane_and_maintains(live: Live, probes: Path, redis: redis_py.Redis) -> None:
    process = crew(live, "--lane", "hot=2", "--lane", "cold=1", up=3)
    wait_for(lambda: len(children(process)) == 3, 10)
    ask("a", 1)
    ask("b", 2, lane="cold", kind="coldprobe")
    wait_for(lambda: stored("probe:a") == {"value": 1} and stored_cold("coldprobe:b") == {"value": 2}, 20)
    assert (upkeep.silence() or 0.0) < 3
    assert upkeep.silence() is not None
    redis.flushall()
    wait_for(lambda: (engine.workers("visibility-hot"), engine.workers("visibility-cold")) == (2, 1), 20, "all listen again")
    assert set(redis.smembers("rq:workers")) == {key for key in redis.keys("rq:worker:*") if redis.ttl(key) > 0}


def stored_cold(resource: str) -> Any:
    one = snapshots.unpack(look(resource, "cold").raw, 1)
    return one and json.loads(one.body)


def test_without_maintenance_it_leaves_that_to_others(live: Live, probes: Path) -> None:
    crew(live, "--lane", "hot", "--no-maintenance", up=1)
    ask()
    wait_for(lambda: stored() == {"value": 1}, 20)
    assert upkeep.silence() is None


@pytest.mark.parametrize("worker_class", ["rq.worker.SimpleWorker", "rq.worker.Worker"])
def test_a_plain_rqworker_works(live: Live, probes: Path, redis: redis_py.Redis, worker_class: str) -> None:
    live.worker(worker_class=worker_class)
    for n in range(1, 4):
        ask("a", n)
        wait_for(lambda n=n: stored() == {"value": n}, 15)
    redis.flushall()

    def listed() -> bool:
        ask("a", 9)
        return stored() == {"value": 9} and engine.workers("visibility-hot") == 1

    wait_for(listed, 15, "its next job lists it")


def test_a_pool_of_rq_workers_works(live: Live, probes: Path) -> None:
    live.command("rqworker-pool", "visibility-hot", "--num-workers", "2")
    for n in range(1, 4):
        ask("a", n)
        wait_for(lambda n=n: stored() == {"value": n}, 60)


def test_the_forking_worker_under_visibility_worker(live: Live, probes: Path) -> None:
    process = crew(live, "--lane", "hot", "--worker-class", "rq.worker.Worker", up=1)
    for n in range(1, 4):
        ask("a", n)
        wait_for(lambda n=n: stored() == {"value": n}, 60)
    assert not {pid for pid, _, _ in builds("a")} & {process.pid}


def test_the_queue_s_serializer_is_honoured(live: Live, probes: Path) -> None:
    """`manage.py rqworker` needs to be told; this command is not."""
    from tests import settings_json

    recompute._queues.clear()
    try:
        with override_settings(RQ_QUEUES=settings_json.RQ_QUEUES):
            crew(live, "--lane", "hot", "--no-maintenance", up=1, settings="tests.settings_json")
            for n in range(1, 3):
                ask("a", n)
                wait_for(lambda n=n: stored() == {"value": n}, 60)
    finally:
        recompute._queues.clear()


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_all_of_them_end_soon_and_none_is_left(live: Live, probes: Path, number: signal.Signals) -> None:
    process = crew(live, "--lane", "hot=2", "--lane", "cold=1", up=3)
    ask()
    wait_for(lambda: stored() == {"value": 1}, 20)
    wait_for(lambda: len(children(process)) == 3, 10)
    started = time.monotonic()
    process.send(number)
    assert process.popen.wait(20) == 0
    assert time.monotonic() - started < 15
    assert session_members(process.pid) == []
    assert "ended" in process.output


def _told(redis: redis_py.Redis, name: str) -> bool:
    return redis.type(name) == "hash" and redis.hexists(name, "shutdown_requested_date")


def test_a_batch_under_way_is_finished(live: Live, probes: Path, redis: redis_py.Redis) -> None:
    process = crew(live, "--lane", "hot", up=1)
    order("a", hold=True)
    ask()
    wait_for(lambda: builds("a"), 20)
    process.send(signal.SIGTERM)
    wait_for(lambda: [name for name in redis.scan_iter("rq:worker:*") if _told(redis, name)], 10, "the worker was told")
    order("a", value=5)
    process.popen.wait(20)
    assert stored() == 5
    assert levels.lane_state("hot").claimed == 0


def test_a_batch_that_does_not_end_is_given_back(live: Live, probes: Path) -> None:
    process = crew(live, "--lane", "hot", "--grace", "1.5", up=1)
    order("a", hold=True)
    ask()
    wait_for(lambda: builds("a"), 20)
    process.send(signal.SIGTERM)
    process.popen.wait(20)
    seen = look("probe:a")
    assert seen.claim_ms is None and seen.due_ms is not None
    assert session_members(process.pid) == []
    order("a")
    assert read("probe", "a").data == {"value": 1}


def test_a_dead_child_is_replaced(live: Live, probes: Path) -> None:
    process = crew(live, "--lane", "hot", up=1)
    wait_for(lambda: len(children(process)) == 1, 10)
    (first,) = children(process)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: children(process) and children(process) != [first], 10, "another one works")
    ask()
    wait_for(lambda: stored() == {"value": 1}, 60)


def test_children_end_with_their_parent_however_it_ended(live: Live, probes: Path) -> None:
    process = crew(live, "--lane", "hot=2", up=2)
    ask()
    wait_for(lambda: stored() == {"value": 1}, 20)
    wait_for(lambda: len(children(process)) == 2, 10)
    os.kill(process.pid, signal.SIGKILL)
    process.popen.wait(5)
    wait_for(lambda: session_members(process.pid) == [], 15, "the children are gone")


@pytest.mark.parametrize("worker_class", ["rq.worker.SimpleWorker", "rq.worker.Worker"])
def test_a_plain_worker_finishes_its_batch_on_sigterm(live: Live, probes: Path, worker_class: str) -> None:
    process = live.worker(worker_class=worker_class)
    order("a", hold=True)
    ask()
    wait_for(lambda: builds("a"), 20)
    process.send(signal.SIGTERM)
    wait_for(lambda: "warm shut down" in process.output, 5)
    order("a", value=5)
    process.popen.wait(20)
    assert stored() == 5
    assert levels.lane_state("hot").claimed == 0


def test_J5_the_parent_of_a_work_horse_is_killed_and_nothing_is_built_wrongly(live: Live, probes: Path) -> None:
    """The horse goes on alone (fact 7); another worker starts; the last value stands."""
    process = live.worker(worker_class="rq.worker.Worker", visibility={"BUILD_LEASE": 1})
    order("a", hold=True)
    ask()
    wait_for(lambda: builds("a"), 20)
    os.kill(process.pid, signal.SIGKILL)
    process.popen.wait(5)
    change("a", 2)
    wake.wake("hot", pend("probe:a").wake)
    order("a")
    crew(live, "--lane", "hot")
    wait_for(lambda: stored() == {"value": 2}, 60)


# --- outages ------------------------------------------------------------------------------------------------------------


def test_workers_outlive_a_redis_outage(live: Live, probes: Path, own_redis: servers.RedisServer) -> None:
    process = crew(live, "--lane", "hot", up=1)
    ask()
    wait_for(lambda: stored() == {"value": 1}, 20)
    own_redis.kill()
    wait_for(lambda: "waits" in process.output, 20, "the maintenance loop has noticed")
    own_redis.start()
    soft_client.close()
    ask("a", 2)
    wait_for(lambda: stored() == {"value": 2}, 30, "the worker is back")
    assert process.alive
    wait_for(lambda: (upkeep.silence() or 99.0) < 3, 10, "maintenance is back")


def test_redis_that_comes_after_the_workers_is_waited_for(live: Live, probes: Path, own_redis: servers.RedisServer) -> None:
    own_redis.kill()
    process = crew(live, "--lane", "hot")
    wait_for(lambda: "waits for Redis" in process.output or "could not connect" in process.output, 20)
    own_redis.start()
    soft_client.close()
    ask()
    wait_for(lambda: stored() == {"value": 1}, 60)


def test_a_paused_redis_is_waited_out(live: Live, probes: Path, own_redis: servers.RedisServer, redis: redis_py.Redis) -> None:
    """No answer at all for longer than a socket's timeout: RQ gives up on that, this command does not."""
    process = crew(live, "--lane", "hot", up=1)
    ask()
    wait_for(lambda: stored() == {"value": 1}, 20)
    own_redis.pause()
    try:
        wait_for(lambda: "waits" in process.output, 30)
    finally:
        own_redis.resume()
    soft_client.close()
    wait_for(lambda: redis.ping(), 5)
    ask("a", 2)
    wait_for(lambda: stored() == {"value": 2}, 40)


def test_a_workers_connection_serves_job_after_job(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `CONN_MAX_AGE` 0 each job would open its own. One that the server has closed is noticed before it is used."""
    for name, value in {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}.items():
        monkeypatch.setitem(connection.settings_dict, name, value)
    connection.close()
    try:
        workers.keep_connections()
        assert recompute.drain("hot") == 0
        connection.ensure_connection()
        kept = connection.connection
        assert recompute.drain("hot") == 0
        assert connection.connection is kept
        if connection.vendor == "postgresql":
            kept.close()
            assert recompute.drain("hot") == 0
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            assert connection.connection is not kept
    finally:
        connection.close()


@pytest.mark.parametrize(("age", "options"), [(7, {}), (None, {}), (0, {"pool": True})])
def test_a_database_that_is_kept_or_pooled_by_its_settings_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, age: int | None, options: dict[str, Any]
) -> None:
    given = {"CONN_MAX_AGE": age, "CONN_HEALTH_CHECKS": False, "OPTIONS": options}
    own = dict(given)
    monkeypatch.setattr(workers, "connections", {"default": SimpleNamespace(settings_dict=own)})
    workers.keep_connections()
    assert own == given
