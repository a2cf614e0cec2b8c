"""The eight rules of the protocol, each driven through the history that breaks when the rule is taken out of the code.

The histories are those that `tests/model/protocol.py --without RULE` prints. `at` runs an action when the code reaches
a named point, so that the interleaving is exact. `tests/mutants.py` takes the rules out and sees these tests fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections

from tests.app.models import Counter, Follow, Post
from tests.support.local import Sockets
from tests.support.wait import wait_for
from visibility import dirty
from visibility.conf import settings
from visibility.read import read
from visibility.recompute import work
from visibility.soft import claims, leases, looks, pending, snapshots
from visibility.soft.claims import Claim, Claimed, Done
from visibility.soft.pending import Item

pytestmark = pytest.mark.django_db(transaction=True)
RESOURCE, KEY, LANE = "counter:a", "a", "hot"


class Crash(BaseException):
    """Ends a path the way SIGKILL would: nothing after it runs."""


@pytest.fixture(autouse=True)
def counter(transactional_db: None) -> Counter:
    """The source, whose signals are of no interest here: each step is taken by hand."""
    return Counter.objects.create(name=KEY, value=1)


@pytest.fixture
def ann(make_user: Callable[..., User]) -> User:
    return make_user("ann")


def commit(value: int) -> None:
    """Change the source as `update` does, without a signal: the gate's steps follow by hand."""
    Counter.objects.filter(name=KEY).update(value=value)


def watch(seconds: float = 60) -> None:
    leases.renew([leases.Watch(RESOURCE, "1/tab", "watch", seconds)])


def vanish(redis: redis_py.Redis) -> None:
    """The lease ends by itself: its end is now in the past."""
    redis.zadd("{vis:0}:visible:counter", {KEY: 1})
    redis.delete("{vis:0}:watchers:counter:a", "{vis:0}:fresh:counter:a")


def pend() -> None:
    pending.pend(settings.lane(LANE), [Item(RESOURCE, int(time.time() * 1000), window=0)])


def mark_cold() -> None:
    dirty.mark("counter", {KEY: 1})


def claim() -> Claim:
    """The next batch, once its coalescing window lets it be due."""
    found: list[Claim] = []

    def due() -> bool:
        found[:] = [claims.claim(LANE, 0, 10, 15)]
        return bool(found[0].rows)

    wait_for(due, 5, "the resource is due")
    assert [row.resource for row in found[0].rows] == [RESOURCE]
    return found[0]


def drain_once() -> None:
    work(settings.lane(LANE), claim())


def is_pending() -> bool:
    return looks.look(LANE, [RESOURCE])[RESOURCE].due_ms is not None


def trusted() -> bool:
    return looks.look(LANE, [RESOURCE])[RESOURCE].fresh != 0


def fresh_value() -> int:
    """What a read shows; the test's truth is the source."""
    snapshot = read("counter", KEY)
    assert snapshot.state in ("fresh", "rebuilt")
    return int(snapshot.data["value"])


async def test_rule_1_a_watch_writes_its_lease_before_it_reads_marks(at: Any, ann: User) -> None:
    """A whole gate runs between the watch's two steps: it finds the lease, or the change never reaches the watcher."""
    await sync_to_async(read)("counter", KEY)
    tabs = Sockets()

    def save() -> None:
        row = Counter.objects.get(name=KEY)
        row.value = 2
        row.save()
        connections.close_all()

    def in_between() -> None:
        other = threading.Thread(target=save)
        other.start()
        other.join()

    at("watch.leased", in_between)
    try:
        tab = await tabs(ann)
        await tab.watch(RESOURCE)
        # Nobody drains or promotes here: what is not pending now would stay unseen.
        assert await sync_to_async(is_pending)()
    finally:
        await tabs.close()


def test_rule_2_the_gate_looks_again_at_what_it_marked(at: Any) -> None:
    """Between the gate's look and its mark somebody comes, finds nothing marked, and is trusted."""
    read("counter", KEY)

    def come() -> None:
        watch()
        read("counter", KEY)
        assert trusted()

    at("gate.looked", come)
    row = Counter.objects.get(name=KEY)
    row.value = 2
    row.save()
    assert is_pending()
    assert not trusted()
    assert fresh_value() == 2


def test_rule_3_trust_ends_where_no_lease_lived(redis: redis_py.Redis, at: Any) -> None:
    """The lease lapses while a build runs; a cold change is marked; a new lease begins; the build ends."""
    watch()
    pend()

    def lapse() -> None:
        vanish(redis)
        commit(2)
        mark_cold()
        watch()

    at("build.read", lapse)
    drain_once()
    assert not trusted()
    assert fresh_value() == 2


@pytest.mark.parametrize("marked", [False, True])
def test_rule_3_a_build_vouches_only_for_the_visibility_that_it_was_claimed_in(
    redis: redis_py.Redis, at: Any, ann: User, marked: bool
) -> None:
    """As above with a scope, whose mark no flag tells of: only the epoch does."""
    Follow.objects.create(follower=ann, author=ann)
    feed = f"feed:{ann.pk}"
    read("feed", ann.pk)
    if marked:
        dirty.mark("feed", {str(ann.pk): 1})

    def look_at_feed() -> None:
        leases.renew([leases.Watch(feed, "1/tab")])

    look_at_feed()
    pending.pend(settings.lane(LANE), [Item(feed, int(time.time() * 1000), window=0)])

    def lapse() -> None:
        redis.zadd("{vis:0}:visible:feed", {str(ann.pk): 1})
        Post.objects.bulk_create([Post(author=ann, text="new")])
        dirty.mark_scopes("feed", {f"author:{ann.pk}": 1})
        look_at_feed()

    at("build.read", lapse)
    owned = claims.claim(LANE, 0, 10, 15)
    work(settings.lane(LANE), owned)
    assert read("feed", ann.pk).data == {"posts": ["new"]}


def test_rule_3_a_new_lease_takes_trust_away(redis: redis_py.Redis) -> None:
    watch()
    pend()
    drain_once()
    assert trusted()
    redis.zadd("{vis:0}:visible:counter", {KEY: 1})
    commit(2)
    mark_cold()
    watch()
    assert not trusted()
    assert fresh_value() == 2


def test_rule_3_trust_is_given_only_if_nothing_moved_since_the_look(at: Any) -> None:
    """A reader looked and read the marks; then a change was shed, marked and distrusted; then the reader gives trust."""
    watch()
    read("counter", KEY)
    looks.distrust([RESOURCE])

    def shed() -> None:
        commit(2)
        mark_cold()
        looks.distrust([RESOURCE])

    at("read.marks", shed)
    read("counter", KEY)
    assert not trusted()
    assert fresh_value() == 2


def test_rule_4_the_stamp_tells_whether_snapshot_and_marks_belong_together(at: Any) -> None:
    """A reader took the old snapshot; a build then stored the new one and cleared the marks; the reader reads the marks."""
    read("counter", KEY)
    commit(2)
    mark_cold()
    watch()

    def promote() -> None:
        pend()
        drain_once()

    at("read.looked", promote)
    assert fresh_value() == 2


def test_rule_4_a_marked_snapshot_is_not_served_as_fresh() -> None:
    read("counter", KEY)
    commit(2)
    mark_cold()
    assert fresh_value() == 2
    assert not dirty.marks(*_type([KEY]))[KEY].dirty


@pytest.mark.parametrize("marked", [False, True])
def test_rule_5_a_change_during_the_build_leaves_the_resource_pending(at: Any, marked: bool) -> None:
    read("counter", KEY)
    if marked:
        mark_cold()
    watch()
    pend()

    def change() -> None:
        commit(2)
        pend()

    at("build.read", change)
    drain_once()
    assert is_pending()
    assert not trusted()
    assert fresh_value() == 2


def test_rule_6_a_flag_that_moved_during_the_build_stays(at: Any) -> None:
    commit(2)
    mark_cold()

    def change() -> None:
        commit(3)
        mark_cold()

    at("build.read", change)
    read("counter", KEY)
    assert dirty.marks(*_type([KEY]))[KEY].dirty
    assert fresh_value() == 3


def test_rule_7_a_build_whose_claim_a_flush_ended_stores_nothing(redis: redis_py.Redis, at: Any) -> None:
    """The build read the source before a second change whose pending entry the flush took away."""
    watch()
    pend()

    def flush() -> None:
        commit(2)
        pend()
        redis.flushall()

    at("build.store", flush)
    drain_once()
    assert looks.look(LANE, [RESOURCE])[RESOURCE].raw == b""
    assert fresh_value() == 2


def test_rule_7_a_build_whose_claim_ran_out_stores_nothing(redis: redis_py.Redis, at: Any) -> None:
    watch()
    pend()

    def run_out() -> None:
        redis.zadd("{vis:0}:claimed:hot", {RESOURCE: 1})

    at("build.store", run_out)
    drain_once()
    assert looks.look(LANE, [RESOURCE])[RESOURCE].raw == b""
    drain_once()
    assert fresh_value() == 1


def test_rule_7_a_build_whose_claim_another_took_over_stores_nothing(redis: redis_py.Redis, at: Any) -> None:
    watch()
    pend()
    taken: list[Claim] = []

    def take_over() -> None:
        redis.zadd("{vis:0}:claimed:hot", {RESOURCE: 1})
        taken.append(claim())

    at("build.store", take_over)
    drain_once()
    seen = looks.look(LANE, [RESOURCE])[RESOURCE]
    assert (seen.raw, seen.owner) == (b"", taken[0].token)


def test_rule_7_an_older_token_never_overwrites_a_newer_one(redis: redis_py.Redis) -> None:
    """A failover can make two owners of one resource; the fence is what is left."""
    watch()
    pend()
    old = claim()
    redis.hset("{vis:0}:state:counter:a", mapping={"ver": int(old.token) + 5})
    packed = snapshots.pack(snapshots.Stored(int(old.token), 1, 0, 0, 0, 0, "0.0.0", b'{"value":0}'))
    assert claims.store(LANE, old, [(old.rows[0], 10_000, 0, packed, False)]) == [False]


def test_rule_8_what_nobody_watches_is_marked_before_it_is_dropped(redis: redis_py.Redis, at: Any) -> None:
    """The worker dies right after the mark: the mark stands, and the entry is still there."""
    read("counter", KEY)
    watch()
    commit(2)
    pend()
    vanish(redis)

    def crash() -> None:
        raise Crash

    at("drain.marked", crash)
    with pytest.raises(Crash):
        drain_once()
    assert dirty.marks(*_type([KEY]))[KEY].dirty
    assert fresh_value() == 2


def test_rule_8_it_is_dropped_only_if_its_generation_has_not_moved(redis: redis_py.Redis, at: Any) -> None:
    read("counter", KEY)
    watch()
    pend()
    vanish(redis)

    def come_back_and_change() -> None:
        watch()
        commit(2)
        pend()

    at("drain.marked", come_back_and_change)
    drain_once()
    assert is_pending()
    assert fresh_value() == 2


def test_a_done_from_another_owner_changes_nothing() -> None:
    watch()
    pend()
    owned = claim()
    stranger = owned._replace(token=str(int(owned.token) + 1))
    row: Claimed = owned.rows[0]
    assert claims.done(LANE, stranger, [Done(row, "trust")]) == (False, [0])
    assert looks.look(LANE, [RESOURCE])[RESOURCE].owner == owned.token


def _type(keys: list[str]) -> tuple[Any, list[str]]:
    from visibility.datatypes import registry

    return registry.get("counter"), keys
