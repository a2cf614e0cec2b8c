"""Hints over the layer, and what becomes of them on every kind of layer and after every kind of loss."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import async_to_sync, sync_to_async
from channels.layers import channel_layers
from django.contrib.auth.models import User

from tests.app.models import Counter
from tests.support import await_for, wait_for
from tests.support.local import Sockets
from tests.support.sockets import Tab
from visibility import push, recompute
from visibility.sockets.hub import hub_here
from visibility.soft import leases, sessions

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def quick(settings: Any) -> Iterator[None]:
    settings.VISIBILITY = {**settings.VISIBILITY, "HEARTBEAT": 1, "TTL": 30, "LINGER": 0.3}
    yield
    push.close()


@pytest.fixture
async def ann(make_user: Callable[..., User]) -> User:
    return await sync_to_async(make_user)("ann")


async def put(name: str, value: int) -> None:
    await Counter.objects.aupdate_or_create(name=name, defaults={"value": value})


def layer(settings: Any, backend: str, **config: Any) -> None:
    url = settings.CHANNEL_LAYERS["default"]["CONFIG"]["hosts"][0]["address"]
    config = {"hosts": [{"address": url, "socket_timeout": None}], **config} if "redis" in backend else config
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": backend, "CONFIG": config}}


async def watching(tabs: Sockets, user: User, name: str = "counter:a") -> Tab:
    tab = await tabs(user)
    await tab.watch(name)
    await tab.data(name, lambda data: True)
    return tab


# Names


@pytest.mark.parametrize("resource", ["", "feed:1", "feed:" + "x" * 200, "feed:ключ é \U0001f600", 'a:"{}|*'])
def test_S7_group_names_are_legal_whatever_the_key(resource: str) -> None:
    from channels.layers import BaseChannelLayer

    name = push.group_of(resource)
    assert name.isascii()
    assert len(name) < 100
    assert BaseChannelLayer().require_valid_group_name(name)


def test_group_names_are_of_one_project_and_one_resource(settings: Any) -> None:
    names = {push.group_of("feed:1"), push.group_of("feed:2"), push.group_of("")}
    settings.VISIBILITY = {**settings.VISIBILITY, "PREFIX": "other"}
    assert len(names | {push.group_of("feed:1"), push.group_of("feed:2"), push.group_of("")}) == 6


# Sending


def connections(redis: redis_py.Redis) -> int:
    return int(redis.info("stats")["total_connections_received"])


def test_S4_a_thousand_hints_from_sync_code_use_the_connections_of_the_first(redis: redis_py.Redis) -> None:
    push.publish([(f"counter:{n}", 1) for n in range(10)])
    before = connections(redis)
    begin = time.monotonic()
    for n in range(1000):
        push.publish([("counter:a", n)])
    assert connections(redis) - before <= 1
    assert time.monotonic() - begin < 20


@pytest.mark.slow
def test_S4_commits_of_sync_code_hold_the_connections_of_the_first(redis: redis_py.Redis) -> None:
    """The whole way: the gate, the lane, the job that wakes it; and what a worker then says to those who watch."""
    counter = Counter.objects.create(name="a")

    def commit(value: int) -> None:
        leases.renew([leases.Watch("counter:a", "1/tab")])
        counter.value = value
        counter.save()
        recompute.drain("hot")

    commit(1)
    before = connections(redis)
    for value in range(2, 102):
        commit(value)
    assert connections(redis) - before <= 1


async def hears(tab: Tab, send: Callable[[], Any]) -> bool:
    """Whether a hint that is sent this way reaches the hub: a made-up kind shows in what it was handed."""
    topic = hub_here().topics["counter:a"]
    heard: list[Any] = []
    real = hub_here().fanout.hint

    def hint(topic_: Any, version: int, force: bool = False) -> None:
        heard.append(version)
        real(topic_, version, force)

    hub_here().fanout.hint = hint  # type: ignore[method-assign]
    try:
        answer = send()
        if asyncio.iscoroutine(answer):
            await answer
        await await_for(lambda: topic.version + 5 in heard, 5)
    finally:
        hub_here().fanout.hint = real  # type: ignore[method-assign]
    return True


async def test_S5_hints_go_out_from_wherever_code_runs(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await watching(tabs, ann)
    update = ("counter:a", hub_here().topics["counter:a"].version + 5)
    assert await hears(tab, lambda: push.publish([update])), "sync code with a loop running in this thread"
    assert await hears(tab, lambda: push.apublish([update])), "async code"
    assert await hears(tab, lambda: sync_to_async(push.publish)([update])), "a sync view under ASGI"
    assert await hears(tab, lambda: sync_to_async(push.publish, thread_sensitive=False)([update])), "any thread"
    assert await hears(tab, lambda: threading.Thread(target=push.publish, args=([update],)).start()), "a thread of its own"
    assert await hears(tab, lambda: sync_to_async(async_to_sync(push.apublish))([update])), "a loop of its own"


async def test_S5_save_and_asave_in_an_event_loop(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await watching(tabs, ann)
    counter = await Counter.objects.acreate(name="a", value=1)
    await tab.data("counter:a", {"value": 1})
    counter.value = 2
    await counter.asave()
    await tab.data("counter:a", {"value": 2})
    counter.value = 3
    await sync_to_async(counter.save)()
    await tab.data("counter:a", {"value": 3})


def test_a_forked_child_has_a_sender_of_its_own(redis: redis_py.Redis) -> None:
    """As in RQ's forking worker: the parent's thread does not exist in the child."""
    push.publish([("counter:a", 1)])
    before = connections(redis)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            push.publish([("counter:a", 2)])
            push.publish([("counter:a", 3)])
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    wait_for(lambda: 1 <= connections(redis) - before <= 2, 5)
    push.publish([("counter:a", 4)])


def test_a_hint_that_cannot_be_sent_raises_nothing_and_does_not_wait_long(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": ["redis://127.0.0.1:1/0"]}}
    }
    begin = time.monotonic()
    push.publish([("counter:a", 1)])
    push.publish_access(7)
    push.publish([])
    assert time.monotonic() - begin < 10
    assert "1 hints were not sent" in caplog.text


# Layers

CORE, PUBSUB = "channels_redis.core.RedisChannelLayer", "channels_redis.pubsub.RedisPubSubChannelLayer"


@pytest.mark.parametrize("backend", [CORE, PUBSUB, "channels.layers.InMemoryChannelLayer", None])
async def test_updates_arrive_over_every_layer(
    tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any, backend: str | None
) -> None:  # fmt: skip
    if backend is None:
        settings.CHANNEL_LAYERS = {}
    else:
        layer(settings, backend)
    tab = await watching(tabs, ann)
    for value in (1, 2, 3):
        await put("a", value)
        await tab.data("counter:a", {"value": value})
    await tab.unwatch("counter:a")
    await tab.watch("counter:a")
    await put("a", 4)
    await tab.data("counter:a", {"value": 4})


async def test_S2_hints_over_the_capacity_are_made_good(
    tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any
) -> None:  # fmt: skip
    layer(settings, CORE, capacity=2)
    tab = await tabs(ann)
    names = [f"counter:{n}" for n in range(30)]
    await tab.watch(*names)
    for name in names:
        await tab.data(name, {"value": None})
    await asyncio.gather(*(put(str(n), n) for n in range(30)))
    await sync_to_async(push.publish)([("counter:0", n) for n in range(50)])
    await await_for(lambda: sum(builds.values()) >= 60, 20)
    await tab.ping()
    for n, name in enumerate(names):
        await tab.data(name, {"value": n}, 2)


async def test_L15_memberships_are_renewed_before_the_layer_drops_them(
    tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any
) -> None:  # fmt: skip
    layer(settings, CORE, group_expiry=3)
    tab = await watching(tabs, ann)
    begin = time.monotonic()
    await await_for(lambda: time.monotonic() - begin > 4.5, 10)
    await put("a", 1)
    await tab.data("counter:a", {"value": 1}, 1)


async def test_L15_no_membership_outlives_the_last_watch(
    tabs: Sockets, ann: User, builds: Mapping[str, int], redis: redis_py.Redis
) -> None:  # fmt: skip
    first, second = await watching(tabs, ann), await watching(tabs, ann)
    group = f"asgi:group:{push.group_of('counter:a')}"
    assert redis.zcard(group) == 1, "one channel a process"
    await first.close()
    assert redis.zcard(group) == 1
    await second.unwatch("counter:a")
    await await_for(lambda: redis.zcard(group) == 0)
    await second.watch("counter:a")
    assert redis.zcard(group) == 1
    await second.close()
    assert redis.keys("asgi:group:*") == []


async def test_S2_a_gap_of_the_pubsub_layer_is_made_good(
    tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any, redis: redis_py.Redis
) -> None:
    layer(settings, PUBSUB)
    tab = await watching(tabs, ann)
    built = sum(builds.values())
    redis.client_kill_filter(_type="pubsub")
    await put("a", 1)
    await await_for(lambda: sum(builds.values()) > built)
    await tab.ping()
    await tab.data("counter:a", {"value": 1}, 2)
    await await_for(lambda: _subscribed(redis), 10)
    await put("a", 2)
    await tab.data("counter:a", {"value": 2}, 2)


def _subscribed(redis: redis_py.Redis) -> bool:
    name = f"asgi__group__{push.group_of('counter:a')}"
    return dict(redis.pubsub_numsub(name)).get(name, 0) == 1


@pytest.mark.slow
async def test_S3_a_layer_with_the_socket_timeout_of_redis_py_keeps_idle_sockets(
    tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any
) -> None:  # fmt: skip
    url = settings.CHANNEL_LAYERS["default"]["CONFIG"]["hosts"][0]["address"]
    layer(settings, CORE, hosts=[url])
    tab = await watching(tabs, ann)
    begin = time.monotonic()
    await await_for(lambda: time.monotonic() - begin > 8, 12)
    assert tab.close_code is None
    await put("a", 1)
    await tab.data("counter:a", {"value": 1}, 3)


async def test_a_layer_that_fails_at_first_is_joined_later(
    tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any
) -> None:  # fmt: skip
    layer(settings, CORE)
    real = channel_layers["default"]
    add = real.group_add
    broken = True

    async def group_add(*args: Any) -> None:
        if broken:
            raise ConnectionError("away")
        await add(*args)

    real.group_add = group_add
    tab = await tabs(ann)
    await tab.send({"op": "watch", "id": 1, "resources": ["counter:a"]})
    await tab.expect("watched", 10)
    broken = False
    await await_for(lambda: "counter:a" in hub_here().groups._joined, 15)
    await put("a", 1)
    await tab.data("counter:a", {"value": 1})


# One fetch


async def test_a_version_is_fetched_once_and_all_sockets_get_the_same_text(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [await watching(tabs, ann) for _ in range(20)]
    sent: list[str] = []
    for tab in opened:
        socket: Any = tab.socket
        put_nowait = socket.outbox.put_nowait
        socket.outbox.put_nowait = lambda text, put_nowait=put_nowait: (sent.append(text), put_nowait(text))
    fetched: list[list[str]] = []
    real = sessions.afetch

    async def afetch(process: str, resources: Any) -> Any:
        fetched.append(list(resources))
        return await real(process, resources)

    monkeypatch.setattr(sessions, "afetch", afetch)
    await put("a", 1)
    for tab in opened:
        await tab.data("counter:a", {"value": 1})
    assert [names for names in fetched if names] == [["counter:a"]]
    texts = {id(text) for text in sent if '"op":"update"' in text}
    assert len(texts) == 1
