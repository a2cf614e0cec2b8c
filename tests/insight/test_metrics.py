from __future__ import annotations

import math
import os
import subprocess
import sys
import threading

import pytest
import redis as redis_py

from tests.support import wait_for
from visibility.insight import metrics
from visibility.insight.metrics import Figures
from visibility.soft import client, inspect


@pytest.fixture(autouse=True)
def empty_buffer() -> None:
    metrics._buffer.take()
    client.close()


def totals() -> Figures:
    return Figures.parse(inspect.total_fields())


def test_counts_and_durations_reach_redis_by_minute_and_in_total(redis: redis_py.Redis) -> None:
    metrics.count("gate_hot", 3, data_type="feed")
    metrics.count("reads", data_type="feed", label="stale")
    metrics.observe("build_seconds", 0.25, data_type="feed")
    assert metrics.flush()
    minute = int(inspect.redis_time() // 60)
    by_minute = [Figures.parse(inspect.minute_fields(m)) for m in (minute - 1, minute)]
    for figures in (by_minute[0].merge(by_minute[1]), totals()):
        assert figures.total("gate_hot", "feed") == 3
        assert figures.total("reads", label="stale") == 1
        assert figures.histogram("build_seconds", "feed").quantile(0.5) == pytest.approx(0.25, rel=0.05)
        assert figures.histogram("build_seconds").total == pytest.approx(0.25)


def test_I8_every_key_has_a_lifetime(redis: redis_py.Redis) -> None:
    metrics.count("events")
    metrics.flush()
    inspect.note_rolled(1, 1, 60)
    inspect.swap_slo_state("feed", "met")
    inspect.write_trail([("feed:1", "{}")], 5)
    keys = redis.keys()
    assert len(keys) == 5
    assert all(redis.ttl(key) > 0 for key in keys)


def test_the_caller_never_waits_for_redis_and_the_buffer_is_sent_within_seconds(redis: redis_py.Redis) -> None:
    before = redis.info("stats")["total_commands_processed"]
    for _ in range(1000):
        metrics.count("gate_hot", data_type="feed")
    assert redis.info("stats")["total_commands_processed"] - before <= 2
    assert metrics._buffer.counts
    wait_for(lambda: totals().total("gate_hot") == 1000, 5)


def test_counting_from_many_threads_loses_nothing() -> None:
    def work() -> None:
        for _ in range(500):
            metrics.count("gate_hot", data_type="feed")
            if _ % 100 == 0:
                metrics.flush()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics.flush()
    assert totals().total("gate_hot") == 4000


def test_a_forked_child_sends_its_own_counts_and_not_its_parents() -> None:
    metrics.count("gate_hot", 5, data_type="feed")
    pid = os.fork()
    if pid == 0:
        try:
            client.close()
            metrics.count("gate_hot", 7, data_type="feed")
            metrics.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert totals().total("gate_hot") == 7
    metrics.flush()
    assert totals().total("gate_hot") == 12


def test_what_a_process_counted_last_is_sent_at_exit() -> None:
    code = "import django; django.setup(); from visibility.insight import metrics; metrics.count('gate_hot', 2)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert totals().total("gate_hot") == 2


def test_redis_away_keeps_a_bounded_buffer_and_sends_it_later(settings, redis: redis_py.Redis) -> None:
    good = dict(settings.VISIBILITY)
    settings.VISIBILITY = {**good, "REDIS_URL": "redis://127.0.0.1:1/0"}
    for n in range(metrics.MAX_FIELDS + 50):
        metrics.count("gate_hot", data_type=f"t{n}")
    assert metrics.flush() is False
    assert len(metrics._buffer.counts) <= metrics.MAX_FIELDS + 1
    settings.VISIBILITY = good
    client.close()
    assert metrics.flush() is True
    assert totals().total("gate_hot") == metrics.MAX_FIELDS
    assert totals().total("metrics_dropped") == 50


@pytest.mark.parametrize("seconds", [math.nan, -5, 0, math.inf])
def test_odd_durations_raise_nothing(seconds: float) -> None:
    metrics.observe("build_seconds", seconds, data_type="feed")
    assert metrics.flush()


def test_M1_a_label_that_is_no_word_becomes_other() -> None:
    for label in ("user 42", "feed:42", "a|b", "~3", "é", "x" * 60):
        metrics.count("reads", data_type="feed", label=label)
    metrics.flush()
    assert totals().counters == {("reads", "feed", "other"): 6}


def test_a_late_flush_goes_to_the_minute_in_which_it_was_counted(redis: redis_py.Redis) -> None:
    metrics.count("gate_hot", 4)
    with metrics._buffer.lock:
        metrics._buffer.counts = {(minute - 3, name): n for (minute, name), n in metrics._buffer.counts.items()}
    metrics.flush()
    then = int(inspect.redis_time() // 60) - 3
    found = [Figures.parse(inspect.minute_fields(minute)).total("gate_hot") for minute in (then - 1, then)]
    assert sum(found) == 4
