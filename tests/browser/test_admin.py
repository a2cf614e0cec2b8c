"""The admin's pages in Chromium, light and dark, wide and narrow: axe-core, a strict content security policy, no overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from tests.admin.conftest import fresh, root, staff, system  # noqa: F401
from visibility.models import DirtyFlag, Event, FreshnessSLO

pytestmark = [pytest.mark.browser, pytest.mark.slow]
BASE = "/admin/visibility/"
POLICY = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'"
MODES = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


def pages() -> dict[str, str]:
    return {
        "overview": "overview/",
        "promises": "freshnessslo/",
        "promise": f"freshnessslo/{FreshnessSLO.objects.get(data_type='counter').pk}/change/",
        "events": "event/",
        "event": f"event/{Event.objects.filter(outcome='failed').get().pk}/change/",
        "flags": "dirtyflag/",
        "quarantine": "dirtyflag/?state=quarantined",
        "scopes": "scopemark/",
        "watchers": "overview/watchers/?type=counter",
        "presence": "overview/presence/",
        "lanes": "overview/lanes/",
        "diagnosis": "overview/diagnosis/",
        "resource": "overview/resource/?name=counter:a",
        "quarantined": "overview/resource/?name=counter:q1",
    }


@pytest.fixture
def window(browser: Any, live_server: Any, system: Any, root: Client, request: pytest.FixtureRequest) -> Iterator[Any]:  # noqa: F811
    """A page of an administrator's browser; `errors` collects what the console and the policy complain about."""
    theme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    context.set_default_timeout(30_000)
    context.add_cookies([{"name": "sessionid", "value": root.cookies["sessionid"].value, "url": live_server.url}])

    def strict(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})

    page = context.new_page()
    page.route("**/admin/**", strict)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on(
        "console", lambda line: line.type == "error" and "favicon" not in str(line.location) and page.errors.append(line.text)
    )
    yield page
    # A page that draws itself anew may have a request under way.
    page.unroute_all(behavior="ignoreErrors")
    context.close()


@pytest.mark.parametrize("window", MODES, indirect=True, ids=["light-wide", "dark-wide", "light-narrow", "dark-narrow"])
def test_no_page_has_a_serious_fault(window: Any, live_server: Any, serious_faults: Callable[..., list[str]]) -> None:
    faults: list[str] = []
    for name, path in pages().items():
        answer = window.goto(live_server.url + BASE + path)
        assert answer.status == 200, name
        faults += [f"{name}: {fault}" for fault in (*serious_faults(window), *window.errors)]
        window.errors.clear()
    assert not faults


@pytest.mark.parametrize("window", [("light", 1280)], indirect=True)
def test_an_administrator_releases_from_quarantine_by_keyboard(window: Any, live_server: Any) -> None:
    window.goto(live_server.url + BASE + "overview/resource/?name=counter:q1")
    window.get_by_role("button", name="Release…").focus()
    window.keyboard.press("Enter")
    window.get_by_role("button", name="Yes").focus()
    window.keyboard.press("Enter")
    window.wait_for_selector(".messagelist .success")
    assert DirtyFlag.objects.get(key="q1").quarantined_at is None
    assert window.errors == []


@pytest.mark.parametrize("window", [("light", 1280)], indirect=True)
def test_the_table_behind_a_chart_opens_without_a_script(window: Any, live_server: Any) -> None:
    window.goto(live_server.url + BASE + "overview/")
    figure = window.locator("figure").first
    assert not figure.locator("table").is_visible()
    figure.locator("summary").click()
    assert figure.locator("table").is_visible()
