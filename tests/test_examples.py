"""docs/examples.md, run as it stands there: each example's data type on a real Redis and database, and its page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import Http404
from django.template import engines
from django.test import Client, RequestFactory, override_settings

import visibility
from tests.app.models import Counter, Follow, Message, Notice, Order, Post, Price, Room
from tests.test_browser_docs import CODE as SCRIPT
from tests.test_docs import BLOCK, EVENTS, blog as blog, text_of
from visibility import testing
from visibility.datatypes import registry

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = text_of("examples.md")
HEADINGS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


def part(heading: str, lang: str) -> str:
    """The one code block of this language under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = (found["code"] for found in BLOCK.finditer(section) if found["lang"] == lang)
    return str(code)


@pytest.fixture
def example(blog: None) -> Callable[[str], ModuleType]:
    """Runs the Python of an example; answers the module that it makes."""

    def run(heading: str) -> ModuleType:
        module = ModuleType("example")
        exec(compile(part(heading, "python"), heading, "exec"), vars(module))  # noqa: S102
        return module

    return run


@pytest.fixture
def templates() -> Iterator[None]:
    """The examples' templates by the names that their views use."""
    files = {"order.html": part("The status of an order", "html"), "feed-part.html": part("A page with htmx", "html")}
    own = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": [("django.template.loaders.locmem.Loader", files)],
            "context_processors": ["django.contrib.auth.context_processors.auth"],
        },
    }
    with override_settings(TEMPLATES=[own]):
        yield


def shown(heading: str, **context: Any) -> str:
    """The example's page, rendered."""
    return str(engines["django"].from_string(part(heading, "html")).render(context))


def said(resource: str) -> set[str]:
    """The fields of a resource's data."""
    return set(visibility.read(*resource.split(":", 1)).data)


def may(user: Any, resource: str) -> bool:
    kind, _, key = resource.partition(":")
    return registry.get(kind).can_watch(user, key)


def test_every_example_has_a_type_a_page_and_about_thirty_lines() -> None:
    assert len(HEADINGS) == 6
    for heading in HEADINGS:
        code = [line for line in part(heading, "python").splitlines() if line.strip()]
        assert len(code) <= 35, f"{heading}: {len(code)} lines"
        assert "data-visibility=" in (page := part(heading, "html")) or "visibility_attrs" in page


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_pages_listen_to_events_that_the_module_sends(heading: str) -> None:
    named = set(re.findall(r"visibility:(\w+)", part(heading, "html")))
    assert named
    assert named <= EVENTS


def test_a_badge_counts_for_its_user_and_sums_up_for_who_was_away(example: Any, make_user: Any) -> None:
    example("A notification badge")
    ann, bob = make_user("ann"), make_user("bob")
    badge = f"badge:{ann.pk}"
    assert f'data-visibility="{badge}"' in shown("A notification badge", user=ann)
    with testing.Tab(ann, badge):
        Notice.objects.create(user=ann, kind="like")
        testing.assert_hot(badge)
        testing.drain()
        assert visibility.read("badge", ann.pk).data == {"new": 1}
    testing.advance(60)
    for _ in range(15):
        Notice.objects.create(user=ann, kind="comment")
    testing.assert_cold(badge)
    back = visibility.read("badge", ann.pk)
    assert (back.data, back.missed, back.summary) == ({"new": 16}, 15, {"comment": 15})
    assert may(ann, badge)
    assert not may(bob, badge)


def test_a_room_is_built_for_members_who_have_it_open(example: Any, make_user: Any) -> None:
    example("A chat room")
    ann, bob = make_user("ann"), make_user("bob")
    room = Room.objects.create(name="kitchen")
    room.members.add(ann)
    name = f"room:{room.pk}"
    assert f'data-visibility="{name}"' in shown("A chat room", room=room)
    with testing.Tab(ann, name):
        said_it = Message.objects.create(room=room, author=ann, text="tea?")
        testing.assert_hot(name)
        testing.drain()
        assert visibility.read("room", room.pk).data == {"messages": [{"id": said_it.pk, "by": "ann", "text": "tea?"}]}
    testing.advance(60)
    Message.objects.create(room=room, author=ann, text="nobody here?")
    testing.assert_cold(name)
    assert [line["text"] for line in visibility.read("room", room.pk).data["messages"]] == ["tea?", "nobody here?"]
    assert may(ann, name)
    assert not may(bob, name)
    assert not may(ann, "room:no-number")


def test_tiles_are_built_together_and_told_of_updates(example: Any, make_user: Any) -> None:
    names = example("Dashboard tiles")
    Counter.objects.bulk_create(Counter(name=name) for name in ("orders", "visits", "errors"))
    page = shown("Dashboard tiles", tiles=["orders", "visits"])
    assert re.findall(r'data-visibility="([^"]*)"', page) == ["tile:orders", "tile:visits"]
    with testing.Tab(make_user("ann", is_staff=True), "tile:orders", "tile:visits"):
        names.count("orders")
        names.count("errors")
        testing.assert_hot("tile:orders")
        testing.assert_cold("tile:errors")
        testing.drain()
        assert visibility.read("tile", "orders").data == {"value": 1}
    testing.advance(60)
    names.count("orders")
    testing.assert_cold("tile:orders")
    assert visibility.read("tile", "orders").data == {"value": 2}
    assert may(User(is_staff=True), "tile:orders")
    assert not may(User(), "tile:orders")


def test_an_order_is_shown_to_its_customer(example: Any, make_user: Any, templates: None) -> None:
    names = example("The status of an order")
    ann, bob = make_user("ann"), make_user("bob")
    order = Order.objects.create(customer=ann)
    name = f"order:{order.pk}"
    request = RequestFactory().get("/")
    request.user = ann
    page = names.order_page(request, order.pk).content.decode()
    version = visibility.read("order", order.pk).version
    assert f'<p data-visibility="{name}" data-visibility-version="{version}">new</p>' in page
    with testing.Tab(ann, name):
        order.status = "paid"
        order.save()
        testing.assert_hot(name)
        testing.drain()
        assert visibility.read("order", order.pk).data == {"status": "paid"}
        order.save(update_fields=["customer"])
        assert testing.drain() == 0
    testing.advance(60)
    order.status = "shipped"
    order.save(update_fields=["status"])
    testing.assert_cold(name)
    assert visibility.read("order", order.pk).data == {"status": "shipped"}
    assert may(ann, name)
    assert not may(bob, name)
    request.user = bob
    with pytest.raises(Http404):
        names.order_page(request, order.pk)


def test_a_price_is_applied_once_and_never_backwards(example: Any) -> None:
    names = example("Prices of things, from outside")
    assert 'data-visibility="price:m-1"' in shown("Prices of things, from outside", device="m-1")
    assert not may(AnonymousUser(), "price:m-1")
    assert names.received({"device": "m-1", "sequence": 1, "cents": 100})
    with testing.Tab(None, "price:m-1"):
        assert names.received({"device": "m-1", "sequence": 3, "cents": 300})
        testing.assert_hot("price:m-1")
        testing.drain()
        assert visibility.read("price", "m-1").data == {"cents": 300}
        assert not names.received({"device": "m-1", "sequence": 3, "cents": 999})
        assert not names.received({"device": "m-1", "sequence": 2, "cents": 200})
        assert testing.drain() == 0
    testing.advance(60)
    names.received({"device": "m-1", "sequence": 4, "cents": 400})
    testing.assert_cold("price:m-1")
    assert Price.objects.get(symbol="m-1").cents == 400
    assert visibility.read("price", "m-1").data == {"cents": 400}
    assert may(AnonymousUser(), "price:m-1")
    assert registry.get("price").anonymous


def test_htmx_fetches_the_part_with_the_version_it_shows(example: Any, make_user: Any, templates: None) -> None:
    names = example("A page with htmx")
    ann, bob = make_user("ann"), make_user("bob")
    Follow.objects.create(follower=ann, author=bob)
    feed = f"feed:{ann.pk}"
    with override_settings(ROOT_URLCONF=names):
        browser = Client()
        browser.force_login(ann)
        page = browser.get("/feed/part/").content.decode()
        assert 'hx-get="/feed/part/"' in page
        with testing.Tab(ann, feed):
            Post.objects.create(author=bob, text="hello")
            testing.assert_hot(feed)
            testing.drain()
            after = browser.get("/feed/part/").content.decode()
            assert "<li>hello</li>" in after
            version = visibility.read("feed", ann.pk).version
            assert f'data-visibility="{feed}" data-visibility-version="{version}"' in after
            assert str(version) not in page
        testing.advance(60)
        Post.objects.create(author=bob, text="again")
        testing.assert_cold(feed)
        assert "<li>again</li>" in browser.get("/feed/part/").content.decode()
    assert may(ann, feed)
    assert not may(bob, feed)


def test_the_element_that_htmx_watches_is_the_one_that_the_event_reaches() -> None:
    tag = re.search(r"<ul .*?>", part("A page with htmx", "html"), re.DOTALL)
    assert tag
    # `changed` is dispatched at elements with data-visibility and does not bubble there: no `from:`, and on the same element.
    assert re.search(r'hx-trigger="visibility:changed"', tag[0])
    assert "visibility_attrs" in tag[0]
    assert re.search(r'emit\(viewer, "changed", \{ resource, version \}\)', SCRIPT)
    assert "bubbles: !element" in SCRIPT


FIELDS = {
    "A notification badge": lambda make: f"badge:{make('ann').pk}",
    "A chat room": lambda make: f"room:{Room.objects.create(name='r').pk}",
    "Dashboard tiles": lambda make: f"tile:{Counter.objects.create(name='orders').name}",
    "The status of an order": lambda make: f"order:{Order.objects.create(customer=make('ann')).pk}",
    "Prices of things, from outside": lambda make: f"price:{Price.objects.create(symbol='m-1', cents=1).symbol}",
}


@pytest.mark.parametrize("heading", FIELDS)
def test_the_pages_use_fields_that_the_build_gives(heading: str, example: Any, make_user: Any) -> None:
    example(heading)
    used = set(re.findall(r"detail\.data\.(\w+)", part(heading, "html")))
    assert used
    assert used <= said(FIELDS[heading](make_user))
