"""The owner-token lock that hosts use for their own jobs."""

from __future__ import annotations

import math
import os
import threading
import time

import pytest
import redis as redis_py

import visibility
from tests.support import wait_for
from visibility.exceptions import LockLost
from visibility.soft import pages
from visibility.soft.locks import Lock, lock

NAME = "report:7"


def expire(redis: redis_py.Redis) -> None:
    redis.delete(f"{{vis:0}}:lock:{NAME}")


def test_one_at_a_time_and_free_afterwards() -> None:
    with lock(NAME) as held:
        assert held is not None
        with lock(NAME) as other:
            assert other is None
    with visibility.lock(NAME) as again:
        assert again is not None


def test_it_is_released_where_the_block_raises() -> None:
    with pytest.raises(RuntimeError), lock(NAME):
        raise RuntimeError
    with lock(NAME) as held:
        assert held is not None


def test_fences_only_grow_across_a_flush(redis: redis_py.Redis) -> None:
    fences = []
    for _ in range(3):
        with lock(NAME) as held:
            assert held is not None
            fences.append(held.fence)
        redis.flushall()
    assert fences == sorted(set(fences)) and fences[-1] < 2**53


def test_J9_the_loser_s_end_does_not_release_the_winner_s_lock(redis: redis_py.Redis) -> None:
    first, second = Lock(NAME, 10), Lock(NAME, 10)
    assert first.acquire()
    expire(redis)
    assert second.acquire()
    assert first.release() is False
    assert second.release() is True
    assert second.release() is False


def test_J9_a_lock_that_ended_cannot_be_extended(redis: redis_py.Redis) -> None:
    held = Lock(NAME, 10)
    held.acquire()
    held.extend()
    expire(redis)
    with pytest.raises(LockLost):
        held.extend()
    other = Lock(NAME, 10)
    other.acquire()
    with pytest.raises(LockLost):
        held.extend()


def test_J9_zero_and_less_are_refused_and_delete_nothing(redis: redis_py.Redis) -> None:
    held = Lock(NAME, 10)
    held.acquire()
    for seconds in (0, -1, math.inf, math.nan, 1e300, "5"):
        with pytest.raises(ValueError):
            held.extend(seconds)
        with pytest.raises(ValueError):
            Lock(NAME, seconds)
    assert redis.pttl(f"{{vis:0}}:lock:{NAME}") > 9_000


def test_extending_sets_the_time_and_does_not_add_to_it(redis: redis_py.Redis) -> None:
    held = Lock(NAME, 30)
    held.acquire()
    held.extend(5)
    assert 4_000 < redis.pttl(f"{{vis:0}}:lock:{NAME}") <= 5_000


def test_it_ends_by_itself() -> None:
    Lock(NAME, 0.2).acquire()
    wait_for(lambda: Lock(NAME, 1).acquire(), 2)


def test_who_waits_gets_it_when_it_is_free() -> None:
    held = Lock(NAME, 10)
    held.acquire()
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(Lock(NAME, 10).acquire(wait=5)))
    thread.start()
    held.release()
    thread.join(6)
    assert got == [True]


def test_who_waits_in_vain_is_told_in_time() -> None:
    Lock(NAME, 10).acquire()
    started = time.monotonic()
    assert Lock(NAME, 10).acquire(wait=0.2) is False
    assert 0.2 <= time.monotonic() - started < 2


def test_a_part_of_a_millisecond_is_one() -> None:
    with lock(NAME, 30) as held:
        assert held is not None
        held.extend(0.0005)
    assert Lock(NAME, 0.0001).acquire(wait=1)


class TestList:
    """What the admin and the doctor know of named locks."""

    def test_held_locks_with_owner_and_age(self) -> None:
        with lock("a", 30), lock("b", 10):
            found = pages.locks()
            assert [row.name for row in found.rows] == ["b", "a"]
            assert {row.owner.rpartition(":")[2] for row in found.rows} == {str(os.getpid())}
            assert all(0 <= (row.age or 0) < 5 and not row.ended for row in found.rows)
            assert 25 < found.rows[1].left <= 30
        assert pages.locks().total == 0

    def test_extending_moves_its_end(self) -> None:
        with lock("a", 5) as held:
            assert held is not None
            held.extend(100)
            assert pages.locks().rows[0].left > 90

    def test_what_ended_unreleased_is_told_until_it_is_taken_again(self) -> None:
        lost = Lock("a", 0.05)
        lost.acquire()
        (row,) = wait_for(lambda: [row for row in pages.locks().rows if row.ended], 5)
        assert (row.name, row.owner, row.age) == ("a", "", None)
        # The loser's own end changes nothing; the next holder's takes it off.
        assert lost.release() is False and pages.locks().total == 1
        with lock("a"):
            assert not pages.locks().rows[0].ended
        assert pages.locks().total == 0

    def test_the_list_is_bounded_and_ends_by_itself(self, redis: redis_py.Redis) -> None:
        redis.zadd("{vis:0}:locks", {f"x{n}": time.time() * 1000 + n for n in range(1_200)})
        redis.zadd("{vis:0}:locks", {"old": (time.time() - 700) * 1000})
        with lock("a", 3_600):
            assert redis.zcard("{vis:0}:locks") == 1_000
            assert redis.zscore("{vis:0}:locks", "old") is None
            # The longest lock decides, whatever is taken after it.
            with lock("b", 1):
                assert 3_600_000 < redis.pttl("{vis:0}:locks") <= 4_200_000
            assert len(pages.locks(limit=10_000).rows) == pages.MAX
