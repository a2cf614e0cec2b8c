"""A Chromium for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest

from tests.browser.double import Double
from tests.support import need

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# Playwright has no switch to hide a tab: the page is told that it is hidden, as the browser would.
HIDING = """
  let hidden = false;
  Object.defineProperty(document, "visibilityState", { get: () => hidden ? "hidden" : "visible" });
  Object.defineProperty(document, "hidden", { get: () => hidden });
  addEventListener("test:hide", ({ detail }) => {
    hidden = detail;
    document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
  });
"""
# Every event of the module as it is heard at document: events[i] = [name, detail].
HEARING = """
  window.heard = [];
  for (const name of ["update", "changed", "watchers", "error", "state"]) {
    document.addEventListener("visibility:" + name, ({ detail }) => heard.push([name, detail]));
  }
"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    binary = need("chromium")
    from playwright.sync_api import sync_playwright

    # The driver keeps an event loop running in this thread; Django would refuse the ORM because of it.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=binary, args=ARGUMENTS)
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        yield chromium
        chromium.close()
    os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE")
    if before is not None:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


@pytest.fixture(scope="session")
def serious_faults() -> Callable[..., list[str]]:
    """`serious_faults(page)`: what axe-core calls serious or critical on a page, and whether it is wider than its window.

    `rules` names some of axe-core's, where the others were asked before.
    """
    pytest.importorskip("axe_core_python")
    folder = resources.files("axe_core_python")
    axe = next(path for path in folder.iterdir() if path.name == "axe.min.js").read_text()

    def look(page: Any, *rules: str) -> list[str]:
        page.evaluate(axe)
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = page.evaluate("options => axe.run(document, options)", options)["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        faults = [f"{one['id']}: {[node['html'][:120] for node in one['nodes']][:3]}" for one in serious]
        return faults + ["wider than the window"] * wide

    return look


@pytest.fixture
def people(browser: Any) -> Iterator[Callable[[], Any]]:
    """`people()` is one more person's browser: a context with cookies, storage and workers of its own.

    What its pages log as an error fails the test, unless it is taken off `context.errors`.
    """
    contexts: list[Any] = []

    def person() -> Any:
        context = browser.new_context(viewport={"width": 800, "height": 600})
        context.set_default_timeout(10_000)
        context.add_init_script(HIDING + HEARING)
        context.errors = []
        context.on("weberror", lambda error: context.errors.append(str(error.error)))
        context.on("console", lambda line: line.type == "error" and context.errors.append(line.text))
        contexts.append(context)
        return context

    yield person
    for context in contexts:
        context.close()
    # Chromium reports each connection that could not be made; losing them is what these tests are about.
    errors = [error for context in contexts for error in context.errors]
    assert [error for error in errors if not error.startswith("WebSocket connection to")] == []


@pytest.fixture
def context(people: Callable[[], Any]) -> Any:
    """The browser of the test's one person."""
    return people()


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture
def tab(context: Any, double: Double) -> Callable[..., Any]:
    """`tab("<p data-visibility=feed:1>", linger=0.1)` opens a page of the double with this body and these options."""

    def open_tab(body: str = "", *, path: str = "", state: str = "open", **options: Any) -> Any:
        page = context.new_page()
        page.goto(double.page(body, {"retryBase": 0.05, "retryCap": 0.2, "linger": 0.1, **options}, path))
        if options.get("auto", True):
            expect_state(page, state)
        return page

    return open_tab


def expect_state(page: Any, state: str) -> None:
    page.wait_for_selector(f"html[data-visibility-state={state}]", state="attached")


def hide(page: Any, hidden: bool = True) -> None:
    """Put the tab into the background, or back to the front."""
    page.evaluate("hidden => dispatchEvent(new CustomEvent('test:hide', { detail: hidden }))", hidden)


def heard(page: Any, name: str) -> list[Any]:
    """The details of the events of this name so far, as heard at document."""
    return list(page.evaluate("name => heard.filter((event) => event[0] === name).map((event) => event[1])", name))
