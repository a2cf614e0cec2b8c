"""Promotion: what was only marked while visible goes back to its lane, oldest first, as far as there is room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.utils.timezone import now

import visibility
from tests.app.models import Follow, Post
from tests.lanes import drain, look, watch
from tests.support import wait_for
from tests.support.probe import order
from visibility import dirty, pressure, promotion
from visibility.conf import settings
from visibility.models import DirtyFlag
from visibility.read import read
from visibility.soft import levels, looks


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(promotion, "PROMOTE_SECONDS", 0.0)
    promotion._cursors.clear()
    pressure.forget()
    yield
    pressure.forget()


def test_visible_and_dirty_is_promoted_with_its_age(db: None, probes: Path) -> None:
    watch("probe:a", "probe:clean")
    start = now() - timedelta(seconds=90)
    dirty.mark("probe", {"a": 1, "hidden": 1}, start)
    assert promotion.promote() == 1
    assert look("probe:a").since_ms == int(start.timestamp() * 1000)
    assert not look("probe:hidden").queued
    # What waits or is being built or backs off is left alone.
    assert promotion.promote() == 0


def test_what_backs_off_or_is_in_quarantine_is_not_promoted(db: None, probes: Path) -> None:
    order("a", fail="no")
    watch("probe:a", "probe:q")
    dirty.mark("probe", {"a": 1})
    with pytest.raises(visibility.BuildFailed):
        read("probe", "a")
    dirty.quarantine("probe", "q", 5, "no")
    assert promotion.promote() == 0
    dirty.release("probe", ["q"])
    assert promotion.promote() == 1


def test_the_oldest_goes_first(db: None, probes: Path) -> None:
    hot = {"queue": "visibility-hot", "bound": 10, "batch": 10}
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "LANES": {"hot": hot}}):
        for n in range(10):
            watch(f"probe:k{n}")
            dirty.mark("probe", {f"k{n}": 1}, now() - timedelta(seconds=n))
        assert promotion.promote() == 4
        assert [look(f"probe:k{n}").queued for n in range(10)] == [False] * 6 + [True] * 4


@pytest.mark.parametrize("same_time", [True, False])
def test_few_visible_are_found_among_many_dirty_ones(
    db: None, probes: Path, monkeypatch: pytest.MonkeyPatch, same_time: bool
) -> None:
    """Both sides large: page through the flags; a bulk mark gives hundreds of them the same time."""
    monkeypatch.setattr(promotion, "WHOLE", 5)
    monkeypatch.setattr(promotion, "PAGE", 20)
    monkeypatch.setattr(promotion, "PAGES", 2)
    keys = [f"k{n:03}" for n in range(130)]
    wanted = keys[::13]
    watch(*[f"probe:{key}" for key in wanted])
    if same_time:
        dirty.mark("probe", dict.fromkeys(keys, 1))
    else:
        for n, key in enumerate(keys):
            dirty.mark("probe", {key: 1}, now() - timedelta(seconds=n))
    assert sum(promotion.promote() for _ in range(5)) == len(wanted)
    assert all(look(f"probe:{key}").queued for key in wanted)


def test_promoted_twice_at_once_it_waits_once(transactional_db: None, probes: Path) -> None:
    keys = [f"k{n}" for n in range(50)]
    watch(*[f"probe:{key}" for key in keys])
    dirty.mark("probe", dict.fromkeys(keys, 1))
    threads = [threading.Thread(target=_in_thread, args=(lambda: promotion.promote(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert levels.lane_state("hot").pending == 50


def _in_thread(step: Any) -> None:
    try:
        step()
    finally:
        connection.close()


# --- audit --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def feed(transactional_db: None, make_user: Any) -> str:
    """A watched feed, current and trusted."""
    ann, bob = make_user("ann"), make_user("bob")
    Follow.objects.bulk_create([Follow(follower=bob, author=ann)])
    key = str(bob.pk)
    watch(f"feed:{key}")
    read("feed", key)
    assert look(f"feed:{key}").fresh
    return key


def test_a_scope_s_mark_is_found_by_the_audit(feed: str) -> None:
    author = Follow.objects.get().author
    Post.objects.bulk_create([Post(author=author, text="hello")])
    dirty.mark_scopes("feed", {f"author:{author.pk}": 1})
    # The gate distrusts what it leaves to others.
    looks.distrust([f"feed:{feed}"])
    assert promotion.promote() == 0
    assert promotion.audit() == 1
    drain()
    assert read("feed", feed).data == {"posts": ["hello"]}
    assert promotion.audit() == 0


def test_the_audit_trusts_what_is_current(feed: str, django_assert_num_queries: Any) -> None:
    looks.distrust([f"feed:{feed}"])
    assert promotion.audit() == 0
    assert look(f"feed:{feed}").fresh
    with django_assert_num_queries(0):
        assert read("feed", feed).state == "fresh"
        promotion.audit()


def test_the_audit_walks_through_all_of_them(transactional_db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "AUDIT_PAGE", 10)
    keys = [f"k{n}" for n in range(300)]
    watch(*[f"probe:{key}" for key in keys])
    visibility.read_many("probe", keys)
    looks.distrust([f"probe:{key}" for key in keys])
    for key in keys:
        if key.endswith("7"):
            # The flag moved and was cleared by somebody whose snapshot is gone.
            dirty.mark("probe", {key: 1})
    DirtyFlag.objects.update(first_at=None)
    found: list[int] = []
    wait_for(lambda: found.append(promotion.audit()) or sum(found) == 30, 30)


def test_it_goes_on_for_a_while_where_more_wait_than_there_was_room_for(
    transactional_db: None, probes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "PROMOTE_SECONDS", 10.0)
    hot = {"queue": "visibility-hot", "bound": 40, "batch": 40}
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "LANES": {"hot": hot}}):
        keys = [f"k{n}" for n in range(60)]
        watch(*[f"probe:{key}" for key in keys])
        dirty.mark("probe", dict.fromkeys(keys, 1))
        thread = threading.Thread(target=_in_thread, args=(promotion.promote,))
        thread.start()
        wait_for(lambda: (drain(), not dirty.oldest("probe", 1))[1], 15, "all were promoted and built")
        thread.join(15)


def test_a_type_whose_walk_fails_does_not_stop_the_others(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[str] = []
    before = promotion._walk

    def walk(data_type: Any, lane: Any, room: int) -> int:
        walked.append(data_type.name)
        if data_type.name == "probe":
            raise ValueError("no such number")
        return before(data_type, lane, room)

    read("digest", "a")
    watch("digest:a")
    dirty.mark("digest", {"a": 1})
    monkeypatch.setattr(promotion, "_walk", walk)
    with pytest.raises(ExceptionGroup, match="probe: ValueError: no such number") as caught:
        promotion.audit()
    assert len(caught.value.exceptions) == 1
    assert {"probe", "digest"} <= set(walked) and walked.index("probe") < walked.index("digest")
    assert look("digest:a").queued
