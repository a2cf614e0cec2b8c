"""The soft state on a Redis Cluster with shards, behind Sentinel, and on Redis 7: the same path, and a failover in its middle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import visibility
from tests.app.models import Counter
from tests.support import servers
from tests.support.wait import wait_for
from visibility import gate, testing
from visibility.models import Event
from visibility.soft import client as soft_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]
NAMES = [f"c{n}" for n in range(24)]


@contextmanager
def using(settings: Any, url: str, shards: int = 1) -> Iterator[None]:
    """The package works on this Redis; RQ and the channel layer stay where they are."""
    before = settings.VISIBILITY
    settings.VISIBILITY = {**before, "REDIS_URL": url, "SHARDS": shards}
    soft_client.close()
    try:
        yield
    finally:
        soft_client.close()
        settings.VISIBILITY = before


def change(value: int) -> None:
    for name in NAMES:
        row = Counter.objects.get(name=name)
        row.value = value
        row.save()


def settle() -> bool:
    """What a worker and a maintenance loop would do; False while Redis is still away."""
    try:
        Event.objects.filter(processed_at=None).update(retry_at=None)
        gate.redrive(older_than=0)
        testing.drain()
    except visibility.RedisAway:
        return False
    return not Event.objects.filter(processed_at=None).exists()


def values() -> set[int]:
    return {snapshot.data["value"] for snapshot in visibility.read_many("counter", NAMES).values()}


def whole_path() -> None:
    """Half of the counters are watched; every change is shown, watched or not."""
    tab = testing.Tab("ann", *(f"counter:{name}" for name in NAMES[::2]))
    change(1)
    testing.assert_hot(f"counter:{NAMES[0]}")
    assert values() == {1}
    change(2)
    assert testing.drain() >= len(NAMES[::2])
    assert values() == {2}
    assert sorted(visibility.visible("counter")) == sorted(NAMES[::2])
    tab.heartbeat()
    tab.close()
    soft_client.client().set("foreign", 1)
    testing.flush()
    assert (visibility.visible("counter"), soft_client.client().get("foreign")) == ([], b"1")


@pytest.fixture
def counters(transactional_db: None) -> None:
    Counter.objects.bulk_create([Counter(name=name, value=0) for name in NAMES])


@pytest.mark.parametrize("kind", ["redis7", "valkey"])
def test_on_a_single_server(settings: Any, counters: None, kind: str) -> None:
    with getattr(servers, kind)() as server, using(settings, server.url):
        whole_path()


@pytest.mark.parametrize("shards", [1, 8])
def test_shards_on_a_single_server(settings: Any, counters: None, shards: int) -> None:
    with servers.valkey() as server, using(settings, server.url, shards):
        whole_path()


def test_on_a_cluster_with_a_failover(settings: Any, counters: None) -> None:
    with servers.redis_cluster() as cluster, using(settings, cluster.url, shards=8):
        whole_path()
        tab = testing.Tab("ann", *(f"counter:{name}" for name in NAMES))
        cluster.fail_over(cluster.masters()[0])
        change(3)
        wait_for(settle, 30, "the cluster takes writes again, and the outbox is empty")
        wait_for(lambda: _beat(tab), 20, "leases are back")
        assert values() == {3}
        change(4)
        wait_for(settle, 30, "the outbox is empty")
        assert values() == {4}


def test_J16_behind_sentinel_with_a_failover(settings: Any, counters: None) -> None:
    with servers.sentinel() as trio, using(settings, trio.url):
        whole_path()
        tab = testing.Tab("ann", *(f"counter:{name}" for name in NAMES))
        trio.fail_over()
        started = time.monotonic()
        change(3)
        # A save never waits for Redis: with the circuit open, 24 of them take no 24 time-outs.
        assert time.monotonic() - started < 30
        wait_for(settle, 30, "the new master takes writes, and the outbox is empty")
        wait_for(lambda: _beat(tab), 20, "leases are back")
        assert values() == {3}


def _beat(tab: testing.Tab) -> bool:
    try:
        tab.heartbeat()
    except visibility.RedisAway:
        return False
    return True
