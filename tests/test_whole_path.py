"""The way of a change on real parts: a save in this process, a worker and a server in processes of their own, a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from tests.app.models import Counter, Follow, Message, Post, Room
from tests.conftest import Live
from tests.support import await_for
from visibility.models import DirtyFlag, Event, ScopeMark

OpenTab = Callable[..., Any]


@pytest.fixture
def ann(live: Live, make_user: Callable[..., User]) -> User:
    return make_user("ann")


@pytest.fixture
def bob(live: Live, make_user: Callable[..., User]) -> User:
    return make_user("bob")


@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
@pytest.mark.parametrize("worker_class", ["rq.worker.SimpleWorker", "rq.worker.Worker"])
async def test_a_save_reaches_whoever_watches(live: Live, site_tabs: OpenTab, ann: User, server: str, worker_class: str) -> None:
    counter = await Counter.objects.acreate(name="c", value=1)
    site = live.site(server)
    live.worker(worker_class=worker_class)
    tab = await site_tabs(site, ann)
    watched = await tab.watch("counter:c")
    assert watched["resources"]["counter:c"]["watchers"] == 1
    first = await tab.data("counter:c", {"value": 1})
    for value in (2, 3):
        counter.value = value
        await counter.asave()
        last = await tab.data("counter:c", {"value": value}, 10)
        assert last["version"] > first["version"]
    await await_for(_all_processed, 10, "every event is processed")
    assert not await DirtyFlag.objects.filter(data_type="counter", key="c").exclude(first_at=None).aexists()


async def _all_processed() -> bool:
    return not await Event.objects.filter(processed_at=None).aexists()


async def test_a_post_to_followers_nobody_watches_costs_one_row(live: Live, site_tabs: OpenTab, ann: User, bob: User) -> None:
    await User.objects.abulk_create([User(username=f"fan{n}") for n in range(50)])
    fans = [fan async for fan in User.objects.filter(username__startswith="fan")]
    await Follow.objects.abulk_create([Follow(follower=fan, author=ann) for fan in [*fans, bob]])
    site = live.site()
    live.worker()
    tab = await site_tabs(site, bob)
    await tab.watch(f"feed:{bob.pk}")
    await tab.data(f"feed:{bob.pk}", {"posts": []})
    await Post.objects.acreate(author=ann, text="hello")
    await tab.data(f"feed:{bob.pk}", {"posts": ["hello"]}, 10)
    # The follow rows were made in bulk, so they marked nobody; the post marked its author's scope, once.
    assert await ScopeMark.objects.filter(scope=f"author:{ann.pk}").acount() == 1
    assert await DirtyFlag.objects.filter(data_type="feed").exclude(first_at=None).acount() == 0
    # Whoever comes later sees the truth.
    late = await site_tabs(site, fans[0])
    await late.watch(f"feed:{fans[0].pk}")
    await late.data(f"feed:{fans[0].pk}", {"posts": ["hello"]})


async def test_nobody_sees_a_room_without_being_in_it(live: Live, site_tabs: OpenTab, ann: User, bob: User) -> None:
    room = await Room.objects.acreate(name="den")
    await room.members.aadd(ann)
    await Message.objects.acreate(room=room, author=ann, text="psst")
    site = live.site()
    tab = await site_tabs(site, bob)
    error = await tab.ask("watch", "error", resources=[f"room:{room.pk}"])
    assert error["code"] == "forbidden"
    live.worker()
    own = await site_tabs(site, ann)
    await own.watch(f"room:{room.pk}")
    await own.data(f"room:{room.pk}", {"messages": ["psst"]})
    assert not tab.last
