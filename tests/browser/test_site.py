"""visibility.js in Chromium, with a real server, a real worker, Redis and the database behind it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User

import visibility
from tests.app.models import Counter
from tests.browser.conftest import expect_state, heard, hide
from tests.conftest import Live
from tests.support import servers, wait_for
from tests.support.processes import Process, free_port
from tests.support.proxy import Proxy
from tests.support.sockets import session_for

TIMES = {"HEARTBEAT": 0.8, "TTL": 2.5, "LINGER": 0.3}


@pytest.fixture(scope="package")
def static_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `collectstatic` makes, with hashed names."""
    return tmp_path_factory.mktemp("static")


@pytest.fixture
def options(browser: Any, live: Live, static_root: Path) -> dict[str, Any]:
    """How a server or command of this file is started."""
    options = {
        "settings": "tests.browser.settings",
        "visibility": TIMES,
        "VISIBILITY_TEST_STATIC_ROOT": str(static_root),
    }
    if not (static_root / "staticfiles.json").exists():
        with servers.command("collectstatic", "--no-input", "--ignore=admin", **options) as collecting:
            wait_for(lambda: not collecting.alive, 30)
            assert collecting.popen.returncode == 0, collecting.output
    return options


@pytest.fixture
def ann(live: Live, make_user: Callable[..., User]) -> User:
    return make_user("ann")


@pytest.fixture(params=["uvicorn"])
def site(live: Live, options: dict[str, Any], request: pytest.FixtureRequest) -> servers.Site:
    # Both at once: most of their start is importing.
    with ThreadPoolExecutor() as pool:
        worker = pool.submit(live.worker, visibility=TIMES)
        site = pool.submit(live.site, request.param, **options)
        worker.result()
        return site.result()


def log_in(context: Any, user: User, url: str) -> None:
    context.add_cookies([{"name": "sessionid", "value": session_for(user), "url": url}])


@pytest.fixture
def look(context: Any, ann: User, site: servers.Site) -> Callable[..., Any]:
    """`look("counter:a", …)` opens a page that shows these, as Ann."""
    log_in(context, ann, site.url)

    def look(*resources: str, url: str = site.url, state: str = "open", **query: str) -> Any:
        page = context.new_page()
        page.goto(f"{url}/page/?" + urlencode([*(("watch", name) for name in resources), *query.items()]))
        expect_state(page, state)
        return page

    return look


def count(name: str, value: int) -> Counter:
    return Counter.objects.update_or_create(name=name, defaults={"value": value})[0]


def shown(page: Any, number: int = 0) -> Any:
    text = page.evaluate("number => document.getElementById('e' + number).textContent", number)
    return json.loads(text)["value"] if text else None


def sessions(user: User) -> list[str]:
    return [session.id for session in visibility.presence([user])[user].sessions]


def watched(user: User) -> set[str]:
    """What all sessions of this user watch."""
    return {name for session in sessions(user) for name in visibility.interests(session)}


Look = Callable[..., Any]


@pytest.mark.parametrize("site", ["uvicorn", "daphne"], indirect=True)
def test_L11_a_page_stays_present_past_its_ttl(look: Look, ann: User, site: servers.Site) -> None:
    count("a", 1)
    page = look("counter:a")
    wait_for(lambda: shown(page) == 1, 10)
    first = sessions(ann)
    begin = time.monotonic()

    def past() -> bool:
        if sessions(ann) != first or visibility.watchers("counter:a").count != 1:
            raise RuntimeError(f"gone after {time.monotonic() - begin:.1f} s: {sessions(ann)}")
        return time.monotonic() > begin + 1.5 * TIMES["TTL"]

    wait_for(past, 3 * TIMES["TTL"])
    count("a", 2)
    wait_for(lambda: shown(page) == 2, 10)
    assert visibility.presence([ann])[ann].state == "visible"


def test_the_script_has_a_hashed_name_and_is_the_worker_too(look: Look, ann: User, static_root: Path) -> None:
    page = look("counter:a")
    manifest = json.loads((static_root / "staticfiles.json").read_text())["paths"]
    source = page.evaluate("document.querySelector('script[data-visibility-connect]').src")
    assert source.endswith(manifest["visibility/visibility.js"])
    assert heard(page, "state")[-1]["shared"] is True


def test_a_hidden_tab_and_back(look: Look, ann: User) -> None:
    count("a", 1)
    page = look("counter:a")
    wait_for(lambda: shown(page) == 1, 10)
    hide(page)
    wait_for(lambda: visibility.presence([ann])[ann].state == "background")
    wait_for(lambda: not visibility.is_visible("counter:a"))
    count("a", 2)
    assert visibility.read("counter", "a").data == {"value": 2}
    assert shown(page) == 1
    hide(page, False)
    wait_for(lambda: shown(page) == 2, 10)
    wait_for(lambda: visibility.watchers("counter:a").watching == 1)
    assert visibility.presence([ann])[ann].state == "visible"


def test_offline_and_back(context: Any, ann: User, site: servers.Site, look: Look) -> None:
    count("a", 1)
    with Proxy(site.port) as proxy:
        page = look("counter:a", url=f"http://127.0.0.1:{proxy.port}")
        wait_for(lambda: shown(page) == 1, 10)
        context.set_offline(True)
        proxy.refuse()
        proxy.cut()
        expect_state(page, "waiting")
        wait_for(lambda: not sessions(ann), 2 * TIMES["TTL"])
        count("a", 2)
        proxy.accept()
        context.set_offline(False)
        wait_for(lambda: shown(page) == 2, 10)


def test_a_dead_line_ends_the_lease_and_heals(ann: User, site: servers.Site, look: Look) -> None:
    count("a", 1)
    with Proxy(site.port) as proxy:
        page = look("counter:a", url=f"http://127.0.0.1:{proxy.port}")
        wait_for(lambda: shown(page) == 1, 10)
        proxy.hold()
        wait_for(lambda: not visibility.watchers("counter:a").count, 2 * TIMES["TTL"])
        count("a", 2)
        proxy.release()
        proxy.cut()
        wait_for(lambda: shown(page) == 2, 15)


@pytest.mark.parametrize("site", ["uvicorn", "daphne"], indirect=True)
def test_the_server_is_killed_and_comes_back(
    live: Live, ann: User, options: dict[str, Any], look: Look, site: servers.Site, request: pytest.FixtureRequest
) -> None:
    count("a", 1)
    page = look("counter:a")
    wait_for(lambda: shown(page) == 1, 10)
    site.kill()
    expect_state(page, "waiting")
    count("a", 2)
    # SIGKILL: nobody said goodbye, the lease ends by itself.
    wait_for(lambda: not sessions(ann), 2 * TIMES["TTL"])
    live.site(request.node.callspec.params["site"], port=site.port, **options)
    wait_for(lambda: shown(page) == 2, 15)
    assert len(sessions(ann)) == 1


def test_the_watch_set_is_what_the_viewport_shows(look: Look, ann: User) -> None:
    names = [f"counter:{letter}" for letter in "abcd"]
    for value, name in enumerate(names):
        count(name.partition(":")[2], value)
    page = look(*names, apart="1")
    for number in (0, 2, 3, 1):
        page.evaluate("number => document.getElementById('e' + number).scrollIntoView()", number)
        wait_for(lambda number=number: watched(ann) == {names[number]})
        wait_for(lambda number=number: shown(page, number) == number, 10)
        wait_for(lambda number=number: [f"counter:{key}" for key in visibility.visible("counter")] == [names[number]])


def test_two_tabs_are_one_session(look: Look, ann: User) -> None:
    count("a", 1)
    count("b", 1)
    pages = [look("counter:a"), look("counter:a", "counter:b")]
    for page in pages:
        wait_for(lambda page=page: shown(page) == 1, 10)
    assert len(sessions(ann)) == 1
    wait_for(lambda: watched(ann) == {"counter:a", "counter:b"})
    assert visibility.watchers("counter:a").count == 1
    count("a", 2)
    for page in pages:
        wait_for(lambda page=page: shown(page) == 2, 10)
    pages[1].close()
    wait_for(lambda: watched(ann) == {"counter:a"})
    pages[0].close()
    wait_for(lambda: visibility.presence([ann])[ann].state == "gone")


def test_what_may_not_be_watched_says_so_and_a_deactivated_user_sees_no_more(look: Look, ann: User, context: Any) -> None:
    count("a", 1)
    page = look("counter:a", "feed:0")
    wait_for(lambda: shown(page) == 1, 10)
    wait_for(lambda: ("forbidden", "feed:0") in [(error["code"], error["resource"]) for error in heard(page, "error")])
    ann.is_active = False
    ann.save()
    wait_for(lambda: heard(page, "state")[-1]["state"] == "closed" or heard(page, "error")[-1]["code"] == "revoked", 10)
    count("a", 2)
    assert visibility.read("counter", "a").data == {"value": 2}
    wait_for(lambda: not visibility.watchers("counter:a").count)
    assert shown(page) == 1


# --- the demo project -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`manage.py demo`, as somebody who just cloned the project would start it; the address."""
    port = free_port()
    ours = ("VISIBILITY", "REDIS_URL", "DJANGO_SETTINGS", "DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env["DATABASE_URL"] = f"sqlite:///{tmp_path_factory.mktemp('demo')}/demo.sqlite3"
    arguments = ["manage.py", "demo", "--port", str(port), "--quiet", "--crowd", "20"]
    with Process([sys.executable, *arguments], env=env, cwd=servers.ROOT) as process:
        process.wait_until(lambda: f"http://127.0.0.1:{port}/" in process.output, 90, "the demo is up")
        yield f"http://127.0.0.1:{port}/"


def test_no_page_of_the_demo_has_a_serious_fault(browser: Any, demo: str, serious_faults: Callable[..., list[str]]) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    faults: list[str] = []

    def look(page: Any, name: str) -> None:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.emulate_media(color_scheme="light")
        found = serious_faults(page)
        page.set_viewport_size({"width": 390, "height": 900})
        page.emulate_media(color_scheme="dark")
        found += [f"dark and narrow: {fault}" for fault in serious_faults(page, "color-contrast")]
        faults.extend(f"{name}: {fault}" for fault in found)

    try:
        page = context.new_page()
        page.goto(demo)
        look(page, "who are you")
        page.locator("form[action*='login-as'] button").first.click()
        for path in ("feed/", "rooms/", "rooms/1/", "notifications/", "tiles/", "work/"):
            assert page.goto(demo + path).status == 200, path
            expect_state(page, "open")
            look(page, path)
    finally:
        context.close()
    assert faults == []


def test_one_posts_and_the_others_page_changes_without_a_reload(people: Callable[[], Any], demo: str) -> None:
    def be(number: int, follow: str = "") -> Any:
        """The feed as one of the demo's people sees it, who follows this user."""
        page = people().new_page()
        page.goto(demo)
        page.locator("form[action*='login-as'] button").nth(number).click()
        expect_state(page, "open")
        button = page.locator(f"form[action='/follow/{follow}/'] button")
        if follow and button.get_attribute("aria-pressed") == "false":
            button.click()
            page.wait_for_selector(f"form[action='/follow/{follow}/'] button[aria-pressed=true]")
        return page

    author = be(0)
    key = author.evaluate("document.body.dataset.user")
    reader = be(1, follow=key)
    absent = be(2, follow=key)
    absent.goto("about:blank")
    reader.evaluate("window.sameDocument = true")
    for text in ("the kettle is on", "it has boiled"):
        author.fill("#post-text", text)
        author.click("form.composer button")
        reader.get_by_text(text).first.wait_for()
    assert reader.evaluate("window.sameDocument") is True
    # Who did not look comes back to the truth, and is told of the next one too.
    absent.goto(demo + "feed/")
    assert absent.get_by_text("it has boiled").first.is_visible()
    expect_state(absent, "open")
    author.fill("#post-text", "tea is ready")
    author.click("form.composer button")
    absent.get_by_text("tea is ready").first.wait_for()
