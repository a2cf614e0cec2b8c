"""Natural keys: the first of a combination and interval, and nobody else."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import given, strategies as st

import visibility
from tests.support import wait_for
from visibility.models import NaturalKey
from visibility.once import aonce, natural_key, once

PARTS = st.lists(st.text("ab/\\:", max_size=5), min_size=1, max_size=4)


@given(one=PARTS, other=PARTS)
def test_different_parts_are_different_keys(one: list[str], other: list[str]) -> None:
    assert (natural_key(tuple(one)) == natural_key(tuple(other))) == (one == other)


def test_a_long_key_is_shortened_and_still_its_own() -> None:
    one, other = natural_key(("x" * 300, 1)), natural_key(("x" * 300, 2))
    assert one != other and max(len(one), len(other)) <= 255


def test_the_first_wins_and_the_others_do_not(db: None) -> None:
    assert visibility.once("comment", 1, "post", 7, interval=60)
    assert not once("comment", 1, "post", 7, interval=60)
    assert once("comment", 2, "post", 7, interval=60)
    assert once("like", 1, "post", 7, interval=60)


def test_after_the_interval_it_may_be_again(db: None) -> None:
    assert once("digest", interval=60)
    NaturalKey.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert once("digest", interval=60)
    assert not once("digest", interval=60)
    assert NaturalKey.objects.count() == 1


def test_a_short_interval_ends_by_the_clock(db: None) -> None:
    assert once("digest", interval=0.2)
    wait_for(lambda: once("digest", interval=60), 2)


def test_rolled_back_it_did_not_happen(transactional_db: None) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        assert once("digest", interval=60)
        raise RuntimeError
    assert once("digest", interval=60)


def test_a_repetition_inside_a_transaction_leaves_it_usable(db: None) -> None:
    with transaction.atomic():
        assert once("digest", interval=60)
        assert not once("digest", interval=60)
        assert NaturalKey.objects.count() == 1


@pytest.mark.parametrize("there", [False, True])
def test_of_many_at_once_one_wins(transactional_db: None, there: bool) -> None:
    if there:
        NaturalKey.objects.create(name="digest/7", expires_at=timezone.now() - timedelta(seconds=1))
    gate = threading.Barrier(8)
    answers: list[bool] = []

    def one() -> None:
        gate.wait()
        try:
            answers.append(once("digest", 7, interval=60))
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]


async def test_asynchronously(transactional_db: None) -> None:
    assert await aonce("digest", interval=60)
    assert not await aonce("digest", interval=60)


def test_nonsense_is_refused(db: None) -> None:
    with pytest.raises(ValueError):
        once("digest", interval=0)
    with pytest.raises(ValueError):
        once(interval=5)
