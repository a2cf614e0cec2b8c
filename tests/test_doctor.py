"""Each test makes a symptom on real parts and expects the doctor to name it, with evidence and a remedy."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from django.core.management import call_command
from django.db import OperationalError, connection
from django.utils import timezone, translation

from tests.conftest import Live
from tests.insight.test_rollup import write
from tests.lanes import claim, pend, watch
from tests.support import wait_for
from tests.support.probe import order, probes  # noqa: F401
from visibility import dirty, doctor, maintain, points, pressure, promotion, recompute
from visibility.builds import build_claimed, holding
from visibility.conf import settings as ours
from visibility.datatypes import registry
from visibility.doctor import CRITICAL, INFO, WARNING, Finding, data, engine, examine, exit_code, lanes, place, soft, traffic
from visibility.insight import metrics, rollup
from visibility.insight.histogram import Histogram, bucket_of
from visibility.insight.metrics import Figures
from visibility.models import Event, FreshnessSLO
from visibility.read import read
from visibility.soft import client, upkeep
from visibility.soft.locks import Lock, lock

pytestmark = pytest.mark.django_db


def named(code: str, *checks: doctor.Check) -> Finding:
    """The finding of this code; each has its evidence and its remedy."""
    found: dict[str, Finding] = {}
    for one in examine(checks or doctor.CHECKS):
        found.setdefault(one.code, one)
    assert code in found, sorted(found)
    one = found[code]
    assert one.symptom and len(one.remedy) > 20 and one.severity in doctor.SEVERITIES
    json.dumps(one.as_dict())
    return one


def silent(*checks: doctor.Check) -> bool:
    return examine(checks) == []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    metrics._buffer.take()
    client.close()
    pressure.forget()
    yield
    client.close()
    pressure.forget()


@pytest.fixture
def config(redis: redis_py.Redis) -> Iterator[Callable[[str, Any], None]]:
    """Set a parameter of the Redis server; it is put back."""
    before: dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        before.setdefault(name, redis.config_get(name)[name])
        redis.config_set(name, value)

    yield put
    for name, value in before.items():
        redis.config_set(name, value)


class TestRedis:
    def test_out_of_reach(self, settings: Any) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://:secret@127.0.0.1:1/0"}
        one = named("redis_away")
        assert one.severity == CRITICAL
        assert "secret" not in json.dumps(one.as_dict())
        assert sum(found.code == "redis_away" for found in examine()) == 1

    def test_a_replica_that_takes_no_writes(self, redis: redis_py.Redis) -> None:
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            named("redis_away", soft.reachable)
        finally:
            redis.execute_command("REPLICAOF", "NO", "ONE")
        client.close()
        assert silent(soft.reachable)

    def test_the_wrong_eviction_policy(self, config: Any) -> None:
        assert silent(soft.eviction)
        config("maxmemory-policy", "allkeys-lru")
        assert named("eviction_policy", soft.eviction).severity == WARNING
        config("maxmemory", "2gb")
        assert named("eviction_policy", soft.eviction).severity == CRITICAL

    def test_memory_that_is_nearly_full(self, redis: redis_py.Redis, config: Any) -> None:
        used = redis.info("memory")["used_memory"]
        config("maxmemory", int(used * 1.04))
        named("memory_full", soft.memory)

    def test_leaked_locks_and_leases_without_a_lifetime(self, redis: redis_py.Redis) -> None:
        watch("counter:a", "counter:b")
        assert silent(soft.immortal_keys)
        for key in redis.keys("*watchers*"):
            redis.persist(key)
        one = named("immortal_keys", soft.immortal_keys)
        assert any("watchers" in key for key in one.evidence["keys"])

    def test_a_leaked_named_lock_whose_holder_died(self, redis: redis_py.Redis) -> None:
        with lock("report:7", 30):
            assert silent(soft.named_locks)
        Lock("report:8", 0.05).acquire()
        wait_for(lambda: not redis.exists("{vis:0}:lock:report:8"), 5)
        one = named("locks_ended", soft.named_locks)
        assert one.evidence["locks"][0][0] == "report:8"

    def test_a_named_lock_that_is_held_for_too_long_or_for_ever(
        self, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Lock("report:7", 30).acquire()
        monkeypatch.setattr(soft, "LONG_HELD", 0.01)
        one = wait_for(lambda: next(iter(examine([soft.named_locks])), None), 5)
        assert (one.code, one.severity) == ("locks_held_long", INFO)
        assert str(os.getpid()) in one.evidence["locks"][0][1]
        monkeypatch.setattr(soft, "LONG_HELD", 3_600.0)
        assert silent(soft.named_locks)
        redis.persist("{vis:0}:lock:report:7")
        assert named("locks_held_long", soft.named_locks).evidence["locks"][0][3] == "never"

    def test_the_keys_of_others_are_theirs(self, redis: redis_py.Redis) -> None:
        redis.set("their:key", "1")
        assert silent(soft.immortal_keys)

    def test_clocks_that_disagree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert silent(soft.clock_skew)
        monkeypatch.setattr(soft, "local_time", lambda: time.time() - 90)
        one = named("clock_skew", soft.clock_skew)
        assert one.evidence["seconds"] == pytest.approx(-90, abs=1)
        assert "behind" in one.symptom

    def test_leases_that_ended_and_nobody_said_so(self, redis: redis_py.Redis) -> None:
        watch("counter:a")
        assert silent(soft.dead_leases)
        redis.zincrby("{vis:0}:visible:counter", -3_600_000, "a")
        assert named("dead_leases", soft.dead_leases).evidence["by_type"] == {"counter": 1}


class TestPlace:
    def test_a_mistake_in_the_settings(self, settings: Any) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "TLL": 60}
        found = [one for one in examine([place.system_checks]) if one.code.startswith("visibility.E")]
        assert any("TLL" in one.symptom for one in found)

    def test_the_layer_in_memory(self, settings: Any) -> None:
        settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
        named("in_memory_layer", place.in_memory_layer)
        settings.CHANNEL_LAYERS = {}
        named("no_layer", place.in_memory_layer)

    @pytest.mark.parametrize("hosts", [["redis://h:6379"], [("h", 6379)], [{"address": "redis://h"}], None])
    def test_S3_redis_py_8_and_the_core_layer(self, settings: Any, hosts: Any) -> None:
        config = {} if hosts is None else {"hosts": hosts}
        settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": config}}
        assert named("socket_timeout", place.socket_timeout).severity == CRITICAL

    @pytest.mark.parametrize(
        "layer",
        [
            {
                "BACKEND": "channels_redis.core.RedisChannelLayer",
                "CONFIG": {"hosts": [{"address": "redis://h", "socket_timeout": None}]},
            },
            {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": ["redis://h"]}},
        ],
    )
    def test_S3_layers_that_are_fine(self, settings: Any, layer: Any) -> None:
        settings.CHANNEL_LAYERS = {"default": layer}
        assert silent(place.socket_timeout)


class TestLanes:
    def test_a_queue_that_rq_does_not_know(self, settings: Any) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "LANES": {"hot": {"queue": "nowhere", "bound": 10, "batch": 5}}}
        one = named("queue_away", lanes.queues_reachable)
        assert "nowhere" in json.dumps(one.evidence)

    def test_no_worker_on_a_lane(self) -> None:
        found = [one for one in examine([lanes.no_worker]) if one.code == "no_worker"]
        assert {one.evidence["lane"] for one in found} == {"hot", "cold"}
        assert {one.severity for one in found} == {WARNING}
        # What it says to start is a command that exists.
        assert {re.search(r"visibility_worker (--lane \w+)", one.remedy)[1] for one in found} == {"--lane hot", "--lane cold"}  # type: ignore[index]
        watch("counter:a")
        pend("counter:a")
        assert named("no_worker", lanes.no_worker).severity == CRITICAL

    def test_work_piles_up(self, redis: redis_py.Redis) -> None:
        pend(*(f"counter:{n}" for n in range(50)))
        assert silent(lanes.piling_up)
        for n in range(50):
            redis.zincrby("{vis:0}:pending:hot", -60_000, f"counter:{n}")
        one = named("queue_piling_up", lanes.piling_up)
        assert one.evidence["pending"] == 50
        assert one.evidence["lag_seconds"] == pytest.approx(60, abs=2)

    def test_a_lane_at_its_bound(self, settings: Any) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "LANES": {"hot": {"queue": "visibility-hot", "bound": 20, "batch": 5}}}
        pend(*(f"counter:{n}" for n in range(20)))
        assert named("queue_piling_up", lanes.piling_up).severity == CRITICAL
        pressure.evaluate(ours.lane("hot"))
        assert named("under_pressure", lanes.pressed).evidence["stage"] == "flooded"

    def test_doubled_jobs(self) -> None:
        for _ in range(4):
            recompute.enqueue_drain("hot", 0)
        assert silent(lanes.doubled_jobs)
        for _ in range(11):
            recompute.enqueue("visibility-hot", "visibility.recompute.drain", "hot", 0, hint="twice")
        one = named("doubled_jobs", lanes.doubled_jobs)
        assert one.evidence["waiting"] == 12
        assert 12 in one.evidence["same"].values() or 11 in one.evidence["same"].values()

    def test_claims_whose_owner_died(self, redis: redis_py.Redis) -> None:
        pend("counter:a")
        claim()
        assert silent(lanes.ended_claims)
        redis.zincrby("{vis:0}:claimed:hot", -120_000, "counter:a")
        one = named("leaked_claims", lanes.ended_claims)
        assert one.severity == CRITICAL and one.evidence["ended"] == 1

    def test_a_build_that_hangs_and_renews_its_lock(self, redis: redis_py.Redis) -> None:
        pend("counter:a")
        claim()
        assert silent(lanes.hanging_builds)
        redis.hset("{vis:0}:state:counter:a", "built", int((time.time() - 600) * 1000))
        assert named("leaked_locks", lanes.hanging_builds).evidence["held"][0][0] == "counter:a"

    def test_nobody_maintains(self, redis: redis_py.Redis) -> None:
        assert named("nobody_maintains", lanes.nobody_maintains).severity == CRITICAL
        upkeep.beat()
        assert silent(lanes.nobody_maintains)
        redis.set("{vis:0}:maintained", int((time.time() - 100) * 1000), ex=100)
        assert named("nobody_maintains", lanes.nobody_maintains).evidence["seconds_since_last"] == pytest.approx(100, abs=2)

    def test_a_duty_that_fails(self, monkeypatch: pytest.MonkeyPatch, redis: redis_py.Redis) -> None:
        def broken(*args: Any) -> None:
            raise ValueError("no such number")

        audit = next(duty for duty in maintain.DUTIES if duty.name == "audit")
        assert silent(lanes.failing_duties)
        with monkeypatch.context() as patched:
            patched.setattr(promotion, "_walk", broken)
            assert maintain.perform(audit, timezone.now()) is None
        one = named("duty_failing", lanes.failing_duties)
        assert one.severity == WARNING and list(one.evidence["since_seconds"]) == ["audit"]
        assert "counter: ValueError: no such number" in one.evidence["errors"]["audit"]
        told = json.loads(redis.get("{vis:0}:trouble:audit"))
        redis.set("{vis:0}:trouble:audit", json.dumps([told[0] - 100, *told[1:]]), ex=60)
        one = named("duty_failing", lanes.failing_duties)
        assert one.severity == CRITICAL and one.evidence["since_seconds"]["audit"] >= 99
        assert maintain.perform(audit, timezone.now()) == 0
        assert silent(lanes.failing_duties)


class TestData:
    def test_an_outbox_that_nobody_empties(self) -> None:
        Event.objects.create(source="emit", data_type="counter", created_at=timezone.now())
        assert silent(data.outbox)
        Event.objects.create(source="emit", data_type="counter", created_at=timezone.now() - dt.timedelta(minutes=5))
        one = named("outbox_waits", data.outbox)
        assert (one.severity, one.evidence["waiting"]) == (CRITICAL, 1)
        assert one.evidence["oldest_seconds"] == pytest.approx(300, abs=3)

    def test_events_that_failed(self) -> None:
        Event.objects.create(
            source="model", model="testapp.post", data_type="feed", created_at=timezone.now(), processed_at=timezone.now(),
            outcome="failed", error="feed: KeyError: 'author'",
        )  # fmt: skip
        assert "KeyError" in named("failed_events", data.failed_events).evidence["error"]

    def test_the_quarantine(self) -> None:
        assert silent(data.quarantine)
        dirty.quarantine("counter", "a", 5, "ValueError: no")
        assert named("quarantine", data.quarantine).evidence["newest"] == [["counter:a", "ValueError: no"]]

    def test_state_that_is_stale_though_somebody_looks(self) -> None:
        long_ago = timezone.now() - dt.timedelta(minutes=3)
        dirty.mark("counter", {"a": 1, "hidden": 1}, long_ago)
        assert silent(data.stale_state)
        watch("counter:a")
        one = named("stale_state", data.stale_state)
        assert one.evidence["resources"] == ["counter:a"]
        assert one.evidence["oldest_seconds"]["counter"] == pytest.approx(180, abs=2)

    def test_a_promise_that_is_broken(self) -> None:
        FreshnessSLO.objects.create(data_type="counter", seconds=2, objective=0.99)
        write(0, {f"freshness_sent|counter|~{bucket_of(0.1)}": 90, f"freshness_sent|counter|~{bucket_of(30)}": 30})
        one = named("promise_burning_fast", data.promises)
        assert one.evidence["attained"] == pytest.approx(0.75)

    @pytest.mark.parametrize(
        ("code", "long_ago", "now"), [("promise_burning", (1000, 0), (97, 3)), ("promise_missed", (900, 100), (100, 0))]
    )
    def test_a_promise_that_burns_slowly_or_was_missed(self, code: str, long_ago: tuple[int, int], now: tuple[int, int]) -> None:
        FreshnessSLO.objects.create(data_type="counter", seconds=2, objective=0.99, window=86_400)
        for minutes, (good, late) in ((600, long_ago), (1, now)):
            seen = Figures(histograms={("freshness_sent", "counter"): Histogram.of([0.1] * good + [30.0] * late)})
            rollup.save_minute(int(time.time() // 60) - minutes, seen)
        assert named(code, data.promises).severity == WARNING

    def test_counts_that_nobody_carries_over(self) -> None:
        write(0, {"gate_hot|counter|": 1})
        assert silent(data.nobody_carries_over)
        write(7, {"gate_hot|counter|": 1})
        named("no_rollups", data.nobody_carries_over)

    def test_the_database_is_away(self) -> None:
        def refuse(*args: Any) -> Any:
            raise OperationalError("the database does not answer")

        with connection.execute_wrapper(refuse):
            found = examine()
        assert [one.code for one in found].count("database_away") == 1
        assert exit_code(found) == 2


class TestTraffic:
    @pytest.mark.django_db(transaction=True)
    def test_a_stampede(self, probes: Any) -> None:  # noqa: F811
        order("a", delay=0.4)

        def look() -> None:
            try:
                read("probe", "a")
            finally:
                connection.close()

        threads = [threading.Thread(target=look) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        metrics.flush()
        one = named("stampede", traffic.counted)
        assert one.evidence["data_type"] == "probe"
        assert one.evidence["builds"] == 1
        assert one.evidence["waits"] >= 20

    def test_builds_that_come_too_late(self, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        def sleep_too_long(point: str) -> None:
            if point == "build.store":
                redis.zincrby("{vis:0}:claimed:hot", -60_000, name)

        for n in range(6):
            name = f"counter:k{n}"
            pend(name)
            owned = claim()
            with monkeypatch.context() as late, holding("hot", owned) as lost:
                late.setattr(points, "hook", sleep_too_long)
                build_claimed(registry.get("counter"), "hot", owned, owned.rows, lost)
            redis.zrem("{vis:0}:pending:hot", name)
        metrics.flush()
        assert named("doubled_builds", traffic.counted).evidence["refused"] == 6

    def test_builds_that_fail(self, probes: Any) -> None:  # noqa: F811
        for n in range(6):
            order(f"k{n}", fail="no")
            pend(f"probe:k{n}")
            owned = claim()
            with holding("hot", owned) as lost:
                build_claimed(registry.get("probe"), "hot", owned, owned.rows, lost)
        metrics.flush()
        assert named("failing_builds", traffic.counted).severity == CRITICAL

    def test_counts_that_were_dropped(self) -> None:
        for n in range(metrics.MAX_FIELDS + 3):
            metrics.count(f"m{n}")
        metrics.flush()
        named("counts_dropped", traffic.counted)


class TestAll:
    def test_a_check_that_breaks_is_a_finding_and_not_the_end(self) -> None:
        def broken() -> Iterator[Finding]:
            raise ValueError("no")
            yield

        found = examine([broken, lanes.nobody_maintains])
        assert {one.code for one in found} == {"check_failed", "nobody_maintains"}

    def test_the_worst_comes_first(self) -> None:
        severities = [one.severity for one in examine()]
        assert severities == sorted(severities, key=doctor.SEVERITIES.index)

    def test_exit_codes(self) -> None:
        def one(severity: str) -> Finding:
            return Finding(code="x", severity=severity, symptom="s", remedy="r")

        cases = {(): 0, ("info",): 0, ("warning",): 1, ("warning", "critical"): 2}
        for severities, code in cases.items():
            assert exit_code([one(severity) for severity in severities]) == code

    def test_queries_are_bounded(self, django_assert_max_num_queries: Any) -> None:
        with django_assert_max_num_queries(25):
            examine()

    def test_no_keys_and_no_scan(self, redis: redis_py.Redis) -> None:
        redis.config_resetstat()
        examine()
        used = set(redis.info("commandstats"))
        assert not {name for name in used if "scan" in name or name == "cmdstat_keys"}

    def test_texts_follow_the_language_and_codes_do_not(self) -> None:
        with translation.override("id"):
            one = named("nobody_maintains", lanes.nobody_maintains)
        assert one.symptom.startswith("Tidak ada loop pemeliharaan")
        assert "Jalankan visibility_maintain" in one.remedy


class TestCommand:
    def test_in_words(self) -> None:
        out = io.StringIO()
        with pytest.raises(SystemExit) as ended:
            call_command("visibility_doctor", stdout=out, no_color=True)
        assert ended.value.code == 2
        assert "✗ critical [nobody_maintains]" in out.getvalue()
        assert "  → Start visibility_maintain" in out.getvalue()

    def test_as_json(self) -> None:
        out = io.StringIO()
        with pytest.raises(SystemExit):
            call_command("visibility_doctor", json=True, stdout=out)
        found = json.loads(out.getvalue())
        assert {"code", "severity", "symptom", "evidence", "remedy"} == set(found[0])


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_a_healthy_system_has_nothing_to_do(live: Live) -> None:
    with_workers = live.worker("visibility-hot"), live.worker("visibility-cold"), live.command("visibility_maintain")
    assert all(process.alive for process in with_workers)
    wait_for(lambda: upkeep.silence() is not None, 20, "somebody maintains")
    assert engine.workers("visibility-hot") == 1
    assert [one for one in examine() if one.severity != doctor.INFO] == []
    out = io.StringIO()
    call_command("visibility_doctor", stdout=out, no_color=True)
    assert "nothing to do" in out.getvalue()
