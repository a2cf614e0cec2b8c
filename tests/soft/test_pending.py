"""What waits, who builds it, and what bounds it: the scripts of `soft/pending` on a real server."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis as redis_py
from django.test import override_settings
from hypothesis import given, strategies as st

from tests.lanes import claim, look, pend, watch
from tests.support import wait_for
from visibility.conf import settings
from visibility.soft import claims, leases, levels, looks, pending, snapshots
from visibility.soft.claims import Busy, Claim, Done, Later
from visibility.soft.pending import Item

LANE = "hot"


def visibility(**changes: Any) -> Any:
    return override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, **changes})


def lanes(**options: Any) -> Any:
    """The lane `hot` with these options."""
    return visibility(LANES={"hot": {"queue": "visibility-hot", "bound": 10_000, "batch": 100, **options}})


def packed(owned: Claim, body: bytes = b"{}") -> bytes:
    return snapshots.pack(snapshots.Stored(int(owned.token), 1, owned.now_ms, 0, owned.now_ms + 60_000, 1, "0.0.0", body))


def store(owned: Claim, *resources: str, lane: str = LANE) -> list[int]:
    rows = {row.resource: row for row in owned.rows}
    return claims.store(lane, owned, [(rows[r], 60_000, owned.now_ms + 60_000, packed(owned), False) for r in resources])


def finish(owned: Claim, how: str = "trust", window: float = 0.0) -> list[int]:
    return claims.done(LANE, owned, [Done(row, how, window) for row in owned.rows])[1]


def size(lane: str = LANE) -> int:
    state = levels.lane_state(lane)
    return state.pending + state.claimed


# --- what waits -------------------------------------------------------------------------------------------------------


def test_a_resource_waits_once_with_the_age_of_its_oldest_change() -> None:
    start = time.time() - 5
    first = pend("counter:a", since=start)
    second = pend("counter:a", since=start + 3)
    assert (first.accepted, first.merged) == (1, 0)
    assert (second.accepted, second.merged) == (1, 1)
    assert size() == 1
    assert claim().rows[0].since_ms == int(start * 1000)


def test_each_change_raises_the_generation() -> None:
    pend("counter:a")
    first = look("counter:a").gen
    pend("counter:a")
    assert int(look("counter:a").gen) > int(first)


def test_the_first_change_wakes_the_lane_and_the_others_do_not() -> None:
    assert pend("counter:a").wake == [0]
    assert pend("counter:a", "counter:b").wake == []


def test_leading_edge_at_once_trailing_edge_after_the_window() -> None:
    pend("counter:a", window=0.3)
    owned = claim()
    finish(owned)
    pend("counter:a", window=0.3)
    due = look("counter:a").due_ms or 0
    assert 0 < due - owned.now_ms <= 300
    assert not claims.claim(LANE, 0, 10, 15).rows


def test_a_shorter_window_brings_the_due_time_forward_and_a_longer_one_does_not_put_it_off() -> None:
    pend("counter:a")
    finish(claim())
    pend("counter:a", window=5)
    pend("counter:a", window=1)
    early = look("counter:a").due_ms
    pend("counter:a", window=9)
    assert look("counter:a").due_ms == early


def test_hidden_tabs_alone_are_served_in_their_own_window() -> None:
    watch("unread:1", kind="background")
    pend("unread:1", lane="cold", hidden_window=5)
    finish_cold = claim("cold")
    claims.done("cold", finish_cold, [Done(finish_cold.rows[0], "trust")])
    pend("unread:1", lane="cold", hidden_window=5)
    due = (look("unread:1", "cold").due_ms or 0) - finish_cold.now_ms
    assert 4_000 < due <= 5_000
    watch("unread:1", member="1/other")
    pend("unread:1", lane="cold", hidden_window=5)
    assert (look("unread:1", "cold").due_ms or 0) - finish_cold.now_ms < 4_000


def test_every_key_has_a_lifetime(redis: redis_py.Redis) -> None:
    with visibility(RATE_LIMITS={"tenant": "10/s"}):
        watch("counter:a")
        pend("counter:a", "counter:b", tenant="t")
        owned = claim(n=2)
        store(owned, "counter:a")
        pend("counter:a", tenant="t")
        claims.claim_one(LANE, "counter:a", 5)
        finish(owned)
        claims.fail(LANE, claim(), [])
        looks.distrust(["counter:c"])
        claims.claim(LANE, 0, 10, 15, 0.2)
        levels.swap_stage(LANE, "normal", "pressed")
    for name in redis.scan_iter("*"):
        assert redis.pttl(name) != -1, name


# --- claims -----------------------------------------------------------------------------------------------------------


def test_tokens_only_grow_across_a_flush(redis: redis_py.Redis) -> None:
    pend("counter:a")
    first = claim().token
    redis.flushall()
    pend("counter:a")
    assert int(claim().token) > int(first)
    assert int(first) < 2**53


def test_one_claim_a_resource(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claim()
    pend("counter:a")
    assert claims.claim(LANE, 0, 10, 15).rows == []
    got = claims.claim_one(LANE, "counter:a", 15)
    assert got == Busy(owned.token)
    assert size() == 1


def test_J1_a_change_during_the_build_makes_it_pending_again() -> None:
    pend("counter:a", window=0.2)
    owned = claim()
    pend("counter:a", window=0.2)
    assert store(owned, "counter:a") == [True]
    assert finish(owned) == [2]
    due = (look("counter:a").due_ms or 0) - owned.now_ms
    assert 0 < due <= 200
    again = claim()
    assert finish(again) == [1]
    assert size() == 0


def test_the_age_of_a_change_during_the_build_is_its_own() -> None:
    pend("counter:a", since=time.time() - 60)
    owned = claim()
    later = time.time()
    pend("counter:a", since=later)
    store(owned, "counter:a")
    finish(owned)
    assert claim().rows[0].since_ms == int(later * 1000)


@pytest.mark.parametrize("how", ["back", "lease", "fail"])
def test_the_oldest_change_is_kept_where_the_build_did_not_show_it(redis: redis_py.Redis, how: str) -> None:
    start = time.time() - 60
    pend("counter:a", since=start)
    owned = claim()
    pend("counter:a", since=start + 30)
    if how == "back":
        assert finish(owned, "back") == [2]
    elif how == "fail":
        claims.fail(LANE, owned, [(owned.rows[0], 0.0, "no", False)])
    else:
        redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    assert claim().rows[0].since_ms == int(start * 1000)


def test_J3_a_late_end_does_not_end_a_newer_claim(redis: redis_py.Redis) -> None:
    pend("counter:a")
    late = claim()
    redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    newer = claim()
    assert finish(late) == [0]
    assert claims.fail(LANE, late, [(late.rows[0], 1.0, "late", False)]) == [0]
    assert store(late, "counter:a") == [False]
    assert look("counter:a").owner == newer.token
    assert store(newer, "counter:a") == [True]
    assert finish(newer) == [1]


def test_J6_only_ended_claims_are_taken_over(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claim(lease=30)
    assert claims.claim(LANE, 0, 10, 15).rows == []
    assert levels.rouse(LANE) == []
    redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    assert levels.rouse(LANE) == [0]
    taken = claim()
    assert taken.rows[0].lost == 1
    assert claims.extend(LANE, owned, 30, ["counter:a"]) == ["counter:a"]
    assert claims.extend(LANE, taken, 30, ["counter:a"]) == []


def test_a_claim_that_ended_stores_nothing_even_if_nobody_took_it_over(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claim()
    redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    assert store(owned, "counter:a") == [False]


def test_an_older_token_stores_nothing_over_a_newer_one(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claim()
    redis.hset("{vis:0}:state:counter:a", "ver", str(int(owned.token) + 1))
    assert store(owned, "counter:a") == [False]


def test_J9_extending_by_nothing_is_refused() -> None:
    pend("counter:a")
    owned = claim()
    for lease in (0, -1):
        with pytest.raises(ValueError):
            claims.extend(LANE, owned, lease, ["counter:a"])
    assert look("counter:a").owner == owned.token


def test_extending_sets_the_time_and_does_not_add_to_it(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claim(lease=30)
    claims.extend(LANE, owned, 10, ["counter:a"])
    ends = redis.zscore("{vis:0}:claimed:hot", "counter:a")
    assert ends is not None and ends - owned.now_ms < 15_000


def test_a_change_on_a_claim_that_ended_waits_again_and_wakes(redis: redis_py.Redis) -> None:
    pend("counter:a")
    claim()
    redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    redis.delete("{vis:0}:wake:hot")
    assert pend("counter:a").wake == [0]
    assert look("counter:a").due_ms is not None
    assert claim().rows[0].lost == 1


def test_a_flush_ends_every_claim(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claim()
    redis.flushall()
    assert store(owned, "counter:a") == [False]
    assert finish(owned) == [0]
    assert size() == 0


def test_named_claims_in_bulk_tell_the_free_from_the_busy_and_the_failed() -> None:
    pend("counter:busy")
    other = claim()
    failed = claims.claim_one(LANE, "counter:failed", 15)
    assert isinstance(failed, Claim)
    claims.fail(LANE, failed, [(failed.rows[0], 30.0, "ValueError: no", False)])
    owned, refused = claims.claim_named(LANE, ["counter:free", "counter:busy", "counter:failed", "counter:b"], 15)
    assert [row.resource for one in owned for row in one.rows] == ["counter:free", "counter:b"]
    assert refused["counter:busy"] == Busy(other.token)
    later = refused["counter:failed"]
    assert isinstance(later, Later) and later.error == "ValueError: no" and 25_000 < later.ms <= 30_000


def test_a_reader_s_own_claim_given_back_leaves_nothing_behind() -> None:
    owned = claims.claim_one(LANE, "counter:a", 15)
    assert isinstance(owned, Claim)
    assert finish(owned, "back") == [1]
    assert size() == 0


def test_a_reader_s_claim_of_what_is_pending_owes_it(redis: redis_py.Redis) -> None:
    pend("counter:a")
    owned = claims.claim_one(LANE, "counter:a", 15)
    assert isinstance(owned, Claim)
    redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    assert claim().rows[0].resource == "counter:a"


def test_a_dead_reader_s_claim_owes_nothing(redis: redis_py.Redis) -> None:
    claims.claim_one(LANE, "counter:a", 15)
    redis.zadd("{vis:0}:claimed:hot", {"counter:a": 1})
    assert claims.claim(LANE, 0, 10, 15).rows == []
    assert size() == 0


def test_discarding_ends_the_build_under_way() -> None:
    pend("counter:a")
    owned = claim()
    claims.discard(LANE, ["counter:a"])
    assert store(owned, "counter:a") == [False]
    assert finish(owned) == [0]
    assert not look("counter:a").raw


def test_waiters_of_a_build_wake_at_its_end() -> None:
    pend("counter:a")
    owned = claim()
    busy = claims.claim_one(LANE, "counter:a", 15)
    assert isinstance(busy, Busy)
    woken: list[float] = []

    def wait() -> None:
        assert claims.wait_for_build("counter:a", busy.owner, 4)
        woken.append(time.monotonic())

    crowd = [threading.Thread(target=wait) for _ in range(5)]
    for thread in crowd:
        thread.start()
    finish(owned, "drop")
    for thread in crowd:
        thread.join(4)
    assert len(woken) == 5


# --- failures ---------------------------------------------------------------------------------------------------------


def fail(delay: float, give_up: bool = False) -> list[int]:
    owned = claim()
    return claims.fail(LANE, owned, [(row, delay, "no", give_up) for row in owned.rows])


def test_J7_new_changes_do_not_multiply_or_hasten_the_retries() -> None:
    pend("counter:a")
    assert fail(20) == [1]
    due = look("counter:a").due_ms
    for _ in range(5):
        pend("counter:a")
    assert look("counter:a").due_ms == due
    assert size() == 1
    assert claims.claim(LANE, 0, 10, 15).rows == []


def test_failures_are_counted_in_a_row() -> None:
    pend("counter:a")
    assert fail(0) == [1]
    assert fail(0) == [2]
    owned = claim()
    assert owned.rows[0].tries == 2
    store(owned, "counter:a")
    finish(owned)
    pend("counter:a")
    assert claim().rows[0].tries == 0


def test_J2_giving_up_leaves_no_marker_behind() -> None:
    pend("counter:a")
    fail(0, give_up=True)
    assert size() == 0
    pend("counter:a")
    assert claim().rows[0].resource == "counter:a"


def test_what_changed_while_it_was_given_up_waits_again() -> None:
    pend("counter:a")
    owned = claim()
    pend("counter:a")
    claims.fail(LANE, owned, [(owned.rows[0], 0.0, "no", True)])
    assert claim().rows[0].resource == "counter:a"


# --- refreshes --------------------------------------------------------------------------------------------------------


def test_a_refresh_is_no_change() -> None:
    watch("counter:a")
    owned = claims.claim_one(LANE, "counter:a", 15)
    assert isinstance(owned, Claim)
    store(owned, "counter:a")
    finish(owned)
    before = look("counter:a")
    assert before.fresh == int(owned.token)
    pend("counter:a", refresh=True)
    seen = look("counter:a")
    assert (seen.queued, seen.pending, seen.fresh, seen.gen) == (True, False, before.fresh, before.gen)
    row = claim().rows[0]
    assert row.forced and row.since_ms == 0


def test_a_change_on_a_refresh_that_waits_is_a_change() -> None:
    watch("counter:a")
    pend("counter:a", refresh=True)
    pend("counter:a")
    seen = look("counter:a")
    assert seen.pending and seen.fresh == 0 and seen.since_ms


def test_a_refresh_asked_for_during_a_build_runs_after_it() -> None:
    owned = claims.claim_one(LANE, "counter:a", 15)
    assert isinstance(owned, Claim)
    pend("counter:a", refresh=True)
    store(owned, "counter:a")
    assert finish(owned) == [2]
    assert claim().rows[0].forced


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_lane_never_grows_past_its_bound() -> None:
    with lanes(bound=10):
        done = pend(*[f"counter:{n}" for n in range(25)])
        assert done.accepted == 10
        assert [why for _, why in done.shed] == ["bound"] * 15
        assert pend("counter:3").merged == 1
        owned = claim(limit=4, n=4)
        # What is being built keeps its place: it may come back.
        assert pend("counter:24").shed == [("counter:24", "bound")]
        finish(owned)
        assert pend("counter:24").accepted == 1
        assert size() == 7


def test_shards_share_the_bound() -> None:
    with visibility(SHARDS=4, LANES={"hot": {"queue": "visibility-hot", "bound": 40, "batch": 10}}):
        done = pend(*[f"counter:{n}" for n in range(400)])
        assert done.accepted == 40
        assert size() == 40
        assert sorted(done.wake) == [0, 1, 2, 3]


def test_one_tenant_takes_no_more_than_its_share_of_a_lane() -> None:
    with lanes(bound=100, share=0.2):
        done = pend(*[f"counter:{n}" for n in range(50)], tenant="loud")
        assert done.accepted == 20
        assert {why for _, why in done.shed} == {"share"}
        assert pend(*[f"counter:q{n}" for n in range(5)], tenant="quiet").accepted == 5
        assert pend("counter:none").accepted == 1
        claim(limit=10, n=10)
        assert pend(*[f"counter:n{n}" for n in range(50)], tenant="loud").accepted >= 4


def test_a_share_counts_for_whoever_put_it_in() -> None:
    with lanes(bound=100, share=0.02):
        pend("counter:a", "counter:b", tenant="one")
        # The same resources change again, by another tenant: they are counted once, and only until they are claimed.
        pend("counter:a", "counter:b", tenant="two")
        assert pend("counter:c", tenant="two").accepted == 1
        claim(n=3)
        assert pend("counter:d", "counter:e", tenant="one").accepted == 2


def test_a_tenant_s_rate_is_a_bucket_that_fills_by_the_server_s_clock() -> None:
    with visibility(RATE_LIMITS={"tenant": "20/s"}):
        done = pend(*[f"counter:{n}" for n in range(50)], tenant="loud")
        assert 20 <= done.accepted <= 22
        assert {why for _, why in done.shed} == {"tenant"}
        assert pend("counter:other", tenant="quiet").accepted == 1
        # What waits already costs nothing.
        assert pend("counter:0", tenant="loud").accepted == 1
        wait_for(lambda: pend("counter:later", tenant="loud").accepted == 1, 2, "the bucket fills again")


def test_a_resource_s_rate_is_a_floor_under_its_window() -> None:
    with visibility(RATE_LIMITS={"resource": "2/s"}):
        pend("counter:a")
        owned = claim()
        finish(owned)
        pend("counter:a")
        assert (look("counter:a").due_ms or 0) - owned.now_ms == 500


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, (0, 0)), ("100/s", (100, 100)), ("600/m", (10, 600)), ("3600/h", (1, 3600)), (5, (5, 5)), ("7", (7, 7))],
)
def test_rates_are_read(value: Any, expected: tuple[float, float]) -> None:
    with visibility(RATE_LIMITS={"tenant": value}):
        assert pending.rate("tenant") == expected


# --- waking -----------------------------------------------------------------------------------------------------------


def test_a_change_rings_the_bell_of_whoever_lingers_and_needs_no_job() -> None:
    owned = claims.claim(LANE, 0, 10, 15, 2.0)
    assert owned.bell_ms == 2000
    rang: list[bool] = []
    thread = threading.Thread(target=lambda: rang.append(claims.linger(owned, LANE)))
    thread.start()
    assert pend("counter:a").wake == []
    thread.join(4)
    assert rang == [True]
    claim()
    assert pend("counter:b").wake == [0]


def test_no_wake_is_lost_between_the_look_and_the_wait() -> None:
    """The flag "rings for me" is set by the claim that found nothing: what comes before the wait rings all the same."""
    owned = claims.claim(LANE, 0, 10, 15, 0.5)
    assert pend("counter:a").wake == []
    started = time.monotonic()
    assert claims.linger(owned, LANE)
    assert time.monotonic() - started < 0.4


def test_who_lingers_waits_for_the_next_that_is_due_soon() -> None:
    pend("counter:a")
    finish(claim())
    pend("counter:a", window=0.8)
    owned = claims.claim(LANE, 0, 10, 15)
    assert 0 < owned.bell_ms <= 800
    claims.stop_lingering(owned, LANE)
    assert pend("counter:b").wake == [0]


def test_rouse_wakes_what_waits_once(redis: redis_py.Redis) -> None:
    assert levels.rouse(LANE) == []
    pend("counter:a")
    assert levels.rouse(LANE) == []
    redis.delete("{vis:0}:wake:hot")
    assert levels.rouse(LANE) == [0]
    assert levels.rouse(LANE) == []


def test_rouse_leaves_alone_what_is_due_later() -> None:
    pend("counter:a")
    finish(claim())
    pend("counter:a", window=30)
    assert levels.rouse(LANE) == []


# --- any order of steps -----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(["change", "claim", "store", "done", "back", "fail", "expire", "late done", "read"]), max_size=25
)


@given(steps=STEPS)
def test_no_change_is_lost_and_nothing_is_built_twice_at_once(steps: list[str]) -> None:
    """Whatever the order: a change that no stored build began after is pending or being built; one live claim at most."""
    name = "counter:h"
    redis = redis_py.Redis.from_url(settings.REDIS_URL)
    redis.flushdb()
    changes = shown = 0
    held: list[tuple[Claim, int]] = []
    stored: set[str] = set()
    for step in steps:
        if step == "change":
            changes += 1
            pend(name)
        elif step == "claim":
            owned = claims.claim(LANE, 0, 10, 15)
            held += [(owned, changes)] if owned.rows else []
        elif step == "read":
            got = claims.claim_one(LANE, name, 15)
            held += [(got, changes)] if isinstance(got, Claim) else []
        elif step == "expire":
            redis.zadd("{vis:0}:claimed:hot", {name: 1}, xx=True)
        elif held:
            owned, seen = held[0] if step == "late done" else held[-1]
            if step == "store" and store(owned, name) == [True]:
                shown = max(shown, seen)
                stored.add(owned.token)
            elif step in ("done", "late done") and owned.token in stored:
                finish(owned)
            elif step == "back":
                finish(owned, "back")
            elif step == "fail" and owned.token not in stored:
                claims.fail(LANE, owned, [(owned.rows[0], 0.0, "no", False)])
        seen_now = look(name)
        assert levels.lane_state(LANE).pending + levels.lane_state(LANE).claimed <= 1
        assert shown == changes or seen_now.queued, (steps, step)
    redis.close()


def test_visible_and_hidden_are_told_apart_at_the_claim() -> None:
    watch("counter:a")
    pend("counter:a", "counter:b")
    assert {row.resource: row.visible for row in claim(n=2).rows} == {"counter:a": True, "counter:b": False}
    assert leases.visible_count("counter") == 1


def test_items_default_to_a_change() -> None:
    assert Item("counter:a", 1) == Item("counter:a", 1, "", False, 0.25, 0.0, "", False)


def test_between_a_store_and_the_next_claim_a_drain_counts_as_at_work() -> None:
    """It holds nothing then, and yet whoever wakes the lane has to look whether its job waits."""
    lane = settings.lane(LANE)
    assert pending.pend(lane, [Item("counter:a", 1, window=0.0)]).idle == {0}
    owned = claims.claim(LANE, 0, 10, 15)
    now = owned.now_ms
    assert claims.store(LANE, owned, [(owned.rows[0], 60_000, now + 60_000, packed(owned), True)]) == [2]
    assert size() == 0
    assert pending.pend(lane, [Item("counter:b", 1, window=0.0)]).idle == set()
    owned = claims.claim(LANE, 0, 10, 15)
    claims.store(LANE, owned, [(owned.rows[0], 60_000, now + 60_000, packed(owned), True)])
    assert claims.claim(LANE, 0, 10, 15).rows == []
    assert pending.pend(lane, [Item("counter:c", 1, window=0.0)]).idle == {0}


def test_a_store_that_is_sent_once_more_answers_what_the_first_would_have() -> None:
    """After a broken connection nobody knows whether it ran: the watchers have to be told."""
    pending.pend(settings.lane(LANE), [Item("counter:a", 1, window=0.0), Item("counter:b", 1, window=0.0)])
    owned = claims.claim(LANE, 0, 10, 15)
    rows = {row.resource: row for row in owned.rows}
    items = [
        (rows["counter:a"], 60_000, owned.now_ms + 60_000, packed(owned), True),
        (rows["counter:b"], 60_000, owned.now_ms + 60_000, packed(owned), False),
    ]
    assert claims.store(LANE, owned, items) == [2, 1]
    assert claims.store(LANE, owned, items) == [2, 1]
    assert claims.done(LANE, owned, [Done(rows["counter:b"], "keep")]) == (False, [1])
