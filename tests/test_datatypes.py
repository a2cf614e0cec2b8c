"""Declarations: what is accepted, and what each mistake is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.app import visibility as declared
from tests.app.models import Counter, Follow, Post
from visibility.datatypes import (
    ACTIONS,
    Audience,
    DataType,
    Freshness,
    Hidden,
    Registry,
    Resource,
    ScopesFrom,
    Source,
    check_key,
    data_type_of,
    on,
    parse_resource,
    registry as the_registry,
)
from visibility.exceptions import BadDeclaration, BadResource, UnknownDataType, VisibilityError


class Built(DataType):
    name = "built"

    def build(self, key: str) -> Any:
        if key == "bad":
            raise ValueError("no such thing")
        return {"key": key}


# --- resources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["42", "a:b:c", "ünï-ködé", "x" * 200, "-", "日本", "<script>", "{vis:0}", "../..", "%00", "💥"])
def test_legal_keys(key: str) -> None:
    assert check_key("feed", key) == key
    assert parse_resource(f"feed:{key}") == Resource("feed", key)
    assert str(Resource("feed", key)) == f"feed:{key}"


@pytest.mark.parametrize(
    "key", ["", "x" * 201, "a b", "a\tb", "a\nb", "a\x00b", "\x7f", "\x85", "a\u00a0b", "a\u2028b", "\ud800"], ids=ascii
)
def test_illegal_keys(key: str) -> None:
    with pytest.raises(BadResource, match="1 to 200 characters"):
        check_key("feed", key)
    with pytest.raises(BadResource):
        parse_resource(f"feed:{key}")


def test_a_key_may_be_given_as_a_number() -> None:
    assert check_key("feed", 42) == "42"


@pytest.mark.parametrize("name", [None, 42, b"feed:42", ["feed:42"], {}], ids=repr)
def test_a_resource_is_text(name: Any) -> None:
    with pytest.raises(BadResource, match="a resource is text"):
        parse_resource(name)


def test_a_resource_has_a_colon() -> None:
    with pytest.raises(BadResource, match="write 'type:key'"):
        parse_resource("feed")


def test_an_unknown_type_names_those_there_are() -> None:
    with pytest.raises(UnknownDataType, match=r"no data type 'food' .*known: .*badge.*feed"):
        parse_resource("food:42")


def test_a_parsed_resource_stays_as_it_is() -> None:
    resource = Resource("feed", "42")
    assert parse_resource(resource) is resource  # type: ignore[arg-type]


@given(st.text())
def test_any_text_is_a_resource_or_a_known_error(name: str) -> None:
    try:
        resource = parse_resource(name)
    except (BadResource, UnknownDataType):
        return
    assert str(resource) == name
    assert 1 <= len(resource.key) <= 200
    assert not any(c.isspace() for c in resource.key)


# --- freshness and audience -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "objective"), [(0, 0.99), (-1, 0.99), (1, 0), (1, 1), (1, 99)])
def test_an_impossible_promise_is_refused(seconds: float, objective: float) -> None:
    with pytest.raises(BadDeclaration, match="must be"):
        Freshness(seconds=seconds, objective=objective)


def test_an_audience_of_one_key_as_text_is_refused() -> None:
    with pytest.raises(BadDeclaration, match=r"give an iterable of keys, e\.g\. \['42'\]"):
        Audience("42")


def test_an_audience_keeps_a_queryset_unevaluated() -> None:
    # No database fixture: a query here would fail.
    followers = Follow.objects.filter(author=1).values_list("follower")
    audience = Audience(followers, scope="author:1")
    assert audience.keys is followers
    assert repr(audience) == "Audience(scope='author:1', kind='')"


def test_an_audience_takes_what_can_be_iterated_once() -> None:
    assert Audience(key for key in (1, 2)).keys == [1, 2]


# --- sources ----------------------------------------------------------------------------------------------------------


def test_sources_are_found_with_their_options() -> None:
    assert declared.Feed.sources == (
        Source(Post, ACTIONS, None, "posts"),
        Source(Follow, ACTIONS, None, "follows"),
    )
    assert declared.Unread.sources[0].actions == ("created", "deleted")


def test_one_method_may_have_several_declarations() -> None:
    class Both(Built):
        @on(Post, fields=["text"])
        @on("testapp.Counter", actions=["deleted"])
        def either(self, change: Any) -> list[int]:
            return [1]

    assert set(Both.sources) == {
        Source("testapp.Counter", ("deleted",), None, "either"),
        Source(Post, ACTIONS, frozenset({"text"}), "either"),
    }


def test_a_subclass_inherits_sources_and_may_replace_one() -> None:
    class Base(Built):
        @on(Post)
        def posts(self, change: Any) -> list[int]:
            return []

        @on(Follow)
        def follows(self, change: Any) -> list[int]:
            return []

    class Narrow(Base):
        @on(Counter)
        def posts(self, change: Any) -> list[int]:
            return []

    assert Narrow.sources == (Source(Counter, ACTIONS, None, "posts"), Source(Follow, ACTIONS, None, "follows"))


def test_on_wants_models_and_known_actions() -> None:
    with pytest.raises(BadDeclaration, match="at least one model"):
        on()
    with pytest.raises(BadDeclaration, match=r"\['updated'\].*created"):
        on(Post, actions=["saved", "updated"])


# --- data types -------------------------------------------------------------------------------------------------------


def test_build_many_calls_build_and_one_failure_stays_alone() -> None:
    out = Built().build_many(["1", "bad"])
    assert out["1"] == {"key": "1"}
    assert isinstance(out["bad"], ValueError)


def test_nobody_may_watch_unless_the_type_says_so() -> None:
    assert Built().can_watch(object(), "1") is False


def test_what_a_type_defines_is_known() -> None:
    feed, price, built = declared.Feed(), declared.Ticker(), Built()
    assert (feed.has_scopes, feed.has_build, feed.has_apply) == (True, True, False)
    assert (price.has_scopes, price.has_build, price.has_apply) == (False, True, True)
    assert built.scopes_many(["1"]) == {"1": ()}
    scopes = feed.scopes_many(["7"])["7"]
    assert isinstance(scopes, ScopesFrom)
    assert scopes.prefix == "author:"


# --- the registry -----------------------------------------------------------------------------------------------------


def declare(**fields: Any) -> type[DataType]:
    return type("Made", (DataType,), {"name": "made", "build": lambda self, key: key, **fields})


def test_a_registered_type_is_found_by_name_class_and_instance() -> None:
    registry = Registry()
    made = registry.register(declare())
    assert type(registry.get("made")) is made
    assert registry.find("made") is registry.get("made")
    assert registry.find("other") is None
    assert [type(each) for each in registry] == [made]
    for given_as in ("feed", declared.Feed, declared.Feed()):
        assert data_type_of(given_as) is the_registry.get("feed")


async def _async(*_: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": ""}, "give it a lower-case name"),
        ({"name": "Feed"}, "give it a lower-case name"),
        ({"name": "a:b"}, "give it a lower-case name"),
        ({"name": "a" * 51}, "give it a lower-case name"),
        ({"name": "a\n"}, "give it a lower-case name"),
        ({"build": DataType.build}, "neither build"),
        ({"hidden": "defer"}, "Hidden.DEFER"),
        ({"soft_ttl": 0}, "soft_ttl"),
        ({"soft_ttl": 301}, "at most ttl = 300"),
        ({"ttl": "300"}, "ttl = '300' must be a number"),
        ({"ttl": float("inf")}, "ttl = inf must be a number"),
        ({"coalesce": float("nan")}, "coalesce = nan must be a number"),
        ({"coalesce": None}, "coalesce = None must be a number"),
        ({"jitter": "0.1"}, "jitter = '0.1' must be a number"),
        ({"background": -1}, "background = -1"),
        ({"background": "5"}, "background = '5'"),
        ({"active_window": 0}, "active_window = 0"),
        ({"active_window": -1}, "active_window = -1"),
        ({"active_window": 1e300}, "active_window = 1e"),
        ({"active_window": float("nan")}, "active_window = nan"),
        ({"freshness": 3}, "freshness = 3; write Freshness"),
        ({"lane": ["hot"]}, "must be the name of a lane"),
        ({"can_watch": _async}, "can_watch is async"),
        ({"build_many": _async}, "build_many is async"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:30],
)
def test_a_wrong_declaration_is_told_what_to_change(fields: dict[str, Any], told: str) -> None:
    registry = Registry()
    with pytest.raises(BadDeclaration, match=told):
        registry.register(declare(**fields))
    assert list(registry) == []


@pytest.mark.parametrize("thing", [object, 42, lambda: None, Built()], ids=["class", "number", "function", "instance"])
def test_only_subclasses_can_be_registered(thing: Any) -> None:
    with pytest.raises(BadDeclaration, match="subclasses of DataType"):
        Registry().register(thing)


def test_two_types_of_one_name_are_refused_and_both_are_named() -> None:
    registry = Registry()
    registry.register(declare())
    with pytest.raises(BadDeclaration, match="'made' is taken by"):
        registry.register(declare())


def test_a_forgotten_type_is_unknown_and_its_name_free() -> None:
    registry = Registry()
    registry.register(declare())
    registry.unregister("made")
    registry.unregister("made")
    with pytest.raises(UnknownDataType, match="known: none"):
        registry.get("made")
    registry.register(declare())


@pytest.mark.parametrize("name", [None, 42, [], {}], ids=repr)
def test_a_name_that_is_no_text_is_unknown(name: Any) -> None:
    with pytest.raises(UnknownDataType):
        Registry().get(name)


def test_a_listener_hears_of_types_from_before_and_after() -> None:
    registry, heard = Registry(), []
    registry.register(declare())
    registry.subscribe(lambda data_type: heard.append(data_type.name))
    registry.register(declare(name="later"))
    assert heard == ["made", "later"]


def test_every_error_has_one_base() -> None:
    assert issubclass(BadDeclaration, VisibilityError)
    assert issubclass(BadResource, (VisibilityError, ValueError))
    assert issubclass(UnknownDataType, (VisibilityError, LookupError))


def test_hidden_is_one_of_three() -> None:
    assert [each.value for each in Hidden] == ["defer", "summarise", "drop"]
