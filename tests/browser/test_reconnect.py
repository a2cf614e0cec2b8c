"""visibility.js in Chromium against the protocol double: losing the connection, and getting it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import expect_state, heard, hide
from tests.browser.double import Double
from tests.support import wait_for
from tests.support.proxy import Proxy

BODY = "<p data-visibility=feed:1>1</p>"
Tab = Callable[..., Any]


def updates(page: Any) -> list[Any]:
    return [update["data"] for update in heard(page, "update")]


def test_codes_that_mean_come_back(tab: Tab, double: Double) -> None:
    page = tab(BODY)
    for number, code in enumerate([None, 1001, 1011, 1012, 4000, 4408, 4413, 4429, 4430, 4450], 1):
        wait_for(lambda number=number: len(double.sockets) == number and double.watching == {"feed:1"})
        double.publish("feed:1", code)
        wait_for(lambda number=number: len(updates(page)) == number)
        double.drop(code)
        wait_for(lambda number=number: len(lost(page)) == number)
        assert lost(page)[-1] == (code or 1006)
    expect_state(page, "open")


def lost(page: Any) -> list[int]:
    return [state["code"] for state in heard(page, "state") if state["state"] == "waiting"]


def test_codes_that_mean_stop(tab: Tab, double: Double) -> None:
    page = tab(BODY)
    for number, code in enumerate([4401, 4403, 4500, 4501, 4503, 4520], 1):
        wait_for(lambda number=number: len(double.sockets) == number and double.watching == {"feed:1"})
        double.drop(code)
        expect_state(page, "closed")
        assert heard(page, "state")[-1]["code"] == code
        # Only a page that is loaded anew, or connect(), tries again.
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.evaluate("dispatchEvent(new Event('online'))")
        page.evaluate("import('/visibility.js').then(({ watch }) => watch('feed:2', () => {})())")
        page.evaluate("new Promise((resolve) => setTimeout(resolve, 200))")
        assert len(double.sockets) == number
        page.evaluate("import('/visibility.js').then(({ connect }) => connect())")
        expect_state(page, "open")
    double.drop(4501)
    expect_state(page, "closed")
    page.reload()
    expect_state(page, "open")


def test_L12_waits_are_random_up_to_a_cap_that_doubles(tab: Tab, double: Double) -> None:
    double.greet_with = 1012
    pages = [tab(path=str(number), scope=str(number), state="waiting", retryBase=0.02, retryCap=0.16) for number in range(4)]

    def waits(page: Any) -> list[float]:
        return [state["retryIn"] for state in heard(page, "state") if state["state"] == "waiting"]

    wait_for(lambda: min(len(waits(page)) for page in pages) >= 12, 20)
    for page in pages:
        for attempt, wait in enumerate(waits(page)):
            assert 0 <= wait <= min(0.16, 0.02 * 2**attempt)
    late = [wait for page in pages for wait in waits(page)[3:]]
    assert min(late) < 0.04 < 0.12 < max(late), "spread over the whole wait"
    double.greet_with = None
    for page in pages:
        expect_state(page, "open")


def test_a_server_under_strain_is_given_time(tab: Tab, double: Double) -> None:
    double.greet_with = 4450
    page = tab(state="waiting", retryBase=0.001, retryCap=0.2)
    wait_for(lambda: len(double.sockets) > 3)
    waits = [state["retryIn"] for state in heard(page, "state") if state["state"] == "waiting"]
    assert all(0.1 <= wait <= 0.2 for wait in waits)


def test_after_a_heartbeat_that_held_the_waits_begin_anew(tab: Tab, double: Double) -> None:
    double.greet_with = 1012
    page = tab(state="waiting", retryBase=0.01, retryCap=30)
    wait_for(lambda: len(double.sockets) > 4)
    double.greet_with = None
    expect_state(page, "open")
    wait_for(lambda: double.live[0].said("ping"))
    double.drop(1012)
    wait_for(lambda: len(heard(page, "state")) and heard(page, "state")[-1]["state"] == "open" and double.live)
    assert [state for state in heard(page, "state") if state["state"] == "waiting"][-1]["retryIn"] <= 0.01


def test_a_connection_that_is_lost_at_once_is_no_success(tab: Tab, double: Double) -> None:
    double.hello["heartbeat"] = 60
    page = tab(BODY, retryBase=0.01, retryCap=30)
    for number in range(1, 10):
        wait_for(lambda number=number: len(double.sockets) == number and double.watching, 10)
        double.drop(1012)
    waits = [state["retryIn"] for state in heard(page, "state") if state["state"] == "waiting"]
    assert max(waits) > 0.02, waits


def test_a_line_that_went_dead_is_noticed(context: Any, double: Double) -> None:
    # In the tab, where the test owns the clock: the worker's is the real one.
    double.hello["heartbeat"] = 20
    double.publish("feed:1", "one")
    page = context.new_page()
    page.clock.install()
    page.goto(double.page(BODY, {"shared": False, "retryBase": 0.01}))
    expect_state(page, "open")
    wait_for(lambda: updates(page) == ["one"])
    double.deaf = True
    page.clock.run_for(20_000)
    wait_for(lambda: double.live[0].said("ping"))
    assert len(double.sockets) == 1
    double.deaf = False
    page.clock.run_for(11_000)
    wait_for(lambda: len(double.sockets) == 2)
    assert "waiting" in [state["state"] for state in heard(page, "state")]


def test_S10_a_ping_under_30_seconds_even_if_the_server_asks_for_less(context: Any, double: Double) -> None:
    double.hello["heartbeat"] = 60
    page = context.new_page()
    page.clock.install()
    page.goto(double.page(BODY, {"shared": False}))
    expect_state(page, "open")
    wait_for(lambda: double.watching)
    page.clock.run_for(30_000)
    wait_for(lambda: double.live[0].said("ping"))


def test_offline_asks_whether_the_line_lives(context: Any, tab: Tab, double: Double) -> None:
    double.hello["heartbeat"] = 60
    tab(BODY)
    wait_for(lambda: double.watching)
    context.set_offline(True)
    wait_for(lambda: double.live[0].said("ping"))


@pytest.mark.parametrize("event", ["online", "test:hide"])
def test_online_or_back_in_front_does_not_wait_to_the_end(context: Any, double: Double, event: str) -> None:
    page = context.new_page()
    page.clock.install()
    page.goto(double.page(BODY, {"shared": False, "retryBase": 0.1, "retryCap": 3600}))
    expect_state(page, "open")
    double.stop()
    hide(page, event == "test:hide")

    def long_wait() -> bool:
        page.clock.run_for(60_000)
        last = heard(page, "state")[-1]
        return bool(last["state"] == "waiting" and last["retryIn"] > 600)

    wait_for(long_wait, 20)
    double.publish("feed:1", "meanwhile")
    double.start()
    page.evaluate("event => dispatchEvent(new CustomEvent(event, { detail: false }))", event)
    page.clock.run_for(200)
    wait_for(lambda: updates(page) == ["meanwhile"])
    context.errors.clear()


def test_a_cut_line_and_a_black_hole(context: Any, double: Double) -> None:
    double.publish("feed:1", "one")
    with Proxy(double.port) as proxy:
        page = context.new_page()
        url = f"ws://127.0.0.1:{proxy.port}/ws/visibility/"
        double.policy = double.policy.replace("connect-src 'self'", f"connect-src {url}")
        page.goto(double.page(BODY, {"url": url, "retryBase": 0.05, "retryCap": 0.2}))
        wait_for(lambda: updates(page) == ["one"])
        proxy.refuse()
        proxy.cut()
        expect_state(page, "waiting")
        double.publish("feed:1", "two")
        proxy.accept()
        wait_for(lambda: updates(page) == ["one", "two"])
        proxy.hold()
        double.publish("feed:1", "three")
        proxy.release()
        wait_for(lambda: updates(page) == ["one", "two", "three"])
    context.errors.clear()


def test_a_worker_that_died_is_replaced(context: Any, browser: Any, double: Double) -> None:
    page = context.new_page()
    page.clock.install()
    page.goto(double.page(BODY, {"retryBase": 0.01}))
    expect_state(page, "open")
    wait_for(lambda: double.watching)
    devtools = browser.new_browser_cdp_session()
    (worker,) = [info for info in devtools.send("Target.getTargets")["targetInfos"] if info["type"] == "shared_worker"]
    devtools.send("Target.closeTarget", {"targetId": worker["targetId"]})
    wait_for(lambda: not double.live)
    for _beat in range(6):
        page.clock.run_for(10_000)
    wait_for(lambda: double.watching == {"feed:1"})
