"""The public test helpers, on a real Redis and a real database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py
from django.utils import timezone

import visibility
from tests.app.models import Counter
from visibility import dirty, testing
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.models import DirtyFlag, Event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def counter(transactional_db: None) -> Counter:
    made = Counter.objects.create(name="a", value=1)
    DirtyFlag.objects.all().delete()
    return made


def change(counter: Counter) -> None:
    counter.value += 1
    counter.save()


def test_a_watched_change_is_hot_and_drained(counter: Counter) -> None:
    with testing.Tab(7, "counter:a"):
        change(counter)
        testing.assert_hot("counter:a")
        assert testing.drain() == 1
        assert visibility.read("counter", "a").data == {"value": 2}
        with pytest.raises(AssertionError, match="counter:a is not hot: it is visible, nothing is pending"):
            testing.assert_hot("counter:a")


def test_an_unwatched_change_is_cold(counter: Counter) -> None:
    visibility.read("counter", "a")
    with pytest.raises(AssertionError, match="no change of it is marked"):
        testing.assert_cold("counter:a")
    change(counter)
    testing.assert_cold("counter:a")


def test_a_hot_resource_is_not_cold(counter: Counter) -> None:
    with testing.Tab(7, "counter:a"):
        change(counter)
        with pytest.raises(AssertionError, match="waits for a recompute"):
            testing.assert_cold("counter:a")


def test_two_tabs_of_one_user_are_two_watchers_of_one_user(counter: Counter) -> None:
    one, two = testing.Tab(7, "counter:a"), testing.Tab(7, "counter:a")
    found = visibility.watchers("counter:a")
    assert (found.count, list(found.users)) == (2, ["7"])
    one.close()
    one.close()
    assert visibility.is_visible("counter:a")
    two.close()
    testing.advance(10)
    assert not visibility.is_visible("counter:a")


def test_a_hidden_tab_parks_its_watch_and_comes_back(counter: Counter) -> None:
    tab = testing.Tab(7, "counter:a")
    tab.hide()
    testing.advance(30)
    tab.heartbeat()
    testing.advance(40)
    assert not visibility.is_visible("counter:a")
    tab.show()
    assert visibility.is_visible("counter:a")


def test_leases_end_when_time_passes_and_a_heartbeat_keeps_them(counter: Counter) -> None:
    tab = testing.Tab(7, "counter:a")
    testing.advance(50)
    tab.heartbeat()
    testing.advance(50)
    assert visibility.is_visible("counter:a")
    testing.advance(11)
    assert not visibility.is_visible("counter:a")


def test_an_anonymous_tab_has_no_user(counter: Counter) -> None:
    with testing.Tab(None, "counter:a"):
        assert list(visibility.watchers("counter:a").users) == []


def test_what_waited_while_nobody_looked_breaks_no_promise(counter: Counter) -> None:
    visibility.read("counter", "a")
    dirty.mark("counter", {"a": 1}, timezone.now() - timedelta(minutes=10))
    with testing.Tab(7, "counter:a"):
        testing.drain()
        since = visibility.read("counter", "a").event_at
        assert since is not None
        assert timezone.now() - since < timedelta(minutes=1)


def test_flush_forgets_the_soft_state_and_a_heartbeat_brings_it_back(counter: Counter) -> None:
    tab = testing.Tab(7, "counter:a")
    testing.flush()
    assert not visibility.is_visible("counter:a")
    tab.heartbeat()
    assert visibility.is_visible("counter:a")


def test_flush_deletes_the_keys_of_this_app_and_no_others(counter: Counter, redis: redis_py.Redis) -> None:
    others = ["rq:worker:one", "session:7", "vis", "{vis}:mine", "{visible:0}:watchers:counter:a", "{other:0}:snap:counter:a"]
    for name in others:
        redis.set(name, 1)
    redis.rpush("rq:queue:mail", "job")
    visibility.read("counter", "a")
    with testing.Tab(7, "counter:a"):
        change(counter)
        redis.mset({f"{{vis:{n % 3}}}:snap:counter:{n}": n for n in range(2_500)})
        before = set(redis.scan_iter())
        testing.flush()
        assert set(redis.scan_iter()) == {name for name in before if not name.startswith("{vis:")} >= {*others, "rq:queue:mail"}


def test_kill_at_ends_the_path_and_the_outbox_makes_it_good(counter: Counter) -> None:
    with testing.Tab(7, "counter:a"):
        with testing.kill_at("gate.looked") as happened:
            change(counter)
        assert happened()
        assert Event.objects.filter(processed_at=None).count() == 1
        from visibility import gate

        Event.objects.update(retry_at=None)
        gate.redrive(older_than=0)
        testing.assert_hot("counter:a")


def test_a_killed_build_is_taken_over_once_its_claim_has_ended(counter: Counter) -> None:
    with testing.Tab(7, "counter:a") as tab:
        change(counter)
        with testing.kill_at("build.store") as happened:
            testing.drain()
        assert happened()
        assert testing.drain() == 0, "its claim lives"
        testing.advance(settings.BUILD_LEASE + 1)
        tab.heartbeat()
        assert testing.drain() == 1
        assert visibility.read("counter", "a").data == {"value": 2}


def test_time_ends_the_soft_and_the_hard_life_of_a_snapshot(counter: Counter) -> None:
    data_type = registry.get("counter")
    visibility.read("counter", "a")
    assert visibility.read("counter", "a").state == "fresh"
    testing.advance(data_type.soft_ttl * 1.2)
    assert visibility.read("counter", "a").state == "stale"
    testing.advance(data_type.ttl * 1.2)
    assert visibility.read("counter", "a").state == "rebuilt"


def test_time_ends_a_back_off(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    visibility.read("counter", "a")
    with testing.Tab(7, "counter:a") as tab:
        with monkeypatch.context() as patch:
            patch.setattr(type(registry.get("counter")), "build_many", lambda self, keys: {k: ValueError("no") for k in keys})
            change(counter)
            testing.drain(limit=1)
        testing.advance(600)
        tab.heartbeat()
        testing.drain()
        assert visibility.read("counter", "a").data == {"value": 2}


def test_drain_is_told_which_lane_and_how_many(counter: Counter) -> None:
    names = [f"counter:{n}" for n in range(3)]
    with testing.Tab(7, *names):
        testing.drain()
        for n in range(3):
            Counter.objects.create(name=str(n), value=n)
        assert testing.drain("cold") == 0
        assert testing.drain("hot") == 3


def test_kill_at_a_point_that_is_not_reached_says_so(counter: Counter) -> None:
    with testing.kill_at("no.such.point") as happened:
        change(counter)
    assert not happened()


def test_a_resource_that_is_none_is_refused(counter: Counter) -> None:
    calls: list[Any] = [testing.assert_hot, testing.assert_cold, lambda name: testing.Tab(1, name)]
    for call in calls:
        with pytest.raises(visibility.BadResource):
            call("counter")
