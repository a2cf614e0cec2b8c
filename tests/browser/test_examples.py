"""The pages of docs/examples.md in a browser: what they draw from an update, with no other event mistaken for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.template import engines

from tests.test_docs import blog as blog
from tests.test_examples import example as example, part

ANN = SimpleNamespace(pk=7)
CASES = {
    "A notification badge": ({"user": ANN}, "badge:7", {"new": 3}, "a", "3"),
    "A chat room": (
        {"room": ANN},
        "room:7",
        {"messages": [{"id": 1, "by": "ann", "text": "<b>tea</b>?"}]},
        "ol",
        "ann: <b>tea</b>?",
    ),
    "Dashboard tiles": ({"tiles": ["orders", "visits"]}, "tile:visits", {"value": 12}, "p:nth-of-type(2)", "visits 12"),
    "The status of an order": ({"pk": 7, "order": None}, "order:7", {"status": "shipped"}, "p", "shipped"),
    "Prices of things, from outside": ({"device": "m-1"}, "price:m-1", {"cents": 205}, "output", "2.05"),
}
SEND = """([resource, event, detail]) => {
  for (const element of [document.querySelector(`[data-visibility='${resource}']`), document.body])
    element.dispatchEvent(new CustomEvent(`visibility:${event}`, { detail, bubbles: element === document.body }));
}"""


@pytest.fixture
def drawn(browser: Any, example: Any, request: pytest.FixtureRequest) -> Any:
    """Renders an example's page and opens it; answers the page and its errors. The module itself is not there to be loaded."""
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def draw(heading: str, context: dict[str, Any]) -> tuple[Any, list[str]]:
        example(heading)
        page.set_content(f"<!doctype html><body>{engines['django'].from_string(part(heading, 'html')).render(context)}</body>")
        return page, errors

    yield draw
    page.close()


@pytest.mark.parametrize("heading", CASES)
def test_an_update_is_drawn_where_it_belongs(heading: str, drawn: Any) -> None:
    context, resource, data, selector, text = CASES[heading]
    page, errors = drawn(heading, context)
    page.evaluate(SEND, [resource, "update", {"resource": resource, "version": 1, "data": data}])
    assert page.locator(selector).first.inner_text() == text
    assert errors == []


def test_who_is_here_is_counted(drawn: Any) -> None:
    page, errors = drawn("A chat room", {"room": ANN})
    page.evaluate(SEND, ["room:7", "watchers", {"resource": "room:7", "count": 4}])
    assert page.locator("#here").inner_text() == "4"
    assert errors == []
