"""The socket's protocol, driven in process: the real application, hub, Redis and database."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

import visibility
from tests.app.models import Counter, Follow, Post, Room
from tests.support import await_for, servers
from tests.support.fuzz import random_frame
from tests.support.local import Sockets, achange, draining, no_traceback
from tests.support.sizes import size
from tests.support.sockets import Tab, session_for
from visibility.datatypes import registry
from visibility.insight import metrics
from visibility.presence import asweep, drop
from visibility.sockets import frames
from visibility.sockets.hub import hub_here
from visibility.soft import leases, looks
from visibility.soft.client import close
from visibility.soft.inspect import total_fields
from visibility.soft.leases import Watch

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "HEARTBEAT": 1, "TTL": 3, "LINGER": 0.3, "NODE": "here"}


@pytest.fixture
async def ann(make_user: Callable[..., User]) -> User:
    return await sync_to_async(make_user)("ann")


async def put(name: str, value: int) -> None:
    """Set a counter; the gate does the rest."""
    await Counter.objects.aupdate_or_create(name=name, defaults={"value": value})


async def refused(tab: Tab, frame: Any) -> Mapping[str, Any]:
    await tab.send(frame)
    return await tab.expect("error")


async def counts(resource: str) -> leases.Counts:
    return await leases.acounts(resource)


# Watching


async def test_hello_says_what_a_client_must_keep_to(tabs: Sockets) -> None:
    tab = await tabs()
    hello = tab.frames[0]
    assert hello["op"] == "hello"
    assert hello["session"] == tab.session
    assert hello["heartbeat"] == 1
    assert hello["limits"]["watches_per_socket"] == 200


def test_S10_the_heartbeat_is_below_what_proxies_cut_at() -> None:
    from visibility.conf import DEFAULTS

    assert DEFAULTS["HEARTBEAT"] < 30


async def test_the_first_watch_of_a_missing_resource_builds_it_once(tabs: Sockets, ann: User) -> None:
    await Counter.objects.acreate(name="a", value=1)
    with draining() as built:
        opened = [await tabs(ann) for _ in range(5)]
        for answer in await asyncio.gather(*(tab.watch("counter:a") for tab in opened)):
            assert answer["resources"]["counter:a"]["watchers"] >= 1
        shown = [await tab.data("counter:a", {"value": 1}) for tab in opened]
    assert {frame["state"] for frame in shown} == {"fresh"}
    assert len({frame["version"] for frame in shown}) == 1
    # Counted once the drain is over: what it built is shown before it is counted.
    assert built["hot"] == 1


async def test_a_dirty_resource_is_shown_stale_at_once_and_built_once(tabs: Sockets, ann: User) -> None:
    with draining():
        await put("a", 1)
        first = await tabs(ann)
        await first.watch("counter:a")
        old = await first.data("counter:a", {"value": 1})
        await first.close()
        await await_for(lambda: _hidden("counter:a"), 5, "hidden")
    for value in (2, 3, 4):
        await put("a", value)
    tab = await tabs(ann)
    await tab.watch("counter:a")
    stale = await tab.expect("update")
    assert (stale["state"], stale["data"], stale["version"], stale["missed"]) == ("stale", {"value": 1}, old["version"], 3)
    # Built only now: with a newer version at hand, the stale one would rightly not be sent.
    with draining() as built:
        fresh = await tab.expect("update")
    assert (fresh["state"], fresh["data"], fresh["missed"]) == ("fresh", {"value": 4}, 0)
    assert fresh["version"] > old["version"]
    assert built["hot"] == 1


async def _hidden(resource: str) -> bool:
    return not await visibility.ais_visible(resource)


async def test_who_has_the_version_gets_no_update(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    await put("a", 1)
    tab = await tabs(ann)
    await tab.watch("counter:a")
    version = (await tab.data("counter:a", {"value": 1}))["version"]
    await tab.close()
    back = await tabs(ann)
    answer = await back.watch("counter:a", since={"counter:a": version})
    assert answer["resources"]["counter:a"] == {"watchers": 1, "version": version}
    await back.ping({"counter:a": version})
    assert not [frame for frame in back.frames if frame["op"] == "update"]
    older = await tabs(ann)
    await older.watch("counter:a", since={"counter:a": version - 1})
    assert (await older.expect("update"))["version"] == version


async def test_updates_follow_changes_by_growing_versions(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await tabs(ann)
    await tab.watch("counter:a")
    for value in range(1, 6):
        await put("a", value)
        await tab.data("counter:a", {"value": value})
    versions = [frame["version"] for frame in tab.frames if frame["op"] == "update"]
    assert versions == sorted(set(versions))
    assert max(versions) < 2**53
    last = tab.last["counter:a"]
    assert last["event_at"] <= last["built_at"]


async def test_S9_nobody_watches_what_no_rule_allows(tabs: Sockets, ann: User, make_user: Callable[..., User]) -> None:
    bob = await sync_to_async(make_user)("bob")
    room = await Room.objects.acreate(name="r")
    tab = await tabs(bob)
    for name in (f"feed:{ann.pk}", f"room:{room.pk}", "room:x", "feed:"):
        error = await refused(tab, {"op": "watch", "id": 7, "resources": [name]})
        assert (error["id"], error["resource"]) == (7, name)
        assert error["code"] == ("unknown_resource" if name == "feed:" else "forbidden")
    assert not hub_here().topics
    assert (await counts(f"feed:{ann.pk}")).watch == 0
    await sync_to_async(room.members.add)(bob)
    assert (await tab.watch(f"room:{room.pk}"))["resources"][f"room:{room.pk}"]["watchers"] == 1


async def test_anonymous_only_where_the_type_allows(tabs: Sockets, builds: Mapping[str, int]) -> None:
    tab = await tabs()
    error = await refused(tab, {"op": "watch", "id": 1, "resources": ["counter:a", "price:x"]})
    assert (error["code"], error["resource"]) == ("forbidden", "counter:a")
    assert list((await tab.expect("watched"))["resources"]) == ["price:x"]
    await tab.data("price:x", {"cents": None})


async def test_a_can_watch_that_fails_refuses_and_harms_nobody(
    tabs: Sockets, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    tab = await tabs(ann)
    monkeypatch.setattr(type(registry.get("counter")), "can_watch", lambda self, user, key: 1 / 0)
    assert (await refused(tab, {"op": "watch", "id": 1, "resources": ["counter:a"]}))["code"] == "forbidden"
    monkeypatch.undo()
    await tab.watch("counter:a")


async def test_L8_watching_another_resource_leaves_the_first_alone(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await tabs(ann)
    await tab.watch("counter:a")
    await tab.watch("counter:b")
    assert await visibility.ainterests(tab.session) == ["counter:a", "counter:b"]
    await put("a", 1)
    await put("b", 2)
    await tab.data("counter:a", {"value": 1})
    await tab.data("counter:b", {"value": 2})
    await tab.unwatch("counter:b")
    await put("a", 3)
    await tab.data("counter:a", {"value": 3})
    assert (await counts("counter:b")).watch == 0


async def test_L9_the_last_intent_wins(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await tabs(ann)
    for n in range(10):
        await tab.send({"op": "watch", "id": 2 * n, "resources": ["counter:a"]})
        await tab.send({"op": "unwatch", "id": 2 * n + 1, "resources": ["counter:a"]})
    await tab.watch("counter:a")
    answers = [frame["id"] for frame in tab.frames if frame["op"] in ("watched", "unwatched")]
    assert answers[:20] == list(range(20)), "answers come in the order of the frames"
    await asyncio.sleep(0)
    assert (await counts("counter:a")).watch == 1
    await put("a", 1)
    await tab.data("counter:a", {"value": 1})
    await tab.send({"op": "watch", "id": 97, "resources": ["counter:a"]})
    await tab.unwatch("counter:a")
    assert (await counts("counter:a")).watch == 0
    assert await visibility.ainterests(tab.session) == []


async def test_unwatching_what_is_not_watched_is_answered(tabs: Sockets, ann: User) -> None:
    tab = await tabs(ann)
    assert (await tab.unwatch("counter:a", "nope:1"))["resources"] == ["counter:a", "nope:1"]


async def test_S7_any_legal_key_works(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await tabs(ann)
    keys = ["ключ:a:b", "ö" * 200, "a/b?c#d%20", "{x}", '"quoted"', "';--", "\U0001f600", "-", "*", "[a-z]", "a|b\\n"]
    answer = await tab.watch(*(f"counter:{key}" for key in keys))
    assert len(answer["resources"]) == len(keys)
    for key in keys:
        await put(key[:50], 1) if len(key) <= 50 else await achange(f"counter:{key}")
        await tab.data(f"counter:{key}", lambda data: data is not None)
    assert await visibility.ainterests(tab.session) == sorted(f"counter:{key}" for key in keys)


async def test_watchers_are_told_how_many_they_are(tabs: Sockets, ann: User, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 30}
    first = await tabs(ann)
    assert (await first.watch("counter:a"))["resources"]["counter:a"]["watchers"] == 1
    second = await tabs(ann)
    assert (await second.watch("counter:a"))["resources"]["counter:a"]["watchers"] == 2
    await first.expect("watchers", resource="counter:a", count=2)
    await visibility.ahold("counter:a", 3, "poller")
    await first.expect("watchers", resource="counter:a", count=3)
    await second.close()
    await first.expect("watchers", resource="counter:a", count=1, seconds=10)


# Heartbeats


async def test_ping_answers_versions_and_sends_what_is_newer(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    await put("a", 1)
    tab = await tabs(ann)
    await tab.watch("counter:a", "counter:b")
    version = (await tab.data("counter:a", {"value": 1}))["version"]
    await tab.data("counter:b", {"value": None})
    assert (await tab.ping())["versions"] == {"counter:a": version, "counter:b": tab.last["counter:b"]["version"]}
    sent = len(tab.frames)
    await tab.ping({"counter:a": version - 1})
    await await_for(lambda: [f for f in tab.frames[sent:] if f["op"] == "update" and f["version"] == version], 5, "sent again")


async def test_freshness_is_measured_when_sent_and_when_acknowledged(
    tabs: Sockets, ann: User, builds: Mapping[str, int], redis: redis_py.Redis
) -> None:
    # What earlier tests counted is still in this process's buffer.
    metrics.flush()
    redis.flushall()
    tab = await tabs(ann)
    await tab.watch("counter:a")
    await tab.data("counter:a", {"value": None})
    await put("a", 1)
    version = (await tab.data("counter:a", {"value": 1}))["version"]
    for odd in ({"resource": "counter:a", "version": version - 1}, {"resource": "counter:b", "version": version}):
        await tab.send({"op": "ack", **odd})
    await tab.send({"op": "ack", "resource": "counter:a", "version": version})
    await tab.ping()
    await sync_to_async(metrics.flush)()
    figures = metrics.Figures.parse(await sync_to_async(total_fields)())
    assert figures.histogram("freshness_acked", "counter").count == 1
    assert 1 <= figures.histogram("freshness_sent", "counter").count <= 2
    assert figures.total("pushes", "counter") == 2


async def test_S2_a_lost_hint_costs_at_most_a_heartbeat(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    tab = await tabs(ann)
    await tab.watch("counter:a")
    await tab.data("counter:a", {"value": None})
    with monkeypatch.context() as patch:
        patch.setattr("visibility.push.publish", lambda updates: None)
        await put("a", 1)
        await await_for(lambda: _version_is_newer(tab, "counter:a"), 5, "built")
    assert tab.last["counter:a"]["data"] == {"value": None}
    await tab.ping()
    await tab.data("counter:a", {"value": 1}, 1)


async def _version_is_newer(tab: Tab, resource: str) -> bool:
    seen = (await looks.alook("hot", [resource]))[resource]
    return seen.version > tab.last[resource]["version"]


@pytest.mark.parametrize("frame", [{"op": "ping"}, {"op": "ack", "resource": "counter:a", "version": 1}, "nonsense"])
async def test_any_frame_is_a_heartbeat_and_silence_ends_the_session(tabs: Sockets, ann: User, frame: Any) -> None:
    tab, silent = await tabs(ann), await tabs(ann)
    await tab.watch("counter:a")
    await silent.watch("counter:b")

    async def gone() -> bool:
        await tab.send(frame)
        await asyncio.sleep(0.2)
        return silent.close_code is not None

    await await_for(gone, 10, "the silent one is closed")
    assert silent.close_code == frames.HEARTBEAT_LOST
    assert tab.close_code is None
    assert (await counts("counter:a")).watch == 1
    await await_for(lambda: _unwatched("counter:b"), 2, "its lease is gone")


async def _unwatched(resource: str) -> bool:
    return (await counts(resource)).watch == 0


async def test_a_lease_ends_one_ttl_after_the_last_frame_was_heard(tabs: Sockets, ann: User, redis: redis_py.Redis) -> None:
    tab = await tabs(ann)
    await tab.watch("counter:a")
    left = redis.zscore("{vis:0}:watchers:counter:a", f"{ann.pk}/{tab.session}")
    now = redis.time()
    assert left is not None
    assert 2000 <= left - (now[0] * 1000 + now[1] // 1000) <= 3000
    # The key itself lives longer, so that not every heartbeat has to write its lifetime.
    assert 0 < redis.pttl("{vis:0}:watchers:counter:a") <= 31_000


@pytest.mark.parametrize("by", ["a ping", "a tick"])
async def test_L10_a_flush_is_healed_within_a_heartbeat(
    tabs: Sockets, ann: User, builds: Mapping[str, int], redis: redis_py.Redis, by: str
) -> None:
    tab = await tabs(ann)
    await tab.watch("counter:a", "counter:b")
    await tab.data("counter:a", {"value": None})
    old = await tab.data("counter:b", {"value": None})
    redis.flushall()
    # Nobody is visible now: the gate marks it.
    await put("a", 1)
    if by == "a ping":
        await tab.ping()
    await tab.data("counter:a", {"value": 1}, 3)
    await await_for(lambda: tab.last["counter:b"]["version"] > old["version"], 3, "built anew")
    assert await visibility.ainterests(tab.session) == ["counter:a", "counter:b"]
    assert (await visibility.apresence([ann.pk]))[ann.pk].online
    assert (await counts("counter:a")).watch == 1
    await put("b", 2)
    await tab.data("counter:b", {"value": 2})


async def test_L12_heartbeats_do_not_wait_for_a_slow_watch(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    tab = await tabs(ann)
    await tab.watch("counter:a")
    go = threading.Event()
    may = type(registry.get("counter")).can_watch
    monkeypatch.setattr(type(registry.get("counter")), "can_watch", lambda self, user, key: go.wait(20) and may(self, user, key))
    try:
        await tab.send({"op": "watch", "id": 50, "resources": ["counter:slow"]})
        for _ in range(3):
            await tab.ping()
        assert not [frame for frame in tab.frames if frame.get("id") == 50]
    finally:
        go.set()
    await tab.expect("watched", id=50)


# Tabs out of sight


async def test_a_hidden_tab_is_parked_and_on_return_gets_only_what_moved(
    tabs: Sockets, ann: User, builds: Mapping[str, int], redis: redis_py.Redis
) -> None:
    await put("a", 1)
    tab = await tabs(ann)
    await tab.watch("counter:a", "counter:b")
    await tab.data("counter:a", {"value": 1})
    await tab.data("counter:b", {"value": None})
    await tab.show(False)
    await await_for(lambda: _hidden("counter:a"), 5, "hidden after the linger")
    assert (await visibility.apresence([ann.pk]))[ann.pk].state == "background"
    found = await visibility.awatchers("counter:a")
    assert (found.count, found.hidden, found.background) == (0, 1, (tab.session,))
    before = len(tab.frames), builds["hot"]
    await put("a", 2)
    await tab.ping()
    assert builds["hot"] == before[1], "nothing is built for a parked watch"
    await tab.show(True)
    await tab.data("counter:a", {"value": 2})
    assert [f["resource"] for f in tab.frames[before[0] :] if f["op"] == "update"] == ["counter:a"]
    assert (await visibility.apresence([ann.pk]))[ann.pk].state == "visible"
    assert (await counts("counter:a")).background == 0
    await tab.close()
    assert (await counts("counter:a")).watch == 0
    assert (await counts("counter:a")).background == 0


async def test_a_hidden_tab_of_a_type_with_a_rate_stays_visible(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    name = f"unread:{ann.pk}"
    tab = await tabs(ann)
    await tab.watch(name)
    await tab.data(name, {})
    await tab.show(False)
    await await_for(lambda: _in_background(name), 5, "in the background")
    assert await visibility.ais_visible(name)
    assert (await visibility.awatchers(name)).count == 1
    await tab.close()
    await await_for(lambda: _hidden(name), 5, "hidden")


async def _in_background(resource: str) -> bool:
    found = await counts(resource)
    return (found.watch, found.background) == (0, 1)


async def test_L7_hiding_a_tab_never_crosses_zero(tabs: Sockets, ann: User, redis: redis_py.Redis) -> None:
    from visibility.signals import became_hidden, became_visible, user_offline, user_online

    heard: list[str] = []
    receivers = [
        (signal, lambda name=name, **kwargs: heard.append(name))
        for name, signal in (("hidden", became_hidden), ("visible", became_visible), ("off", user_offline), ("on", user_online))
    ]
    for signal, receiver in receivers:
        signal.connect(receiver)
    try:
        tab = await tabs(ann)
        await tab.watch(f"unread:{ann.pk}")
        await await_for(lambda: sorted(heard) == ["on", "visible"], 5)
        for n in range(6):
            await tab.show(n % 2 == 1)
            await tab.ping()
        await asweep()
        assert sorted(heard) == ["on", "visible"]
        await tab.close()
        await await_for(lambda: "off" in heard, 5)
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)


async def test_a_tab_that_watches_while_hidden_makes_nothing_visible(tabs: Sockets, ann: User) -> None:
    tab = await tabs(ann)
    await tab.show(False)
    assert (await tab.watch("counter:a"))["resources"]["counter:a"]["watchers"] == 0
    assert not await visibility.ais_visible("counter:a")
    await tab.show(True)
    await await_for(lambda: visibility.ais_visible("counter:a"), 5)


# Ending


async def test_L6_leaving_twice_does_nothing(tabs: Sockets, ann: User) -> None:
    tab, other = await tabs(ann), await tabs(ann)
    for one in (tab, other):
        await one.watch("counter:a")
    hub = hub_here()
    session = hub.sessions[tab.session]
    await tab.close()
    for _ in range(3):
        await hub.leave(session)
    found = await counts("counter:a")
    assert (found.watch, found.watchers) == (1, [f"{ann.pk}/{other.session}"])
    assert (await visibility.apresence([ann.pk]))[ann.pk].online


async def test_S1_a_cancelled_socket_releases_what_it_had(tabs: Sockets, ann: User) -> None:
    tab, other = await tabs(ann), await tabs(ann)
    await tab.watch("counter:a")
    await other.watch("counter:b")
    tab.cut()
    await await_for(lambda: _unwatched("counter:a"), 5, "released")
    assert (await counts("counter:b")).watch == 1
    assert len((await visibility.apresence([ann.pk]))[ann.pk].sessions) == 1


async def test_S1_a_socket_that_leaves_before_it_was_accepted(ann: User, tabs: Sockets) -> None:
    tab = await tabs(ann, hello=False)
    await tab.close()
    assert no_traceback(tab)
    assert not (await visibility.apresence([ann.pk]))[ann.pk].online


async def test_S1_an_error_in_the_hub_closes_with_a_code_and_releases(
    tabs: Sockets, ann: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from visibility.consumers import VisibilityConsumer

    tab = await tabs(ann)
    await tab.watch("counter:a")
    monkeypatch.setattr(VisibilityConsumer, "handle", lambda *args: 1 / 0)
    await tab.send({"op": "ping"})
    assert await tab.closed() == frames.TRY_LATER
    assert no_traceback(tab)
    await await_for(lambda: _unwatched("counter:a"), 5)


# Limits


async def test_watches_of_one_socket_are_limited(tabs: Sockets, ann: User, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "LIMITS": {"watches_per_socket": 3}}
    tab = await tabs(ann)
    assert tab.frames[0]["limits"]["watches_per_socket"] == 3
    await tab.watch("counter:a", "counter:b")
    error = await refused(tab, {"op": "watch", "id": 9, "resources": ["counter:b", "counter:c", "counter:d"]})
    assert (error["code"], error["id"], error["resource"]) == ("limit", 9, "counter:d")
    assert list((await tab.expect("watched", id=9))["resources"]) == ["counter:b", "counter:c"]
    await tab.unwatch("counter:a")
    await tab.watch("counter:d")


async def test_sockets_of_one_user_are_limited(tabs: Sockets, ann: User, make_user: Callable[..., User], settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "LIMITS": {"sockets_per_user": 2}}
    first, _second = await tabs(ann), await tabs(ann)
    third = await tabs(ann, hello=False)
    error = await third.expect("error")
    assert error["code"] == "limit"
    assert await third.closed() == frames.TOO_MANY_SOCKETS
    await tabs(await sync_to_async(make_user)("bob"))
    await tabs()
    await first.close()
    await tabs(ann)
    assert len((await visibility.apresence([ann.pk]))[ann.pk].sessions) == 2


async def test_a_frame_that_is_too_large(tabs: Sockets, ann: User, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "LIMITS": {"frame_bytes": 1000}}
    tab = await tabs(ann)
    assert (await refused(tab, json.dumps({"op": "ping", "have": {"counter:" + "x" * 1000: 1}})))["code"] == "limit"
    assert (await refused(tab, b"x" * 1001))["code"] == "limit"
    await tab.ping()


async def test_too_many_frames_are_refused_and_abuse_ends_the_socket(tabs: Sockets, ann: User, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "LIMITS": {"frames_per_second": 1, "frames_burst": 5}}
    tab = await tabs(ann)
    await tab.watch("counter:a")
    for _ in range(5):
        await tab.send({"op": "ping"})
    assert (await tab.expect("error"))["code"] == "rate"
    assert tab.close_code is None
    for _ in range(10):
        if tab.close_code is None:
            await tab.send({"op": "ping"})
    assert await tab.closed() == frames.TOO_FAST
    await await_for(lambda: _unwatched("counter:a"), 5)


async def test_a_slow_reader_keeps_the_newest_and_is_closed_in_the_end(
    tabs: Sockets, ann: User, builds: Mapping[str, int]
) -> None:
    tab, other = await tabs(ann), await tabs(ann)
    for one in (tab, other):
        await one.watch("counter:a")
        await one.data("counter:a", {"value": None})
    socket: Any = tab.socket
    socket.reading.clear()
    session = hub_here().sessions[tab.session]
    for value in range(1, 8):
        await put("a", value)
        await other.data("counter:a", {"value": value})
        assert len(session.outbox or {}) <= 3
    socket.reading.set()
    await tab.data("counter:a", {"value": 7})
    got = [f["data"]["value"] for f in tab.frames if f["op"] == "update"]
    assert len(got) <= 4
    assert got[-1] == 7
    socket.reading.clear()
    await put("a", 8)
    assert await tab.closed(5) == frames.SLOW_READER
    await await_for(lambda: _one_watcher("counter:a"), 5, "its lease is gone")


async def _one_watcher(resource: str) -> bool:
    return (await counts(resource)).watch == 1


async def test_a_client_that_asks_but_does_not_read_is_not_read_either(tabs: Sockets, ann: User, settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 30, "LIMITS": {"frames_per_second": 10_000, "frames_burst": 10_000}}
    tab = await tabs(ann)
    socket: Any = tab.socket
    socket.reading.clear()
    for _ in range(2000):
        await tab.send("nonsense")
    session = hub_here().sessions[tab.session]
    await await_for(lambda: len(session.outbox or {}) > 50, 5)
    for _ in range(20):
        await asyncio.sleep(0)
        assert len(session.outbox or {}) < 100
    socket.reading.set()
    await await_for(lambda: sum(f["op"] == "error" for f in tab.frames) == 2000, 20, "all were answered in the end")
    assert tab.close_code is None


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "x",
        "[]",
        b"\x00\xff",
        '{"op":"dance","id":3}',
        '{"op":"watch","id":3}',
        '{"op":"ping","have":[]}',
        "[" * 9000,
        "9" * 9000,
    ],
)
async def test_a_bad_frame_gets_an_error_and_a_live_socket(tabs: Sockets, ann: User, frame: str | bytes) -> None:
    tab = await tabs(ann)
    error = await refused(tab, frame)
    assert error["code"] == "bad_frame"
    assert set(error) == {"op", "id", "code", "detail", "resource"}
    await tab.ping()


# Faults


async def test_watching_while_redis_is_away_is_made_good(
    tabs: Sockets, ann: User, redis_server: Any, builds: Mapping[str, int]
) -> None:  # fmt: skip
    if redis_server is None:
        pytest.skip("needs a Redis of its own to stop")
    await Counter.objects.acreate(name="a", value=1)
    tab = await tabs(ann)
    redis_server.pause()
    try:
        await tab.send({"op": "watch", "id": 1, "resources": ["counter:a"]})
        await tab.expect("watched", 20, id=1)
        assert tab.close_code is None
    finally:
        redis_server.resume()
    await tab.ping()
    await tab.data("counter:a", {"value": 1}, 10)


async def test_a_key_that_scopes_cannot_read_gets_nothing_and_the_others_theirs(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = type(registry.get("feed"))
    monkeypatch.setattr(feed, "can_watch", lambda self, user, key: True)
    tab = await tabs(ann)
    own = f"feed:{ann.pk}"
    await tab.send({"op": "watch", "id": 1, "resources": ["feed:ada", own]})
    answer = await tab.expect("watched", 10, id=1)
    assert set(answer["resources"]) == {"feed:ada", own}
    await tab.data(own, {"posts": []}, 10)
    await Post.objects.acreate(author=ann, text="mine")
    await Follow.objects.acreate(follower=ann, author=ann)
    await tab.data(own, {"posts": ["mine"]}, 10)
    assert tab.close_code is None


async def test_a_redis_that_restarts_empty_keeps_the_sockets(
    tabs: Sockets, ann: User, redis_server: Any, builds: Mapping[str, int], settings: Any
) -> None:
    if redis_server is None:
        pytest.skip("needs a Redis of its own to restart")
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 60}
    tab = await tabs(ann)
    await tab.watch("counter:a")
    await tab.data("counter:a", {"value": None})
    redis_server.kill()
    await asyncio.sleep(0.1)
    await tab.send({"op": "ping"})
    redis_server.start()

    async def shown() -> bool:
        await tab.ping()
        try:
            return await visibility.ais_visible("counter:a")
        except visibility.RedisAway:
            return False

    await await_for(shown, 15, "the lease is back")
    # And the layer's own way works again: no frame of the client, so no heartbeat, helps here.
    for value in range(1, 20):
        await put("a", value)
        try:
            await tab.data("counter:a", {"value": value}, 1)
            break
        except AssertionError:
            continue
    assert tab.last["counter:a"]["data"] == {"value": value}


async def test_an_unknown_kind_of_hint_is_ignored(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    from visibility import push

    tab = await tabs(ann)
    await tab.watch("counter:a")
    odd: Any = [
        {"type": push.TYPE, "kind": "of a later release"},
        {"type": "some.other"},
        {"type": push.TYPE},
        {"type": push.TYPE, "kind": "update", "version": "x"},
    ]
    await push.asend([("counter:a", hint) for hint in odd])
    await put("a", 1)
    await tab.data("counter:a", {"value": 1})


async def test_a_hub_ends_with_its_last_socket_and_starts_again(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    for value in range(3):
        tab = await tabs(ann)
        await tab.watch("counter:a")
        await put("a", value)
        await tab.data("counter:a", {"value": value})
        await tab.close()
        assert not hub_here().sessions
        others = [task for task in asyncio.all_tasks() if "visibility" in repr(task.get_coro())]
        assert not others


async def test_everything_spread_over_shards(
    tabs: Sockets, ann: User, make_user: Callable[..., User], settings: Any, redis: redis_py.Redis
) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "SHARDS": 4, "TTL": 10}
    await spread(tabs, ann, await sync_to_async(make_user)("bob"))
    assert len({key.partition("}")[0] for key in redis.keys("{vis:*")}) == 4
    assert [key for key in redis.keys("{vis:*") if redis.ttl(key) < 0] == []


@pytest.mark.slow
async def test_everything_on_a_cluster(tabs: Sockets, ann: User, make_user: Callable[..., User], settings: Any) -> None:
    with servers.redis_cluster() as cluster:
        settings.VISIBILITY = {**settings.VISIBILITY, "SHARDS": 4, "TTL": 10, "REDIS_URL": cluster.url}
        await spread(tabs, ann, await sync_to_async(make_user)("bob"))
        await tabs.close()
        close()


async def spread(tabs: Sockets, ann: User, bob: User) -> None:
    """Watch, change, hide, revoke, leave: with resources and users on every shard."""
    names = [f"counter:{n}" for n in range(12)]
    with draining():
        one, two = await tabs(ann), await tabs(bob)
        for tab in (one, two):
            await tab.watch(*names)
            for name in names:
                await tab.data(name, {"value": None})
        await asyncio.gather(*(put(str(n), n) for n in range(12)))
        for tab in (one, two):
            for n, name in enumerate(names):
                await tab.data(name, {"value": n})
            assert set((await tab.ping())["versions"]) == set(names)
        assert await visibility.ainterests(one.session) == sorted(names)
        await two.show(False)
        await visibility.arevoke(ann, names[3])
        await one.expect("revoked", resource=names[3])
        assert set((await one.ping())["versions"]) == set(names) - {names[3]}
        await await_for(lambda: _hidden(names[3]), 5)
        await two.show(True)
        await await_for(lambda: visibility.ais_visible(names[3]), 5)
        assert await sync_to_async(drop)(user=ann) == 11
        await one.expect("revoked")
        await asyncio.gather(one.close(), two.close())
        found = await visibility.apresence([ann, bob])
        assert not any(user.online for user in found.values())


# Many


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_a_fuzz_of_random_frames_leaves_no_traceback_and_no_dead_socket(
    tabs: Sockets, ann: User, settings: Any, builds: Mapping[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    number = size("VISIBILITY_FUZZ_FRAMES", 5_000, 100_000)
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 60, "LIMITS": {"frames_per_second": 10**9, "frames_burst": 10**9}}
    opened = [await tabs(ann) for _ in range(4)]
    sessions = [hub_here().sessions[tab.session] for tab in opened]
    rng = random.Random(20)
    for n in range(number):
        tab = opened[n % len(opened)]
        assert tab.close_code is None, f"dead after {n} frames: {tab.close_code}"
        await tab.send(random_frame(rng))
        if n % 200 == 0:
            await tab.ping()
            tab.frames.clear()
            tab._seen = 0
    for tab, session in zip(opened, sessions, strict=True):
        await tab.ping()
        await await_for(lambda session=session: session.worker is None, 30, "its operations are done")
        await tab.watch("counter:end")
        assert no_traceback(tab)
        codes = {frame["code"] for frame in tab.frames if frame["op"] == "error"}
        assert codes <= {"bad_frame", "unknown_resource", "forbidden", "limit"}
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
async def test_two_thousand_sockets_and_a_flush_at_a_random_moment(
    tabs: Sockets, make_user: Callable[..., User], settings: Any, builds: Mapping[str, int], redis: redis_py.Redis
) -> None:
    number, heartbeat = size("VISIBILITY_SOCKETS", 2_000, 2_000), 10
    settings.VISIBILITY = {**settings.VISIBILITY, "HEARTBEAT": heartbeat, "TTL": 30, "LIMITS": {"sockets_per_user": number}}
    users = [await sync_to_async(make_user)(f"u{n}") for n in range(20)]
    seed = int(os.environ.get("VISIBILITY_SEED", time.time()))
    print(f"VISIBILITY_SEED={seed}")  # noqa: T201
    rng = random.Random(seed)
    names = [f"counter:{n}" for n in range(50)]
    keys = [await sync_to_async(session_for)(user) for user in users]
    # Waited for together: a thousand pollers would be the load that is measured.
    opened = [await tabs(session_key=keys[n % 20], hello=False) for n in range(number)]
    await await_for(lambda: all(tab.frames for tab in opened), 60, "everybody is greeted")
    wanted = {tab: rng.sample(names, 3) for tab in opened}
    for tab, own in wanted.items():
        await tab.send({"op": "watch", "id": 1, "resources": own})
    await await_for(lambda: all(set(own) <= set(tab.last) for tab, own in wanted.items()), 60, "all are shown what they watch")
    values = dict.fromkeys(names, 0)

    async def change() -> None:
        name, n = rng.choice(names), max(values.values()) + 1
        values[name] = n
        await put(name.partition(":")[2], n)

    async def watched() -> bool:
        # Changes go on while they come back.
        await change()
        return sum([(await counts(name)).watch for name in names]) == 3 * number

    for _ in range(rng.randint(20, 180)):
        await change()
    assert await watched()
    redis.flushall()
    flushed = time.monotonic()
    await await_for(watched, heartbeat, "every watch is back within one heartbeat")
    back = time.monotonic() - flushed
    for _ in range(50):
        await change()
    await asyncio.gather(*(tab.send({"op": "ping", "have": tab.versions}) for tab in opened))

    def current() -> bool:
        return all(
            (tab.last.get(name) or {"data": {}})["data"].get("value") == (values[name] or None)
            for tab, own in wanted.items()
            for name in own
        )

    await await_for(current, 20, "everybody shows the last version")
    late = time.monotonic() - flushed
    print(f"{number} sockets: watches back after {back:.1f} s of {heartbeat}, all on the last version after {late:.1f} s")  # noqa: T201
    assert {(await visibility.apresence([user.pk]))[user.pk].online for user in users} == {True}


def test_renewing_costs_one_call_a_shard(redis: redis_py.Redis) -> None:
    """Ten thousand leases of three thousand sessions: a handful of calls, not one a session."""
    watches = [Watch(f"counter:{n % 500}", f"1/s{n % 3333}") for n in range(10_000)]
    leases.renew(watches)
    before = redis.info("stats")["total_commands_processed"]
    calls = redis.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    leases.renew(watches)
    assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] - calls <= 20
    assert before > 0
