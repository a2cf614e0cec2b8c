"""A key that the app's `scopes` cannot read: its own reads and builds fail, and nobody else's."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from tests.app.models import Follow, Post
from tests.lanes import drain, look, pend, watch
from tests.support import wait_for
from visibility import dirty, pressure, promotion
from visibility.builds.look import look as look_after_lease
from visibility.datatypes import DataType, ScopesFrom, registry
from visibility.events import audience
from visibility.exceptions import BuildFailed
from visibility.explain import explain
from visibility.models import DirtyFlag
from visibility.read import aread_many, read, read_many
from visibility.scopes import scopes_of
from visibility.soft import snapshots

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    pressure.forget()
    yield
    pressure.forget()


@pytest.fixture
def ann() -> User:
    """Somebody who follows another one, who has posted."""
    ann, ben = User.objects.create_user("ann"), User.objects.create_user("ben")
    Follow.objects.create(follower=ann, author=ben)
    Post.objects.create(author=ben, text="hello")
    return ann


def stored(key: str) -> Any:
    one = snapshots.unpack(look(f"feed:{key}").raw, 1)
    return one and json.loads(one.body)


def let_scopes_fail(monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    """From now on, `scopes` of these feeds raises; their builds would do."""
    feed = registry.get("feed")
    before = type(feed).scopes

    def scopes(self: DataType, key: str) -> Any:
        if key in keys:
            raise LookupError(f"{key} is nobody")
        return before(self, key)

    monkeypatch.setattr(type(feed), "scopes", scopes)


class Bulk(DataType):
    """Not registered: what `scopes_many` answers is given."""

    name = "bulk"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[list[str]] = []

    def scopes_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        self.asked.append(list(keys))
        return dict(self.answer(keys))


def test_scopes_are_asked_in_bulk_and_where_that_fails_by_halves() -> None:
    fine = Bulk(lambda keys: {int(key): ["a"] for key in keys})
    assert scopes_of(fine, ["1", "2", "3"]) == {"1": ["a"], "2": ["a"], "3": ["a"]}
    assert fine.asked == [["1", "2", "3"]]
    found = scopes_of(fine, ["1", "ada", "3"])
    assert isinstance(found.pop("ada"), ValueError)
    assert found == {"1": ["a"], "3": ["a"]}


def test_a_database_that_is_away_is_no_key_s_fault() -> None:
    def away(keys: Sequence[str]) -> Any:
        raise OperationalError("server closed the connection")

    broken = Bulk(away)
    with pytest.raises(OperationalError):
        scopes_of(broken, ["1", "2"])
    assert len(broken.asked) == 1


@pytest.mark.parametrize("lazily", [None, 7, (1 / 0 for _ in [0])])
def test_what_is_no_scopes_is_that_key_s_error(lazily: Any) -> None:
    marks = dirty.marks(Bulk(lambda keys: {key: lazily if key == "b" else ["s"] for key in keys}), ["a", "b", "c"])
    assert isinstance(marks["b"].error, BuildFailed)
    assert marks["a"].error is marks["c"].error is None


def test_marks_of_the_others_are_read_and_its_own_are_never_current(ann: User) -> None:
    dirty.mark_scopes("feed", {f"author:{Follow.objects.get().author_id}": 3})
    dirty.mark("feed", {"ada": 2})
    key = str(ann.pk)
    marks = dirty.marks(registry.get("feed"), [key, "ada", "bob"])
    assert marks[key].scope_changes == 3 and marks[key].error is None
    assert marks["ada"].changes == 2 and "ValueError" in str(marks["ada"].error)
    assert not marks["bob"].same(dirty.CLEAN.stamp)


def test_a_query_that_is_empty_has_no_marks() -> None:
    nobody = Bulk(lambda keys: {key: Follow.objects.none().values_list("author") for key in keys})
    assert dirty.marks(nobody, ["1"]) == {"1": dirty.CLEAN}


@pytest.mark.django_db(transaction=True)
def test_a_value_that_the_database_refuses_is_that_key_s_error(ann: User) -> None:
    follows = Follow.objects.values_list("author")
    # SQLite's driver takes no such number, PostgreSQL divides no such way.
    refused = follows.filter(follower=10**30) if connection.vendor == "sqlite" else follows.extra(where=["1 / (id - id) = 1"])
    dirty.mark_scopes("bulk", {f"author:{Follow.objects.get().author_id}": 1})
    marks = dirty.marks(
        Bulk(lambda keys: {key: ScopesFrom("author:", refused if key == "b" else follows) for key in keys}), ["a", "b", "c"]
    )
    assert marks["a"].scope_changes == marks["c"].scope_changes == 1
    # MySQL answers NULL.
    assert marks["b"].error is not None or connection.vendor == "mysql"


@pytest.mark.django_db(transaction=True)
async def test_the_asynchronous_read_fails_the_same_way() -> None:
    with pytest.raises(BuildFailed, match=r"feed:ada could not be built: .*ValueError"):
        await aread_many("feed", ["ada"])


def test_read_fails_as_for_a_failed_build(ann: User) -> None:
    key = str(ann.pk)
    with pytest.raises(BuildFailed, match=r"feed:ada could not be built: .*scopes\(\) failed: ValueError"):
        read("feed", "ada")
    # While its back-off runs, it is not tried again, and says the same.
    with pytest.raises(BuildFailed, match=r"feed:ada .*ValueError"):
        read_many("feed", [key, "ada"])
    assert stored(key) == {"posts": ["hello"]}
    assert look("feed:ada").tries == 1


def test_what_stood_before_is_served_stale(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    key = str(ann.pk)
    version = read("feed", key).version
    let_scopes_fail(monkeypatch, key)
    found = read("feed", key)
    assert (found.state, found.version, found.data) == ("stale", version, {"posts": ["hello"]})


def test_a_drain_builds_the_others_and_sets_it_aside_in_the_end(ann: User, redis: Any) -> None:
    key = str(ann.pk)
    watch(f"feed:{key}", "feed:ada")
    pend(f"feed:{key}", "feed:ada")
    assert drain() == 1
    assert stored(key) == {"posts": ["hello"]}
    assert look("feed:ada").tries and "ValueError" in look("feed:ada").error

    def set_aside() -> bool:
        redis.zadd("{vis:0}:pending:hot", {"feed:ada": 1}, xx=True)
        drain()
        return DirtyFlag.objects.filter(data_type="feed", key="ada", quarantined_at__isnull=False).exists()

    wait_for(set_aside, 10)
    assert "ValueError" in DirtyFlag.objects.get(key="ada").last_error
    assert not look("feed:ada").queued


def test_who_watches_it_gets_nothing_and_who_watches_others_theirs(ann: User) -> None:
    key = str(ann.pk)
    read("feed", key)
    watch(f"feed:{key}", "feed:ada")
    shown = look_after_lease([f"feed:{key}", "feed:ada"])
    assert shown[f"feed:{key}"].state == "fresh"
    assert (shown["feed:ada"].stored, shown["feed:ada"].state) == (None, "stale")


def test_the_audit_goes_on_to_the_other_keys(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ben = str(Follow.objects.get().author_id)
    key = str(ann.pk)
    read_many("feed", [key, ben])
    watch(f"feed:{key}", f"feed:{ben}")
    dirty.mark_scopes("feed", {f"author:{ben}": 1})
    let_scopes_fail(monkeypatch, ben)
    assert promotion.audit() == 2
    assert look(f"feed:{key}").queued and look(f"feed:{ben}").queued
    drain()
    assert not look(f"feed:{key}").queued and look(f"feed:{ben}").tries
    # It backs off like any failed build.
    assert promotion.audit() == 0


def test_the_gate_takes_it_for_one_that_may_depend_on_the_scope(ann: User) -> None:
    key, author = str(ann.pk), Follow.objects.get().author_id
    feed = registry.get("feed")
    assert audience.depending(feed, [key, "ada", str(author)], {f"author:{author}"}) == {key, "ada"}


def test_explain_and_the_inspector_say_it_in_words(ann: User, redis: Any) -> None:
    found = explain("feed:ada")
    assert "ValueError" in found["marks"]["error"] and found["marks"]["scopes"] == []
    assert any("cannot be told (feed.scopes() failed: ValueError" in one for one in found["why"])
    out = io.StringIO()
    call_command("visibility_explain", "feed:ada", stdout=out)
    assert "cannot be told" in out.getvalue()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page = client.get(reverse("admin:visibility_overview_resource"), {"name": "feed:ada"})
    assert page.status_code == 200 and "cannot be told" in page.content.decode()
    assert explain(f"feed:{ann.pk}")["marks"]["error"] == ""
