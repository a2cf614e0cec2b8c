"""Presence, holds and transitions: derived from leases, announced once over the cluster."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis as redis_py
from django.contrib.auth.models import AnonymousUser, User

import visibility
from tests.app.models import Counter
from tests.support import wait_for
from tests.support.local import draining, immortal
from visibility import signals
from visibility.exceptions import RedisAway
from visibility.presence import Presence, announce, announce_users, drop, sweep
from visibility.soft import leases, sessions
from visibility.soft.leases import Watch
from visibility.soft.sessions import Attending, attend, leave, member

Heard = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "HEARTBEAT": 0.2, "TTL": 0.5, "LINGER": 0.2}


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What was announced, in order: (signal, resource or user)."""
    out: Heard = []
    names = ("became_visible", "became_hidden", "user_online", "user_offline")

    def listen(name: str) -> Callable[..., None]:
        return lambda sender, resource="", user_id="", **kwargs: out.append((name, resource or user_id))

    receivers = {name: listen(name) for name in names}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver)
    yield out
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


@pytest.fixture(params=[1, 4], ids=["one shard", "four shards"])
def shards(request: pytest.FixtureRequest, settings: Any) -> int:
    settings.VISIBILITY = {**settings.VISIBILITY, "SHARDS": request.param}
    return int(request.param)


def come(user: str, sid: str, *resources: str, node: str = "n1", state: str = "visible", limit: int = 0) -> sessions.Attended:
    """A session as a hub writes it, with its watches, and what that crossed announced."""
    done = attend(node, f"{node}:1", [Attending(user, sid, state, resources)], limit)
    announce_users(done.online, (), done.lapsed)
    announce(leases.renew([Watch(r, member(user, sid), "watch") for r in resources]))
    return done


def go(user: str, sid: str, *resources: str) -> None:
    leases.release([(r, member(user, sid), "watch") for r in resources])
    announce_users(offline=leave([(user, sid)]))


def state_of(user: str) -> Presence:
    return visibility.presence([user])[user]


# Presence


@pytest.mark.usefixtures("shards")
def test_presence_of_many_tabs_devices_and_nodes() -> None:
    come("1", "a", node="n1")
    come("1", "b", node="n2", state="background")
    come("2", "c", node="n2", state="background")
    found = visibility.presence(["1", "2", "3"])
    one = found["1"]
    assert (one.online, one.state, sorted(one.nodes)) == (True, "visible", ["n1", "n2"])
    assert sorted((s.id, s.node, s.state) for s in one.sessions) == [("a", "n1", "visible"), ("b", "n2", "background")]
    assert all(s.since for s in one.sessions)
    assert (found["2"].online, found["2"].state) == (True, "background")
    nobody = found["3"]
    assert (nobody.online, nobody.state, nobody.last_seen, nobody.sessions) == (False, "gone", None, ())


def test_last_seen_outlives_the_session() -> None:
    come("1", "a")
    online = state_of("1").last_seen
    assert online is not None
    go("1", "a")
    left = state_of("1")
    assert (left.online, left.state) == (False, "gone")
    assert left.last_seen is not None
    assert abs((left.last_seen - online).total_seconds()) < 1
    come("1", "b")
    wait_for(lambda: not state_of("1").online, 3)
    expired = state_of("1")
    assert expired.last_seen is not None
    assert expired.last_seen >= left.last_seen
    sweep()
    assert abs((state_of("1").last_seen - expired.last_seen).total_seconds()) < 0.01


@pytest.mark.django_db
def test_presence_takes_users_and_keys(make_user: Callable[..., User]) -> None:
    ann = make_user()
    come(str(ann.pk), "a")
    found = visibility.presence([ann, ann.pk, str(ann.pk)])
    assert [found[key].online for key in (ann, ann.pk, str(ann.pk))] == [True] * 3
    assert visibility.presence([AnonymousUser()]) is not None


def test_the_keys_of_a_session_read_well_and_have_a_lifetime(redis: redis_py.Redis) -> None:
    come("7", "s1", "counter:a", node="web-1")
    assert redis.hgetall("{vis:0}:session:s1")["user"] == "7"
    assert redis.hgetall("{vis:0}:session:s1")["node"] == "web-1"
    assert redis.smembers("{vis:0}:interests:s1") == {"counter:a"}
    assert redis.zrange("{vis:0}:presence:7", 0, -1) == ["s1"]
    assert redis.zrange("{vis:0}:node:web-1", 0, -1) == ["s1"]
    assert redis.zrange("{vis:0}:online", 0, -1) == ["7"]
    assert redis.zrange("{vis:0}:watchers:counter:a", 0, -1) == ["7/s1"]
    assert redis.zrange("{vis:0}:visible:counter", 0, -1) == ["a"]


def test_L3_every_key_has_a_lifetime_from_the_start(redis: redis_py.Redis) -> None:
    come("1", "a", "counter:a", "counter:b")
    come("2", "b", "counter:a", state="background")
    come("-", "c")
    leases.renew([Watch("counter:c", "hold/poller", "hold", 1)])
    sessions.tell({"kind": "recheck", "user": "1"})
    go("1", "a", "counter:a", "counter:b")
    sweep()
    drop(user="2")
    immortal = [key for key in redis.keys("*") if redis.ttl(key) < 0]
    assert immortal == []


def test_anonymous_sessions_are_nobody(heard: Heard) -> None:
    come("-", "a", "price:x")
    assert heard == [("became_visible", "price:x")]
    found = visibility.watchers("price:x")
    assert (found.count, found.users, found.sessions) == (1, (), ("a",))
    go("-", "a", "price:x")
    assert [name for name, _ in heard] == ["became_visible"]


def test_the_limit_on_sessions_of_a_user_counts_live_ones() -> None:
    assert come("1", "a", limit=2).refused == []
    assert come("1", "b", limit=2).refused == []
    assert come("1", "c", limit=2).refused == ["c"]
    assert come("1", "a", limit=2).refused == [], "a known session only renews"
    assert come("2", "d", limit=2).refused == []
    wait_for(lambda: not state_of("1").online, 3)
    assert come("1", "c", limit=2).refused == []


# Transitions


@pytest.mark.usefixtures("shards")
def test_L5_closing_one_of_two_tabs_announces_nothing(heard: Heard) -> None:
    come("1", "a")
    come("1", "b", node="n2")
    assert heard == [("user_online", "1")]
    go("1", "a")
    assert heard == [("user_online", "1")]
    go("1", "b")
    assert heard == [("user_online", "1"), ("user_offline", "1")]


def test_L4_hidden_is_decided_on_what_all_nodes_share(heard: Heard) -> None:
    come("1", "a", "counter:a", node="n1")
    come("2", "b", "counter:a", node="n2")
    go("1", "a", "counter:a")
    wait_for(lambda: come("2", "b", "counter:a", node="n2") and sweep() == 0, 1)
    assert ("became_hidden", "counter:a") not in heard
    assert visibility.is_visible("counter:a")


def test_L4_L6_many_nodes_that_come_and_go_at_once_cross_zero_once_each_way(heard: Heard, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 30, "LINGER": 0.05}
    come("0", "stays", "counter:a", node="n0")
    over = threading.Event()

    def node(n: int) -> None:
        for _ in range(25):
            come(str(n), f"s{n}", "counter:a", node=f"n{n}")
            go(str(n), f"s{n}", "counter:a")
            go(str(n), f"s{n}", "counter:a")

    def sweeper() -> None:
        while not over.is_set():
            sweep()

    nodes = [threading.Thread(target=node, args=(n,)) for n in range(1, 5)]
    sweeping = threading.Thread(target=sweeper)
    for thread in (*nodes, sweeping):
        thread.start()
    for thread in nodes:
        thread.join()
    assert [name for name, what in heard if what == "counter:a"] == ["became_visible"]
    assert visibility.watchers("counter:a").count == 1
    go("0", "stays", "counter:a")
    wait_for(lambda: ("became_hidden", "counter:a") in heard, 10)
    over.set()
    sweeping.join()
    assert [name for name, what in heard if what == "counter:a"] == ["became_visible", "became_hidden"]
    for n in range(5):
        assert [name for name, who in heard if who == str(n)] == ["user_online", "user_offline"] * (25 if n else 1)


def test_L6_counts_come_from_sets(redis: redis_py.Redis) -> None:
    for _ in range(3):
        come("1", "a", "counter:a")
        come("1", "b", "counter:a")
    assert visibility.watchers("counter:a").count == 2
    for _ in range(3):
        go("1", "a", "counter:a")
        go("1", "never there", "counter:a")
    assert visibility.watchers("counter:a").count == 1
    go("1", "b", "counter:a")
    assert visibility.watchers("counter:a").count == 0
    leases.release([("counter:a", "1/b", "watch")])
    assert visibility.watchers("counter:a").count == 0


def test_hidden_comes_after_the_linger_and_not_if_somebody_came_back(heard: Heard) -> None:
    come("1", "a", "counter:a")
    go("1", "a", "counter:a")
    assert visibility.is_visible("counter:a"), "lingers"
    assert sweep() == 0
    come("1", "b", "counter:a")
    wait_for(lambda: come("1", "b", "counter:a") and _left("counter:a") > 0.3, 1)
    assert sweep() == 0
    assert [one for one in heard if one[1] == "counter:a"] == [("became_visible", "counter:a")]
    go("1", "b", "counter:a")
    wait_for(lambda: not visibility.is_visible("counter:a"), 2)
    assert sweep() == 1
    assert [one for one in heard if one[1] == "counter:a"] == [("became_visible", "counter:a"), ("became_hidden", "counter:a")]


def _left(resource: str) -> float:
    return leases.counts(resource).visible_for


@pytest.mark.usefixtures("shards")
def test_L1_what_a_killed_process_left_is_announced_exactly_once(heard: Heard) -> None:
    for n in range(40):
        come(str(n), f"s{n}", f"counter:{n}", node="dead")
    heard.clear()
    wait_for(lambda: not any(found.online for found in visibility.presence([str(n) for n in range(40)]).values()), 3)
    wait_for(lambda: visibility.visible("counter") == [], 3)
    sweepers = [threading.Thread(target=lambda: [sweep(7) for _ in range(30)]) for _ in range(4)]
    for thread in sweepers:
        thread.start()
    for thread in sweepers:
        thread.join()
    expected = [("became_hidden", f"counter:{n}") for n in range(40)] + [("user_offline", str(n)) for n in range(40)]
    assert sorted(heard) == sorted(expected)
    assert sweep() == 0


def test_who_comes_back_before_the_sweep_is_announced_as_gone_and_back(heard: Heard) -> None:
    come("1", "a", "counter:a")
    wait_for(lambda: not state_of("1").online and not visibility.is_visible("counter:a"), 3)
    come("1", "b", "counter:a")
    assert [name for name, who in heard if who == "1"] == ["user_online", "user_offline", "user_online"]
    assert [name for name, what in heard if what == "counter:a"] == ["became_visible", "became_hidden", "became_visible"]
    assert sweep() == 0


def test_a_receiver_that_fails_harms_nobody(heard: Heard) -> None:
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("no")

    signals.user_online.connect(broken)
    try:
        come("1", "a")
    finally:
        signals.user_online.disconnect(broken)
    assert state_of("1").online


# Watchers, holds


@pytest.mark.django_db(transaction=True)
def test_holds_count_like_watches_and_are_told_apart(heard: Heard, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 5}
    come("1", "a", "counter:a")
    come("2", "b", "counter:a")
    visibility.hold("counter:a", 30, "exporter")
    visibility.hold("counter:b", 0.3, "page 7")
    found = visibility.watchers("counter:a")
    assert (found.count, found.watching, found.holding) == (3, 2, 1)
    assert (sorted(found.users), sorted(found.sessions), found.holders) == (["1", "2"], ["a", "b"], ("exporter",))
    assert int(found) == 3
    assert heard.count(("became_visible", "counter:b")) == 1
    assert sorted(visibility.visible("counter")) == ["a", "b"]
    assert len(visibility.visible("counter", limit=1)) == 1
    wait_for(lambda: not visibility.is_visible("counter:b"), 3)
    go("1", "a", "counter:a")
    go("2", "b", "counter:a")
    assert visibility.watchers("counter:a").count == 1
    visibility.release("counter:a", "somebody else")
    assert visibility.watchers("counter:a").count == 1
    visibility.release("counter:a", "exporter")
    visibility.release("counter:a", "exporter")
    assert visibility.watchers("counter:a").count == 0
    wait_for(lambda: not visibility.is_visible("counter:a"), 3)


@pytest.mark.django_db(transaction=True)
def test_a_hold_is_never_shortened_by_repeating_it() -> None:
    visibility.hold("counter:a", 30)
    visibility.hold("counter:a", 1)
    assert _left("counter:a") > 20


@pytest.mark.parametrize(
    ("seconds", "holder"),
    [(0, "x"), (-1, "x"), (math.inf, "x"), (math.nan, "x"), (1e300, "x"), (1e12, "x"), ("5", "x"), (None, "x")]
    + [(1, holder) for holder in ("", "x" * 101, None, "\ud800", "a\x00b")],
)
def test_a_hold_that_makes_no_sense(seconds: Any, holder: Any) -> None:
    with pytest.raises(ValueError, match=r"hold"):
        visibility.hold("counter:a", seconds, holder)
    assert not immortal() and not visibility.is_visible("counter:a")
    with pytest.raises(visibility.BadResource):
        visibility.hold("counter", 1)


@pytest.mark.django_db(transaction=True)
def test_a_hold_on_what_is_dirty_has_it_built_once(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 5}
    Counter.objects.create(name="a", value=1)
    first = visibility.read("counter", "a")
    Counter.objects.update_or_create(name="a", defaults={"value": 2})
    built: list[int] = []

    def note(sender: str, version: int, **kwargs: Any) -> None:
        built.append(version)

    signals.snapshot_built.connect(note)
    try:
        with draining():
            for holder in ("x", "y", "z"):
                visibility.hold("counter:a", 30, holder)
            wait_for(lambda: built, 5)
            assert visibility.read("counter", "a").data == {"value": 2}
    finally:
        signals.snapshot_built.disconnect(note)
    assert built == [visibility.read("counter", "a").version]
    assert built[0] > first.version


@pytest.mark.django_db(transaction=True)
def test_a_read_in_the_active_window_is_a_look(make_user: Callable[..., User]) -> None:
    ann = make_user()
    visibility.read("badge", ann.pk)
    found = visibility.watchers(f"badge:{ann.pk}")
    assert (found.count, found.watching, found.holding) == (1, 0, 1)
    visibility.read("feed", ann.pk)
    assert not visibility.is_visible(f"feed:{ann.pk}")


def test_interests_of_a_session() -> None:
    come("1", "a", "counter:b", "counter:a")
    assert visibility.interests("a") == ["counter:a", "counter:b"]
    assert visibility.interests("unknown") == []


# Selective removal


@pytest.fixture
def crowd(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 30, "LINGER": 0}
    come("1", "a", "counter:a", "counter:b", node="n1")
    come("1", "b", "counter:a", node="n2")
    come("2", "c", "counter:a", "price:x", node="n2")
    leases.renew([Watch("counter:a", "hold/h", "hold", 30)])


def seen() -> tuple[Mapping[str, int], set[str]]:
    counts = {name: visibility.watchers(name).count for name in ("counter:a", "counter:b", "price:x")}
    return counts, {s.id for found in visibility.presence(["1", "2"]).values() for s in found.sessions}


@pytest.mark.usefixtures("shards", "crowd")
@pytest.mark.parametrize(
    ("what", "counts", "left"),
    [
        ({"user": "1"}, (2, 0, 1), {"c"}),
        ({"node": "n2"}, (2, 1, 0), {"a"}),
        ({"session": "a"}, (3, 0, 1), {"b", "c"}),
        ({"data_type": "counter"}, (0, 0, 1), {"a", "b", "c"}),
        ({"resource": "counter:a"}, (0, 1, 1), {"a", "b", "c"}),
        ({"user": "nobody"}, (4, 1, 1), {"a", "b", "c"}),
        ({"node": "n9"}, (4, 1, 1), {"a", "b", "c"}),
        ({"session": "z"}, (4, 1, 1), {"a", "b", "c"}),
    ],
)
def test_dropping_leases_of(what: dict[str, Any], counts: tuple[int, int, int], left: set[str], heard: Heard) -> None:
    heard.clear()
    before = sum(seen()[0].values())
    assert drop(**what) == before - sum(counts)
    assert (tuple(seen()[0].values()), seen()[1]) == (counts, left)
    gone = {"1", "2"} - {user for user in ("1", "2") if visibility.presence([user])[user].online}
    assert {who for name, who in heard if name == "user_offline"} == gone
    sweep()
    hidden = {name for name, n in zip(("counter:a", "counter:b", "price:x"), counts, strict=True) if n == 0}
    assert {what for name, what in heard if name == "became_hidden"} == hidden
    assert drop(**what) == 0


def test_drop_wants_exactly_one_thing() -> None:
    for bad in ({}, {"user": 1, "node": "n"}):
        with pytest.raises(ValueError, match="exactly one"):
            drop(**bad)
    with pytest.raises(visibility.UnknownDataType):
        drop(data_type="nope")


def test_drop_works_in_bounded_steps(redis: redis_py.Redis, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 60}
    leases.renew([Watch(f"counter:{n % 1200}", f"{n}/s{n}") for n in range(3000)])
    leases.renew([Watch("counter:full", f"{n}/s{n}") for n in range(1700)])
    redis.config_resetstat()
    assert drop(data_type="counter") == 4700
    stats = redis.info("commandstats")
    assert "cmdstat_keys" not in stats
    assert "cmdstat_scan" not in stats
    assert visibility.visible("counter") == []


# Renewal


def test_a_renewal_writes_whole_what_is_gone(redis: redis_py.Redis) -> None:
    come("1", "a", "counter:a")
    assert attend("n1", "n1:1", [Attending("1", "a")]).gone == []
    assert not attend("n1", "n1:1", []).flushed
    redis.flushall()
    done = attend("n1", "n1:1", [Attending("1", "a")])
    assert (done.gone, done.flushed, done.online) == (["a"], True, [])
    done = attend("n1", "n1:1", [Attending("1", "a", "visible", ["counter:a"])])
    assert (done.gone, done.flushed, done.online) == ([], False, ["1"])
    assert visibility.interests("a") == ["counter:a"]


async def test_a_flush_is_told_though_a_later_call_fails(redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call has written the process's mark: nobody is told again."""
    told: list[str] = []
    many = [Attending(str(n), f"s{n}", "visible") for n in range(sessions.CHUNK * 2 + 1)]
    run, calls = sessions.arun, 0

    async def once(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RedisAway("gone again")
        return await run(*args)

    monkeypatch.setattr(sessions, "arun", once)
    with pytest.raises(RedisAway):
        await sessions.aattend("n1", "n1:1", many, flushed=lambda: told.append("flushed"))
    assert told == ["flushed"]
    assert not (await sessions.aattend("n1", "n1:1", many[:1], flushed=lambda: told.append("flushed"))).flushed
    assert told == ["flushed"]


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_L13_no_clock_of_a_worker_decides(monkeypatch: pytest.MonkeyPatch, settings: Any, hours: int, when: str) -> None:
    """A clock that steps while a lease lives, or that was wrong when it was made: it lives its time, and no longer."""
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 1.5}
    real = time.time
    if when == "after":
        come("1", "a", "counter:a")
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    if when == "before":
        come("1", "a", "counter:a")
    assert visibility.is_visible("counter:a") and state_of("1").online
    wait_for(lambda: not visibility.is_visible("counter:a"), 10)
    assert not state_of("1").online
    assert visibility.watchers("counter:a").count == 0


def test_the_access_log_is_numbered_and_trimmed(monkeypatch: pytest.MonkeyPatch, redis: redis_py.Redis) -> None:
    import asyncio

    from visibility.soft.client import aclose

    async def told(after: int) -> sessions.Told:
        try:
            return await sessions.atold(after)
        finally:
            await aclose()

    first = sessions.tell({"kind": "recheck", "user": "1"})
    second = sessions.tell({"kind": "recheck", "user": "2"})
    assert second > first
    found = asyncio.run(told(0))
    assert [number for number, _ in found.entries] == [first, second]
    assert (found.entries[1][1]["user"], found.missed, found.last) == ("2", False, second)
    assert asyncio.run(told(first)).entries == found.entries[1:]
    redis.flushall()
    third = sessions.tell({"kind": "recheck", "user": "3"})
    assert third > second, "numbers grow across a flush"
    monkeypatch.setattr(sessions, "ACCESS_KEEP_MS", 0)
    wait_for(lambda: asyncio.run(told(0)).entries, 1)
    fourth = sessions.tell({"kind": "recheck", "user": "4"})
    assert asyncio.run(told(second)).missed
    assert not asyncio.run(told(third)).missed
    assert asyncio.run(told(third)).last == fourth


def test_drop_counts_what_sockets_end_themselves_when_they_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    come("1", "a", "counter:a", "counter:b")
    come("1", "b", "counter:a")
    monkeypatch.setattr("visibility.push.publish_access", lambda _number: leave([("1", "a")]))
    assert drop(user="1") == 3
    assert drop(user="1") == 0
    assert leases.counts("counter:a").watch == 0
