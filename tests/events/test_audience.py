"""Audiences: keys of a QuerySet narrowed to what is visible, walked, compared; scopes asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db.models import Count, F, Value
from django.db.models.functions import Concat

from tests.app.models import Counter, Follow, Message, Notice, Post, Read, Room
from visibility.datatypes import registry
from visibility.events import audience
from visibility.exceptions import BadDeclaration

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def people(make_user: Callable[..., User], db: None) -> list[User]:
    users = [make_user(f"u{n}") for n in range(6)]
    Follow.objects.bulk_create([Follow(author=users[0], follower=one) for one in users[1:]])
    return users


def followers(users: list[User]) -> Any:
    return Follow.objects.filter(author=users[0])


def forms(users: list[User]) -> list[Any]:
    """One audience in every form that a handler may give it."""
    own = followers(users)
    return [
        own.values_list("follower"),
        own.values_list("follower", flat=True),
        own.values_list("follower_id", flat=True),
        own.values("follower"),
        own.values_list("follower__pk", named=True),
        own.annotate(who=F("follower")).values_list("who", flat=True),
        own.order_by("-follower").values_list("follower").distinct(),
        own.values("follower").annotate(n=Count("pk")).values_list("follower"),
        User.objects.filter(follows__author=users[0]),
        User.objects.filter(follows__author=users[0]).only("username"),
        User.objects.filter(follows__author=users[0]).values_list("pk"),
    ]


def test_every_form_is_narrowed_and_walked(people: list[User]) -> None:
    feed = registry.get("feed")
    everybody = {str(one.pk) for one in people[1:]}
    some = [str(people[1].pk), str(people[0].pk), "999999", str(people[4].pk)]
    for one in forms(people):
        assert audience.can_narrow(one)
        assert audience.narrow(one, some) == {str(people[1].pk), str(people[4].pk)}, one.query
        assert {key for chunk in audience.walk(one, feed, 2) for key in chunk} == everybody, one.query


def test_slices_and_unions_are_walked_only(people: list[User]) -> None:
    feed = registry.get("feed")
    sliced = followers(people).order_by("follower").values_list("follower", flat=True)[:2]
    union = followers(people).values_list("follower").union(User.objects.filter(pk=people[0].pk).values_list("pk"))
    assert not audience.can_narrow(sliced)
    assert not audience.can_narrow(union)
    assert [key for chunk in audience.walk(sliced, feed) for key in chunk] == [str(people[1].pk), str(people[2].pk)]
    assert {key for chunk in audience.walk(union, feed) for key in chunk} == {str(one.pk) for one in people}


def test_keys_that_the_column_cannot_hold_are_no_members(people: list[User]) -> None:
    strange = ["abc", "1.5", "-1", str(10**30), "0" + str(people[1].pk), "９", "true", str(people[2].pk)]
    assert audience.narrow(followers(people).values_list("follower"), strange) == {str(people[2].pk)}


def test_text_columns_and_annotations(db: None) -> None:
    Counter.objects.create(name="a")
    Counter.objects.create(name="b:c")
    counters = Counter.objects.values_list("name")
    assert audience.narrow(counters, ["a", "A", "b:c", "x"]) == {"a", "b:c"}
    tagged = Counter.objects.annotate(tag=Concat(Value("x-"), F("name"))).values_list("tag")
    assert audience.narrow(tagged, ["x-a", "a"]) == {"x-a"}


def test_what_is_no_key_is_left_out_of_a_walk(db: None) -> None:
    Counter.objects.create(name="not a key")
    Counter.objects.create(name="")
    Counter.objects.create(name="ok")
    assert list(audience.walk(Counter.objects.values_list("name"), registry.get("counter"))) == [["ok"]]


def test_more_keys_than_a_statement_takes(people: list[User], django_assert_num_queries: Any) -> None:
    keys = [str(n) for n in range(10**6, 10**6 + 1200)] + [str(people[1].pk)]
    with django_assert_num_queries(3):
        assert audience.narrow(followers(people).values_list("follower"), keys) == {str(people[1].pk)}


def test_two_columns_are_refused(db: None) -> None:
    with pytest.raises(BadDeclaration, match="one column"):
        audience.column_of(Follow.objects.values_list("author", "follower"))
    with pytest.raises(BadDeclaration, match="one column"):
        list(audience.walk(Follow.objects.values("author", "follower"), registry.get("feed")))


def test_equal_querysets_have_equal_signatures(people: list[User]) -> None:
    same = audience.signature
    ann, bob = people[0], people[1]
    one = Follow.objects.filter(author=ann).values_list("follower")
    assert same(one) == same(Follow.objects.filter(author_id=ann.pk).values_list("follower"))
    assert same(one) != same(Follow.objects.filter(author=bob).values_list("follower"))
    assert same(one) != same(Follow.objects.filter(follower=ann).values_list("follower"))
    assert same(one) != same(Follow.objects.filter(author=ann).values_list("author"))
    assert same(one) != same(Follow.objects.exclude(author=ann).values_list("follower"))
    assert same(one) != same(Follow.objects.filter(author=ann).values_list("follower").using("default"))
    joined = Follow.objects.filter(author__username="u0").values_list("follower")
    assert same(joined) == same(Follow.objects.filter(author__username="u0").values_list("follower"))
    assert same(joined) != same(Follow.objects.filter(follower__username="u0").values_list("follower"))
    several = Follow.objects.filter(author__in=[1, 2]).values_list("follower")
    assert same(several) == same(Follow.objects.filter(author__in=[1, 2]).values_list("follower"))
    assert same(several) != same(Follow.objects.filter(author__in=[1, 3]).values_list("follower"))


def test_querysets_that_cannot_be_told_apart_cheaply_are_apart(people: list[User]) -> None:
    def odd() -> list[Any]:
        own = Follow.objects.filter(author=people[0]).values_list("follower")
        return [own[:3], own.distinct(), own.annotate(n=Count("pk")), own.union(own), own.filter(follower__in=User.objects.all())]

    for one, other in zip(odd(), odd(), strict=True):
        assert audience.signature(one) != audience.signature(other)


def test_values_of_a_condition_tell_querysets_apart(db: None) -> None:
    assert audience.signature(User.objects.filter(is_staff=True)) != audience.signature(User.objects.filter(is_staff=False))


def test_what_a_delete_may_take_along() -> None:
    room = audience.reach_of(Room)
    assert {Room._meta.db_table, Message._meta.db_table, Read._meta.db_table, Room.members.through._meta.db_table} <= room
    assert Follow._meta.db_table not in room
    user = audience.reach_of(User)
    assert {Follow._meta.db_table, Post._meta.db_table, Notice._meta.db_table} <= user
    assert audience.touches(Room.members.through.objects.filter(room=1).values_list("user"), room)
    assert not audience.touches(Follow.objects.filter(author=1).values_list("follower"), room)
    assert audience.touches(User.objects.filter(rooms=1).values_list("pk"), room)
    assert audience.touches(User.objects.filter(pk__in=Message.objects.values("author")), room)
    assert Group._meta.db_table not in user


def test_what_depends_on_a_scope(people: list[User]) -> None:
    feed = registry.get("feed")
    keys = [str(one.pk) for one in people]
    assert audience.depending(feed, keys, {f"author:{people[0].pk}"}) == set(keys[1:])
    assert audience.depending(feed, keys, {"author:12345"}) == set()
