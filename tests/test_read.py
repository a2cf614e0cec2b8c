"""Reads: what is served as it stands, what is built, by whom, and what the others get meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import given, strategies as st

from tests import lanes
from tests.conftest import Live
from tests.lanes import change, claim, drain_all, look, pend, watch
from tests.support import await_for, servers, wait_for
from tests.support.probe import builds, order
from visibility import dirty, points
from visibility.builds import rounds
from visibility.builds.rounds import wants_early
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.dirty import Marks
from visibility.exceptions import BadResource, BuildFailed, UnknownDataType
from visibility.read import aread, aread_many, read, read_many, verdict
from visibility.soft import client as soft_client, leases, levels, snapshots
from visibility.soft.snapshots import Stored


def stored(**changes: Any) -> Stored:
    return Stored(5, 1, 1_000, 0, 61_000, 10, "3.4.1", b"1")._replace(**changes)


# --- pure -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshot", "waits", "marks", "now", "expected"),
    [
        (stored(), False, Marks(flag=3, scopes=4), 2_000, "serve"),
        (stored(), False, Marks(flag=3, scopes=4), 61_000, "refresh"),
        (stored(), True, Marks(flag=3, scopes=4), 2_000, "build"),
        (stored(), False, Marks(flag=4, scopes=4), 2_000, "build"),
        (stored(), False, Marks(flag=3, scopes=5), 2_000, "build"),
        (stored(), False, Marks(), 2_000, "build"),
        (None, False, Marks(), 2_000, "build"),
    ],
)
def test_the_verdict(snapshot: Stored | None, waits: bool, marks: Marks, now: int, expected: str) -> None:
    assert verdict(snapshot, waits, marks, now) == expected


@given(left=st.integers(-10_000, 100_000), cost=st.integers(0, 10_000))
def test_early_refresh_is_for_the_end_of_a_snapshot_s_time_only(left: int, cost: int) -> None:
    early = wants_early(stored(soft_ms=left, cost_ms=cost), 0)
    if left >= 20 * cost:
        assert not early
    if left < 0:
        assert early or cost == 0


def test_early_refresh_is_likelier_the_dearer_the_build() -> None:
    def share(cost: int) -> float:
        return sum(wants_early(stored(soft_ms=1_000, cost_ms=cost), 0) for _ in range(2_000)) / 2_000

    assert share(20) < share(500) < share(5_000)


# --- what a read costs ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def calls(redis: redis_py.Redis) -> Iterator[dict[str, int]]:
    """Counts of the commands that Redis got meanwhile; what a script calls inside counts as its EVALSHA only."""
    redis.config_resetstat()
    out: dict[str, int] = {}
    yield out
    stats = redis.info("commandstats")
    for name, row in stats.items():
        command = name.removeprefix("cmdstat_")
        if command in ("mget", "get", "evalsha", "eval", "set"):
            out[command] = row["calls"]


def test_a_watched_fresh_resource_costs_one_call_and_no_sql(
    db: None, probes: Path, redis: redis_py.Redis, django_assert_num_queries: Any
) -> None:
    watch("probe:a")
    pend("probe:a")
    drain_all()
    with django_assert_num_queries(0), calls(redis) as seen:
        snapshot = read("probe", "a")
    assert snapshot.state == "fresh"
    assert seen == {"mget": 1}


def test_a_hidden_resource_costs_one_query(db: None, probes: Path, django_assert_num_queries: Any) -> None:
    read("probe", "a")
    with django_assert_num_queries(1):
        assert read("probe", "a").state == "fresh"


def test_scopes_given_as_a_query_cost_no_query_more(db: None, make_user: Any, django_assert_num_queries: Any) -> None:
    ann = make_user("ann")
    read("feed", ann.pk)
    with django_assert_num_queries(1):
        assert read("feed", ann.pk).state == "fresh"


def test_the_first_read_of_a_watched_resource_trusts_it_for_the_others(
    db: None, probes: Path, django_assert_num_queries: Any
) -> None:
    read("probe", "a")
    watch("probe:a")
    with django_assert_num_queries(1):
        read("probe", "a")
    with django_assert_num_queries(0):
        assert read("probe", "a").state == "fresh"


def test_many_are_read_in_bulk(db: None, probes: Path, django_assert_num_queries: Any) -> None:
    keys = [f"k{n}" for n in range(100)]
    found = read_many("probe", keys)
    assert list(found) == keys
    assert {one.state for one in found.values()} == {"rebuilt"}
    # One claim, one look at the marks, one build, for all of them.
    assert len(builds()) == 1
    with django_assert_num_queries(1):
        assert {one.state for one in read_many("probe", keys).values()} == {"fresh"}
    watch(*[f"probe:{key}" for key in keys])
    read_many("probe", keys)
    with django_assert_num_queries(0):
        assert {one.state for one in read_many("probe", [*keys, *keys]).values()} == {"fresh"}
    assert read_many("probe", []) == {}


def test_keys_and_types_are_checked() -> None:
    with pytest.raises(UnknownDataType):
        read("nonsense", 1)
    for key in ("", "a b", "x" * 201):
        with pytest.raises(BadResource):
            read("counter", key)


# --- single flight ----------------------------------------------------------------------------------------------------


def test_C1_two_hundred_readers_in_four_processes_build_an_expired_key_once(live: Live, probes: Path) -> None:
    change("a", 7)
    order("a", delay=0.2)
    crowd = [lanes.child("readers", "probe", "a", "50") for _ in range(4)]
    try:
        for process in crowd:
            process.wait_until(lambda p=process: "ready" in p.output, 30)
        (probes / "go").touch()
        answers = [value for process in crowd for value in lanes.answer(process, 60)]
    finally:
        for process in crowd:
            process.stop()
    assert answers == [{"value": 7}] * 200
    assert len(builds("a")) == 1


def crowd_reads(n: int) -> list[Any]:
    """What so many threads get at once: data, or the error."""
    out: list[Any] = []
    gate = threading.Barrier(n)

    def one() -> None:
        gate.wait()
        try:
            out.append(read("probe", "a").data)
        except BuildFailed as error:
            out.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def test_C7_fifty_waiters_of_a_failing_build_share_one_call(transactional_db: None, probes: Path, redis: redis_py.Redis) -> None:
    order("a", fail="no luck", delay=0.3)
    answers = crowd_reads(50)
    assert len(answers) == 50 and all("no luck" in str(one) for one in answers)
    assert len(builds("a")) == 1
    # Nor does anybody who comes before the back-off is over.
    assert "no luck" in str(crowd_reads(3)[0])
    assert len(builds("a")) == 1
    redis.hset("{vis:0}:state:probe:a", "nb", "1")
    crowd_reads(5)
    assert len(builds("a")) == 2


def test_waiters_are_woken_and_do_not_poll(transactional_db: None, probes: Path, redis: redis_py.Redis) -> None:
    order("a", hold=True)
    first = threading.Thread(target=crowd_reads, args=(1,))
    first.start()
    wait_for(lambda: builds("a"), 5)
    others = threading.Thread(target=crowd_reads, args=(10,))
    with calls(redis) as seen:
        others.start()
        wait_for(lambda: redis.info("clients")["blocked_clients"] == 10, 10, "ten wait in Redis")
        order("a", value=1)
        for thread in (first, others):
            thread.join(20)
    assert len(builds("a")) == 1
    # A look and a claim before the wait, a look after it, and one more round a second while the machine is busy.
    assert seen["evalsha"] <= 10 * 6 + 10, seen


async def test_C8_a_cancelled_reader_does_not_cancel_the_build_of_the_others(transactional_db: None, probes: Path) -> None:
    order("a", hold=True)
    leader = asyncio.ensure_future(aread("probe", "a"))
    await await_for(lambda: builds("a"), 5, "the leader builds")
    others = [asyncio.ensure_future(aread("probe", "a")) for _ in range(20)]
    leader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leader
    order("a", value=3)
    assert [one.data for one in await asyncio.gather(*others)] == [3] * 20
    assert len(builds("a")) == 1


async def test_asynchronous_waiters_hold_no_thread(transactional_db: None, probes: Path) -> None:
    order("a", hold=True)
    order("b", value=2)
    waiting = [asyncio.ensure_future(aread("probe", "a")) for _ in range(60)]
    await await_for(lambda: builds("a"), 5)
    # More of them than the pool has threads: another key is read all the same.
    assert (await asyncio.wait_for(aread("probe", "b"), 5)).data == 2
    order("a", value=1)
    assert [one.data for one in await asyncio.gather(*waiting)] == [1] * 60
    found = await aread_many("probe", ["a", "b"])
    assert [one.data for one in found.values()] == [1, 2]


# --- order ------------------------------------------------------------------------------------------------------------


def test_C2_a_reader_that_began_earlier_does_not_store_the_old_row(db: None, probes: Path) -> None:
    """It read the source, then the change came and went through the gate; its snapshot is not what the next one gets."""
    change("a", 1)
    watch("probe:a")

    def meanwhile(name: str) -> None:
        if name == "build.store":
            points.hook = None
            change("a", 2)
            pend("probe:a")

    points.hook = meanwhile
    read("probe", "a")
    assert read("probe", "a").data == {"value": 2}


def test_C2_refused_even_where_no_snapshot_is_there_any_more(db: None, probes: Path, redis: redis_py.Redis) -> None:
    change("a", 1)

    def meanwhile(name: str) -> None:
        if name == "build.store":
            points.hook = None
            redis.flushall()

    points.hook = meanwhile
    assert read("probe", "a").data == {"value": 1}
    # The build whose claim was flushed stored nothing; the reader built again under a claim that lives.
    assert len(builds("a")) == 2


def test_a_change_is_read_at_once_though_its_window_is_not_over(db: None, probes: Path) -> None:
    change("a", 1)
    watch("probe:a")
    assert read("probe", "a").data == {"value": 1}
    change("a", 2)
    pend("probe:a", window=30)
    snapshot = read("probe", "a")
    assert (snapshot.state, snapshot.data) == ("rebuilt", {"value": 2})
    assert not look("probe:a").queued


def test_versions_grow_with_redis_away_and_back(
    transactional_db: None, probes: Path, own_redis: servers.RedisServer, redis: redis_py.Redis
) -> None:
    change("a", 1)
    first = read("probe", "a")
    own_redis.kill()
    try:
        away = read("probe", "a")
        assert (away.state, away.data) == ("rebuilt", {"value": 1})
        assert read_many("probe", ["a", "b"])["a"].data == {"value": 1}
    finally:
        own_redis.start()
        soft_client.close()
    back = read("probe", "a")
    assert first.version < away.version < back.version


def test_a_version_without_redis_is_older_than_its_read(
    transactional_db: None, probes: Path, own_redis: servers.RedisServer
) -> None:
    """Else a build that read later could seem older than what the page shows, and would not be sent to it."""
    order("a", delay=0.3)
    own_redis.kill()
    try:
        snapshot = read("probe", "a")
    finally:
        own_redis.start()
        soft_client.close()
    (_pid, began, _keys) = builds("a")[-1]
    assert snapshot.version / 1e6 < began + 0.2


async def test_an_asynchronous_read_builds_from_the_source_while_redis_is_away(
    transactional_db: None, probes: Path, own_redis: servers.RedisServer
) -> None:
    await sync_to_async(change)("a", 1)
    own_redis.kill()
    try:
        assert (await aread("probe", "a")).data == {"value": 1}
        assert (await aread_many("probe", ["a"]))["a"].data == {"value": 1}
    finally:
        own_redis.start()
        soft_client.close()


# --- times ------------------------------------------------------------------------------------------------------------


def age(redis: redis_py.Redis, resource: str, *, soft: int = 0, ttl: int | None = None) -> None:
    """Let the snapshot's soft TTL have ended."""
    raw = soft_client.client().get(f"{{vis:0}}:snap:{resource}")
    one = snapshots.unpack(raw, 1)
    assert one is not None
    left = redis.pttl(f"{{vis:0}}:snap:{resource}") if ttl is None else ttl
    soft_client.client().set(f"{{vis:0}}:snap:{resource}", snapshots.pack(one._replace(soft_ms=soft)), px=left)


@pytest.mark.parametrize("watched", [True, False])
def test_past_the_soft_ttl_everybody_is_served_and_one_refresh_waits(
    db: None, probes: Path, redis: redis_py.Redis, watched: bool
) -> None:
    if watched:
        watch("probe:a")
    read("probe", "a")
    age(redis, "probe:a")
    assert [read("probe", "a").state for _ in range(5)] == ["stale"] * 5
    assert len(builds("a")) == 1
    assert levels.lane_state("hot").pending == 1
    drain_all()
    assert len(builds("a")) == 2
    assert read("probe", "a").state == "fresh"


def test_C4_a_refreshed_snapshot_has_its_full_time_again(db: None, probes: Path, redis: redis_py.Redis) -> None:
    read("probe", "a")
    age(redis, "probe:a", ttl=2_000)
    read("probe", "a")
    drain_all()
    one = snapshots.unpack(look("probe:a").raw, 1)
    data_type = registry.get("probe")
    assert one is not None
    low, high = 1 - data_type.jitter, 1 + data_type.jitter
    assert low <= (one.soft_ms - one.built_ms) / 1000 / data_type.soft_ttl <= high
    assert low * 0.99 <= redis.pttl("{vis:0}:snap:probe:a") / 1000 / data_type.ttl <= high


def test_reads_do_not_prolong_the_hard_ttl(db: None, probes: Path, redis: redis_py.Redis) -> None:
    watch("probe:a")
    read("probe", "a")
    age(redis, "probe:a", soft=2**52, ttl=5_000)
    for _ in range(3):
        read("probe", "a")
    assert redis.pttl("{vis:0}:snap:probe:a") <= 5_000


def test_times_to_live_are_jittered_both_ways(db: None, probes: Path) -> None:
    read_many("probe", [f"k{n}" for n in range(60)])
    spans = [(one.soft_ms - one.built_ms) / 60_000 for n in range(60) if (one := snapshots.unpack(look(f"probe:k{n}").raw, 1))]
    assert min(spans) < 0.97 and max(spans) > 1.03


def test_C3_a_refresh_that_raises_leaves_the_stale_value_until_its_hard_ttl(
    db: None, probes: Path, redis: redis_py.Redis
) -> None:
    order("a", value=1)
    read("probe", "a")
    order("a", fail="no")
    age(redis, "probe:a")
    assert read("probe", "a").data == 1
    lanes.drain()
    assert len(builds("a")) == 2
    for _ in range(3):
        snapshot = read("probe", "a")
        assert (snapshot.state, snapshot.data) == ("stale", 1)
    # Back-off: no further call, no queue of refreshes.
    assert len(builds("a")) == 2
    assert levels.lane_state("hot").pending == 0


def test_C3_a_change_whose_build_raises_serves_the_stale_value_and_says_so(db: None, probes: Path) -> None:
    order("a", value=1)
    read("probe", "a")
    dirty.mark("probe", {"a": 2})
    order("a", fail="no")
    snapshot = read("probe", "a")
    assert (snapshot.state, snapshot.data, snapshot.missed) == ("stale", 1, 2)
    assert look("probe:a").tries == 1


def test_without_anything_to_serve_the_error_names_the_resource(db: None, probes: Path) -> None:
    order("a", fail="no luck")
    with pytest.raises(BuildFailed, match=r"probe:a could not be built: RuntimeError: no luck") as caught:
        read("probe", "a")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_of_many_the_failing_one_raises_and_the_others_are_kept(db: None, probes: Path) -> None:
    order("b", fail="no")
    with pytest.raises(BuildFailed, match="probe:b"):
        read_many("probe", ["a", "b", "c"])
    assert look("probe:a").raw and look("probe:c").raw


def test_C5_another_schema_is_a_miss(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read("probe", "a")
    monkeypatch.setattr(type(registry.get("probe")), "schema", 2)
    assert read("probe", "a").state == "rebuilt"
    assert read("probe", "a").state == "fresh"


@pytest.mark.parametrize("raw", [b"", b"x", b"v1|1|2\n{}", b"v9|1|1|1|1|1|1|s\n{}", b"\x80\x04pickle", b"v1|a|1|1|1|1|1|s\n1"])
def test_C5_bytes_of_another_kind_are_a_miss(db: None, probes: Path, raw: bytes) -> None:
    watch("probe:a")
    read("probe", "a")
    soft_client.client().set("{vis:0}:snap:probe:a", raw, ex=60)
    assert read("probe", "a").state == "rebuilt"


# --- transactions -----------------------------------------------------------------------------------------------------


def test_what_a_transaction_sees_is_not_kept_for_others(transactional_db: None, probes: Path) -> None:
    change("a", 1)
    with contextlib.suppress(InterruptedError), transaction.atomic():
        change("a", 2)
        assert read("probe", "a").data == {"value": 2}
        raise InterruptedError
    assert not look("probe:a").raw
    assert read("probe", "a").data == {"value": 1}


def test_a_transaction_that_finds_nothing_asks_a_worker_to_build(transactional_db: None, probes: Path) -> None:
    with transaction.atomic():
        read("probe", "a")
        read("probe", "a")
    assert levels.lane_state("hot").pending == 1
    drain_all()
    with transaction.atomic():
        assert read("probe", "a").state == "fresh"


def test_the_view_of_a_transaction_is_in_no_order(transactional_db: None, probes: Path) -> None:
    """A page that shows it, even what is rolled back after that, is sent whatever stands."""
    change("a", 1)
    with contextlib.suppress(InterruptedError), transaction.atomic():
        change("a", 2)
        inside = read("probe", "a")
        assert (inside.data, inside.version) == ({"value": 2}, 0)
        raise InterruptedError
    assert read("probe", "a").version > 0


def test_a_build_that_fails_in_a_transaction_raises_there(transactional_db: None, probes: Path) -> None:
    order("a", value=1)
    read("probe", "a")
    dirty.mark("probe", {"a": 1})
    order("a", fail="no")
    with transaction.atomic(), pytest.raises(BuildFailed, match="probe:a could not be built"):
        read("probe", "a")


def test_a_transaction_gives_no_trust(transactional_db: None, probes: Path) -> None:
    read("probe", "a")
    watch("probe:a")
    with transaction.atomic():
        assert read("probe", "a").state == "fresh"
        assert look("probe:a").fresh == 0
    read("probe", "a")
    assert look("probe:a").fresh != 0


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_an_active_window_keeps_what_was_read_visible(db: None, make_user: Any) -> None:
    ann = make_user("ann")
    assert not leases.visible_among("badge", [str(ann.pk)])
    read("badge", ann.pk)
    assert leases.visible_among("badge", [str(ann.pk)])
    counts = leases.counts(f"badge:{ann.pk}")
    assert (counts.hold, counts.watch) == (1, 0)
    assert 295 < counts.visible_for <= 300


def test_a_snapshot_tells_what_it_missed(db: None, probes: Path) -> None:
    read("probe", "a")
    dirty.mark("probe", {"a": 3})
    dirty.mark("probe", {"a": 1})
    snapshot = read("probe", "a")
    assert (snapshot.state, snapshot.missed) == ("rebuilt", 4)
    assert snapshot.event_at is not None
    assert read("probe", "a").missed == 0


def test_a_claim_that_hangs_does_not_hold_its_readers_for_ever(transactional_db: None, probes: Path) -> None:
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "BUILD_TIMEOUT": 0.5}):
        pend("probe:a")
        claim(lease=60)
        with pytest.raises(BuildFailed, match="still being built"):
            read("probe", "a")


def test_versions_that_stand_higher_than_the_clock_are_passed(db: None, probes: Path, redis: redis_py.Redis) -> None:
    """Redis failed over to a server whose clock is behind: a newer version stands than its clock gives."""
    change("a", 1)
    ahead = int(time.time() * 1_000_000) + 3_600_000_000
    redis.hset("{vis:0}:state:probe:a", "ver", str(ahead))
    snapshot = read("probe", "a")
    assert snapshot.data == {"value": 1} and snapshot.version > ahead
    assert len(builds("a")) == 2
    assert read("probe", "a").state == "fresh"


def test_a_reader_whose_stores_are_refused_again_and_again_still_gets_an_answer(
    db: None, probes: Path, redis: redis_py.Redis
) -> None:
    change("a", 1)

    def flush(name: str) -> None:
        if name == "build.store":
            redis.flushall()

    points.hook = flush
    try:
        assert read("probe", "a").data == {"value": 1}
    finally:
        points.hook = None
    assert len(builds("a")) <= rounds.REFUSED_ENOUGH + 2
