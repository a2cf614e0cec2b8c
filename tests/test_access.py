"""Who may watch what, and that what is taken away is taken away at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.contrib.auth import logout
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.contrib.sessions.models import Session
from django.db import DatabaseError, OperationalError, connections, transaction
from django.test import RequestFactory
from django.utils import timezone

import visibility
from tests.app.models import Counter, Room
from tests.support import await_for
from tests.support.local import Sockets
from tests.support.sizes import size
from tests.support.sockets import Tab, session_for
from visibility import access, push
from visibility.access import Asking, judge, may_watch, recheck
from visibility.datatypes import registry
from visibility.sockets import frames
from visibility.sockets.hub import hub_here
from visibility.soft import leases, sessions
from visibility.users import session_store, user_key

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "HEARTBEAT": 1, "TTL": 5, "LINGER": 0.3, "RECHECK": 60}


@pytest.fixture
async def ann(make_user: Callable[..., User]) -> User:
    return await sync_to_async(make_user)("ann")


@pytest.fixture
async def bob(make_user: Callable[..., User]) -> User:
    return await sync_to_async(make_user)("bob")


async def put(name: str, value: int) -> None:
    await Counter.objects.aupdate_or_create(name=name, defaults={"value": value})


async def watching(tabs: Sockets, user: User, *names: str, **options: Any) -> Tab:
    tab = await tabs(user, **options)
    await tab.watch(*names)
    for name in names:
        await tab.data(name, lambda data: True)
    return tab


async def in_room(tabs: Sockets, user: User) -> tuple[Tab, Room, str]:
    room = await Room.objects.acreate(name="r")
    await sync_to_async(room.members.add)(user)
    tab = await watching(tabs, user, f"room:{room.pk}")
    return tab, room, f"room:{room.pk}"


def later(tab: Tab, resource: str) -> list[dict[str, Any]]:
    """Frames of a resource after it was revoked."""
    at = next(n for n, f in enumerate(tab.frames) if f["op"] == "revoked" and f["resource"] == resource)
    return [
        f
        for f in tab.frames[at + 1 :]
        if f.get("resource") == resource or resource in f.get("versions", {}) or resource in f.get("resources", {})
    ]


# Revoking


async def test_a_revoked_watch_gets_no_later_frame(tabs: Sockets, ann: User, bob: User, builds: Mapping[str, int]) -> None:
    tab = await watching(tabs, ann, "counter:a", "counter:b")
    other = await watching(tabs, bob, "counter:a")
    await visibility.arevoke(ann, "counter:a", "left the team")
    assert (await tab.expect("revoked"))["reason"] == "left the team"
    await put("a", 1)
    await put("b", 2)
    await other.data("counter:a", {"value": 1})
    await tab.data("counter:b", {"value": 2})
    assert list((await tab.ping())["versions"]) == ["counter:b"]
    assert later(tab, "counter:a") == []
    await await_for(lambda: _users("counter:a", {str(bob.pk)}))
    await await_for(lambda: _interests(tab, ["counter:b"]))


async def test_revoking_everything_of_a_user_or_one_resource_of_everybody(
    tabs: Sockets, ann: User, bob: User, builds: Mapping[str, int]
) -> None:  # fmt: skip
    first, second = await watching(tabs, ann, "counter:a", "counter:b"), await watching(tabs, ann, "counter:a")
    other = await watching(tabs, bob, "counter:a", "counter:b")
    await visibility.arevoke(ann)
    for tab, names in ((first, {"counter:a", "counter:b"}), (second, {"counter:a"})):
        got = {(await tab.expect("revoked"))["resource"] for _ in names}
        assert got == names
    await visibility.arevoke(None, "counter:a")
    assert (await other.expect("revoked"))["resource"] == "counter:a"
    await await_for(lambda: _interests(other, ["counter:b"]))
    with pytest.raises(ValueError, match="needs a resource"):
        await visibility.arevoke(None)
    with pytest.raises(visibility.BadResource):
        await visibility.arevoke(ann, "counter")


async def test_a_client_may_ask_again_and_can_watch_decides(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab, room, name = await in_room(tabs, ann)
    await visibility.arevoke(ann, name)
    await tab.expect("revoked")
    await tab.watch(name)
    await sync_to_async(room.members.remove)(ann)
    await visibility.arevoke(ann, name)
    await tab.expect("revoked")
    await tab.send({"op": "watch", "id": 9, "resources": [name]})
    assert (await tab.expect("error", id=9))["code"] == "forbidden"


async def test_a_revocation_whose_hint_is_lost_holds_all_the_same(
    tabs: Sockets, ann: User, bob: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    tab, other = await watching(tabs, ann, "counter:a"), await watching(tabs, bob, "counter:a")
    with monkeypatch.context() as patch:
        patch.setattr("visibility.push.publish_access", lambda number: None)
        await visibility.arevoke(ann, "counter:a")
    await put("a", 1)
    await other.data("counter:a", {"value": 1})
    await tab.expect("revoked")
    assert later(tab, "counter:a") == []
    assert tab.last["counter:a"]["data"] == {"value": None}


async def test_a_flush_puts_every_right_in_question(
    tabs: Sockets, ann: User, bob: User, builds: Mapping[str, int], redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's entry and its hint are both lost, and with them nothing is."""
    tab, room, name = await in_room(tabs, ann)
    await sync_to_async(room.members.add)(bob)
    other = await watching(tabs, bob, name)
    with monkeypatch.context() as patch:
        patch.setattr("visibility.push.publish_access", lambda number: None)
        await sync_to_async(room.members.remove)(ann)
        await visibility.arevoke(ann, name)
        redis.flushall()
    await room.messages.acreate(author=bob, text="secret")
    await other.data(name, {"messages": ["secret"]}, 10)
    assert (await tab.expect("revoked"))["reason"] == "forbidden"
    assert later(tab, name) == []
    assert tab.last[name]["data"] == {"messages": []}


async def test_a_trimmed_access_log_puts_every_right_in_question(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tab, room, name = await in_room(tabs, ann)
    with monkeypatch.context() as patch:
        patch.setattr("visibility.push.publish_access", lambda number: None)
        await sync_to_async(room.members.remove)(ann)
        await visibility.arevoke(ann, name)
        patch.setattr(sessions, "ACCESS_KEEP_MS", 0)
        await asyncio.sleep(0.01)
        # It trims the one before, and itself stays.
        await sessions.atell({"kind": "recheck", "user": "nobody in particular"})
    assert (await tab.expect("revoked"))["reason"] == "forbidden"


async def test_a_revocation_while_the_watch_is_being_judged(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The answer was yes, and was given before it was taken away."""
    import threading

    asked, go = threading.Event(), threading.Event()

    def may(self: Any, user: Any, key: str) -> bool:
        asked.set()
        return go.wait(10)

    tab = await tabs(ann)
    monkeypatch.setattr(type(registry.get("counter")), "can_watch", may)
    await tab.send({"op": "watch", "id": 1, "resources": ["counter:a"]})
    await await_for(asked.is_set)
    number = await sessions.atell({"kind": "revoke", "user": str(ann.pk), "resource": "counter:a", "reason": "gone"})
    hub_here().take({"kind": "access", "number": number})
    await await_for(lambda: hub_here().proving.number == number)
    go.set()
    assert (await tab.expect("error", id=1))["code"] == "forbidden"
    await put("a", 1)
    await tab.ping()
    assert {frame["op"] for frame in tab.frames} == {"hello", "error", "pong"}
    assert (await leases.acounts("counter:a")).watch == 0


async def test_revoking_inside_a_transaction_asks_again_after_it(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab, room, name = await in_room(tabs, ann)
    loop = asyncio.get_running_loop()

    def leave() -> None:
        with transaction.atomic():
            room.members.remove(ann)
            visibility.revoke(ann, name)
            asyncio.run_coroutine_threadsafe(back(), loop).result(10)
        # This thread is nobody else's.
        connections.close_all()

    async def back() -> None:
        # The client is quicker than the commit, and what it may is still what stood before.
        await tab.expect("revoked")

    await sync_to_async(leave, thread_sensitive=False)()
    await tab.send({"op": "watch", "id": 5, "resources": [name]})
    assert (await tab.expect("error", id=5))["code"] == "forbidden"


# What changes about a user


async def test_S8_logging_out_ends_the_sockets_of_that_session_only(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    key = await sync_to_async(session_for)(ann)
    first, second = (
        await watching(tabs, ann, "counter:a", session_key=key),
        await watching(tabs, ann, "counter:a", session_key=key),
    )
    elsewhere = await watching(tabs, ann, "counter:a")

    def log_out() -> None:
        request = RequestFactory().get("/")
        request.session = session_store(key)
        request.user = ann
        logout(request)

    await sync_to_async(log_out)()
    assert [await first.closed(), await second.closed()] == [frames.SESSION_ENDED] * 2
    await put("a", 1)
    await elsewhere.data("counter:a", {"value": 1})
    assert first.last["counter:a"]["data"] == {"value": None}
    assert elsewhere.close_code is None


async def test_S8_a_deactivated_user_is_out_at_once(tabs: Sockets, ann: User, bob: User, builds: Mapping[str, int]) -> None:
    tab, other = await watching(tabs, ann, "counter:a"), await watching(tabs, bob, "counter:a")
    ann.is_active = False
    await ann.asave()
    assert await tab.closed() == frames.SESSION_ENDED
    assert other.close_code is None
    await await_for(lambda: _users("counter:a", {str(bob.pk)}))


async def _interests(tab: Tab, names: list[str]) -> bool:
    return await visibility.ainterests(tab.session) == names


async def _users(resource: str, users: set[str]) -> bool:
    return set((await visibility.awatchers(resource)).users) == users


async def test_S8_a_deleted_user_is_out_at_once(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await watching(tabs, ann, "counter:a")
    await ann.adelete()
    assert await tab.closed() == frames.SESSION_ENDED


async def test_S8_a_changed_password_ends_sessions_made_with_the_old(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    tab = await watching(tabs, ann, "counter:a")
    ann.set_password("another")
    await ann.asave(update_fields=["password"])
    assert await tab.closed() == frames.SESSION_ENDED


async def test_logging_in_again_asks_nothing(ann: User, redis: redis_py.Redis) -> None:
    ann.last_login = timezone.now()
    await ann.asave(update_fields=["last_login"])
    assert not redis.exists("{vis:0}:access")
    await ann.asave()
    assert redis.exists("{vis:0}:access")


@pytest.fixture
def by_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(registry.get("counter")), "can_watch", lambda self, user, key: user.has_perm("testapp.view_counter"))


@pytest.mark.usefixtures("by_permission")
@pytest.mark.parametrize("how", ["remove", "clear", "set", "from the other side"])
async def test_S8_a_removed_permission_ends_its_watches(tabs: Sockets, ann: User, builds: Mapping[str, int], how: str) -> None:
    permission = await Permission.objects.aget(codename="view_counter")
    await sync_to_async(ann.user_permissions.add)(permission)
    tab = await watching(tabs, ann, "counter:a")
    act = {
        "remove": lambda: ann.user_permissions.remove(permission),
        "clear": lambda: ann.user_permissions.clear(),
        "set": lambda: ann.user_permissions.set([]),
        "from the other side": lambda: permission.user_set.remove(ann),
    }[how]
    await sync_to_async(act)()
    assert (await tab.expect("revoked"))["resource"] == "counter:a"
    assert tab.close_code is None


@pytest.mark.usefixtures("by_permission")
@pytest.mark.parametrize("how", ["leaves the group", "cleared from the group", "the group loses it", "the group goes"])
async def test_S8_a_group_that_no_longer_gives_the_right(tabs: Sockets, ann: User, builds: Mapping[str, int], how: str) -> None:
    permission = await Permission.objects.aget(codename="view_counter")
    group = await Group.objects.acreate(name="readers")
    await sync_to_async(group.permissions.add)(permission)
    await sync_to_async(ann.groups.add)(group)
    tab = await watching(tabs, ann, "counter:a")
    act: Callable[[], Any] = {
        "leaves the group": lambda: ann.groups.remove(group),
        "cleared from the group": lambda: group.user_set.clear(),
        "the group loses it": lambda: group.permissions.remove(permission),
        "the group goes": group.delete,
    }[how]
    await sync_to_async(act)()
    assert (await tab.expect("revoked"))["reason"] == "forbidden"


async def test_S8_the_hook_for_memberships_of_your_own(tabs: Sockets, ann: User, bob: User, builds: Mapping[str, int]) -> None:
    tab, room, name = await in_room(tabs, ann)
    await sync_to_async(room.members.add)(bob)
    other = await watching(tabs, bob, name)

    def leave() -> None:
        with transaction.atomic():
            room.members.remove(ann)
            recheck(ann)
            room.messages.create(author=bob, text="now among us")

    await sync_to_async(leave)()
    await tab.expect("revoked")
    await other.data(name, {"messages": ["now among us"]})
    assert later(tab, name) == []
    assert tab.last[name]["data"] == {"messages": []}


async def test_a_rolled_back_change_asks_nothing(
    tabs: Sockets, ann: User, builds: Mapping[str, int], redis: redis_py.Redis
) -> None:
    tab = await watching(tabs, ann, "counter:a")

    def undone() -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            ann.is_active = False
            ann.save()
            1 / 0  # noqa: B018

    await sync_to_async(undone)()
    assert not redis.exists("{vis:0}:access")
    await tab.ping()
    assert tab.close_code is None


async def test_the_timer_finds_what_nobody_told(tabs: Sockets, ann: User, builds: Mapping[str, int], settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "RECHECK": 1}
    tab, room, _ = await in_room(tabs, ann)
    await sync_to_async(room.members.remove)(ann)
    assert (await tab.expect("revoked", 4))["reason"] == "forbidden"


@pytest.mark.parametrize("how", ["expires", "is deleted"])
async def test_a_session_that_ends_takes_its_sockets_along(tabs: Sockets, ann: User, settings: Any, how: str) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "RECHECK": 1}
    key = await sync_to_async(session_for)(ann)
    tab, other = await tabs(ann, session_key=key), await tabs(ann)
    if how == "expires":
        await Session.objects.filter(pk=key).aupdate(expire_date=timezone.now())
    else:
        await Session.objects.filter(pk=key).adelete()
    assert await tab.closed(6) == frames.SESSION_ENDED
    assert other.close_code is None


async def test_a_session_of_a_cookie_engine(tabs: Sockets, ann: User, settings: Any, builds: Mapping[str, int]) -> None:
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"

    def key() -> str:
        stored = session_store(None)
        stored.update(dict(session_of(ann)))
        stored.save()
        return str(stored.session_key)

    from tests.support.sockets import session_for as database_session

    def session_of(user: User) -> Any:
        from django.contrib.sessions.backends.db import SessionStore

        return SessionStore(database_session(user)).items()

    tab = await watching(tabs, ann, "counter:a", session_key=await sync_to_async(key)())
    ann.is_active = False
    await ann.asave()
    assert await tab.closed() == frames.SESSION_ENDED


async def test_a_user_of_other_middleware_is_asked_for_by_key(tabs: Sockets, ann: User, builds: Mapping[str, int]) -> None:
    """A token, say: there is a user in the scope and no session behind it."""
    tab = await tabs(user=None, app=_token_app(ann))
    await tab.watch("counter:a")
    await User.objects.filter(pk=ann.pk).aupdate(is_active=False)
    await access.arecheck(ann)
    assert await tab.closed() == frames.SESSION_ENDED


async def test_a_user_that_no_database_knows(tabs: Sockets, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Robot:
        pk = "robot-7"
        is_anonymous = False

    monkeypatch.setattr(type(registry.get("counter")), "can_watch", lambda self, user, key: user.pk == "robot-7" and key == "a")
    tab = await tabs(app=_token_app(Robot()))
    await tab.watch("counter:a")
    await tab.send({"op": "watch", "id": 2, "resources": ["counter:b"]})
    assert (await tab.expect("error"))["code"] == "forbidden"
    assert (await visibility.apresence(["robot-7"]))["robot-7"].online


def _token_app(user: Any) -> Any:
    from visibility.routing import application

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, "user": user}, receive, send)

    return app


async def test_a_database_that_is_away_lets_nobody_through_and_nobody_down(
    tabs: Sockets, ann: User, builds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = await watching(tabs, ann, "counter:a")
    away = True

    def may(self: Any, user: Any, key: str) -> bool:
        if away:
            raise OperationalError("the server closed the connection unexpectedly")
        return True

    monkeypatch.setattr(type(registry.get("counter")), "can_watch", may)
    await access.arecheck(ann)
    await await_for(lambda: not hub_here().sessions[tab.session].proven)
    await tab.send({"op": "watch", "id": 8, "resources": ["counter:b"]})
    await put("a", 1)
    await asyncio.sleep(0.5)
    assert tab.last["counter:a"]["data"] == {"value": None}, "no data while rights are in question"
    away = False
    await tab.data("counter:a", {"value": 1}, 10)
    await tab.expect("watched", 10, id=8)


# The rules


def test_judging_many_at_once_takes_few_queries(make_user: Callable[..., User], django_assert_max_num_queries: Any) -> None:
    users = [make_user() for _ in range(20)]
    keys = [session_for(user) for user in users]
    askings = [
        Asking(str(u.pk), k, None, [f"feed:{u.pk}", f"feed:{users[0].pk}", "counter:a"]) for u, k in zip(users, keys, strict=True)
    ]
    with django_assert_max_num_queries(2):
        answers = judge(askings)
    assert [len(answer.allowed) for answer in answers] == [2] * 20
    assert not any(answer.over for answer in answers)


def test_a_rule_over_many_keys_is_asked_once_for_all_that_a_user_watches(
    make_user: Callable[..., User], monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    ann, bob = make_user("ann"), make_user("bob")
    rooms = [Room.objects.create(name=f"r{n}") for n in range(40)]
    for room in rooms[:30]:
        room.members.add(ann)
    asked: list[tuple[str, int]] = []

    def many(self: Any, user: User, keys: Sequence[str]) -> Any:
        asked.append((user.username, len(keys)))
        return Room.objects.filter(pk__in=keys, members=user).values_list("pk", flat=True)

    monkeypatch.setattr(type(registry.get("room")), "can_watch_many", many)
    names = [f"room:{room.pk}" for room in rooms]
    tabs = [Asking(str(ann.pk), None, None, names[:25]), Asking(str(ann.pk), None, None, names[20:])]
    with django_assert_max_num_queries(3):
        one, two, other = judge([*tabs, Asking(str(bob.pk), None, None, [names[0], "counter:a"])])
    assert (one.allowed, two.allowed) == (set(names[:25]), set(names[20:30]))
    assert other.allowed == {"counter:a"}
    assert asked == [("ann", 40), ("bob", 1)]


def test_a_key_that_the_rule_cannot_bear_refuses_no_other(
    make_user: Callable[..., User], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ann = make_user()
    room = Room.objects.create(name="r")
    room.members.add(ann)
    own = type(registry.get("room"))
    answers = lambda self, user, keys: Room.objects.filter(pk__in=keys, members=user).values_list("pk", flat=True)  # noqa: E731
    monkeypatch.setattr(own, "can_watch_many", answers)
    assert access.may_watch_many(ann, ["room:no-number", f"room:{room.pk}", "nope:1"]) == {f"room:{room.pk}"}
    assert "room:no-number" in caplog.text
    for wrong in ({"1": False}, "1", None):
        monkeypatch.setattr(own, "can_watch_many", lambda self, user, keys, wrong=wrong: wrong)
        assert not may_watch(ann, "room:1")


def test_what_is_to_be_awaited_is_no_yes(make_user: Callable[..., User], monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        def __await__(self) -> Any:
            yield

    monkeypatch.setattr(type(registry.get("counter")), "can_watch", lambda self, user, key: Later())
    assert not may_watch(make_user(), "counter:a")


def test_a_session_of_another_user_is_over(make_user: Callable[..., User]) -> None:
    ann, bob = make_user(), make_user()
    key = session_for(bob)
    assert judge([Asking(str(ann.pk), key, None, ["counter:a"])])[0].over
    assert judge([Asking(str(ann.pk), None, None, ["counter:a"])])[0] == access.Answer(False, {"counter:a"})
    assert judge([Asking("-", None, None, ["counter:a", "price:x", "nope:1"])])[0].allowed == {"price:x"}
    assert judge([Asking(str(bob.pk), key, None, [])])[0] == access.Answer(False, set())


def test_S9_no_rule_no_right(make_user: Callable[..., User]) -> None:
    from visibility.datatypes import DataType

    assert DataType().can_watch(make_user(is_superuser=True), "1") is False
    assert not may_watch(AnonymousUser(), "counter:a")
    assert not may_watch(make_user(), "nope:1")


def test_keys_of_users(make_user: Callable[..., User]) -> None:
    ann = make_user()
    assert [user_key(u) for u in (None, AnonymousUser(), ann, ann.pk, "x/y")] == ["-", "-", str(ann.pk), str(ann.pk), "x/y"]


def test_the_session_key_is_in_no_log(make_user: Callable[..., User], redis: redis_py.Redis) -> None:
    ann = make_user()
    key = session_for(ann)
    request = RequestFactory().get("/")
    request.session = session_store(key)
    request.user = ann
    logout(request)
    (entry,) = redis.zrange("{vis:0}:access-log", 0, -1)
    assert access.digest(key) in entry
    assert key not in entry


def test_logging_out_works_while_redis_is_away(make_user: Callable[..., User], settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    ann = make_user()
    request = RequestFactory().get("/")
    request.session = session_store(session_for(ann))
    request.user = ann
    logout(request)
    assert not Session.objects.exists()
    ann.save()
    with pytest.raises(visibility.RedisAway):
        visibility.revoke(ann)
    assert not issubclass(visibility.RedisAway, DatabaseError)


# Many


async def alive(tab: Tab) -> None:
    """Any frame counts as a heartbeat; this one is not answered."""
    while True:
        await asyncio.sleep(10)
        await tab.send({"op": "state", "visible": True})


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_ten_thousand_revocations_under_load_and_no_later_frame(
    tabs: Sockets, make_user: Callable[..., User], builds: Mapping[str, int], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of their hints are lost. Each resource changes right after it was revoked, by a value that only that change has."""
    number = size("VISIBILITY_REVOCATIONS", 1_000, 10_000)
    settings.VISIBILITY = {**settings.VISIBILITY, "TTL": 60, "LIMITS": {"frames_per_second": 10**6, "frames_burst": 10**6}}
    users = [await sync_to_async(make_user)(f"u{n}") for n in range(10)]
    names = [f"counter:{n}" for n in range(20)]
    opened = {user: [await watching(tabs, user, *names) for _ in range(2)] for user in users}
    beats = [asyncio.create_task(alive(tab)) for group in opened.values() for tab in group]
    rng = random.Random(3)
    told = push.publish_access
    monkeypatch.setattr("visibility.push.publish_access", lambda number: rng.random() < 0.5 and told(number))
    revoked: dict[tuple[Tab, str], int] = {}
    for n in range(1, number // 2 + 1):
        user, name = rng.choice(users), rng.choice(names)
        for tab in opened[user]:
            revoked[tab, name] = n
        await visibility.arevoke(user, name)
        await put(name.partition(":")[2], n)
        if n % 5 == 0:
            # Some come back, and from then on may see everything again.
            for tab in opened[rng.choice(users)]:
                mine = [own for own in names if (tab, own) in revoked]
                for own in mine:
                    del revoked[tab, own]
                await tab.send({"op": "watch", "id": n, "resources": mine})
    last = number
    for name in names:
        await put(name.partition(":")[2], last)
    witness = await watching(tabs, users[0], *names)
    for name in names:
        await witness.data(name, {"value": last}, 30)

    def leaked() -> list[Any]:
        return [
            (name, n, frame)
            for (tab, name), n in revoked.items()
            for frame in tab.frames
            if frame["op"] == "update" and frame["resource"] == name and (frame["data"]["value"] or 0) >= n
        ]

    assert leaked() == []
    for beat in beats:
        beat.cancel()
    await asyncio.gather(*beats, return_exceptions=True)
    print(f"{number} revocations, {sum(len(tab.frames) for group in opened.values() for tab in group)} frames, 0 too late")  # noqa: T201
    for tab in (tab for group in opened.values() for tab in group):
        pong = await tab.ping()
        assert not [name for name in pong["versions"] if (tab, name) in revoked]
    assert leaked() == []
