"""visibility.js in Chromium against the protocol double: watching, versions, events, tabs, elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import expect_state, heard, hide
from tests.browser.double import Double
from tests.support import wait_for

WATCH = """async ([resource, options]) => {
  const { watch } = await import("/visibility.js");
  window.got ??= {};
  const got = (window.got[resource] ??= []);
  (window.stops ??= {})[resource] = watch(resource, (update) => { got.push(update.data); }, options);
}"""
GAP = "<br>" * 400


def watch(page: Any, resource: str, **options: Any) -> None:
    page.evaluate(WATCH, [resource, options])


def got(page: Any, resource: str) -> list[Any]:
    return list(page.evaluate("resource => window.got?.[resource] ?? []", resource))


def call(page: Any, text: str) -> Any:
    """Run a line that may use the module's exports as `v`."""
    return page.evaluate(f"async () => {{ const v = await import('/visibility.js'); {text} }}")


def box(name: str, more: str = "") -> str:
    return f"<p data-visibility='{name}' {more}>{name}</p>"


Tab = Callable[..., Any]


# --- watching -----------------------------------------------------------------------------------------------------------


def test_an_element_is_watched_updated_and_the_version_acknowledged(tab: Tab, double: Double) -> None:
    first = double.publish("feed:1", "one")
    page = tab(box("feed:1"))
    wait_for(lambda: [("feed:1", first)] == double.live[0].acks)
    second = double.publish("feed:1", "two")
    wait_for(lambda: ("feed:1", second) in double.live[0].acks)
    assert [update["data"] for update in heard(page, "update")] == ["one", "two"]
    assert heard(page, "changed") == [{"resource": "feed:1", "version": first}, {"resource": "feed:1", "version": second}]
    assert heard(page, "watchers")[0] == {"resource": "feed:1", "count": 1}


def test_a_callback_gets_the_current_version_and_each_newer_one(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "one")
    page = tab()
    watch(page, "feed:1")
    wait_for(lambda: got(page, "feed:1") == ["one"])
    double.publish("feed:1", "two")
    wait_for(lambda: got(page, "feed:1") == ["one", "two"])
    call(page, "v.unwatch('feed:1')")
    wait_for(lambda: not double.watching)


def test_L8_watching_b_leaves_a_alone(tab: Tab, double: Double) -> None:
    page = tab()
    watch(page, "feed:a")
    wait_for(lambda: double.watching == {"feed:a"})
    watch(page, "feed:b")
    wait_for(lambda: double.watching == {"feed:a", "feed:b"})
    assert double.live[0].said("unwatch") == []
    double.publish("feed:a", 1)
    wait_for(lambda: got(page, "feed:a") == [1])


@pytest.mark.parametrize("pause", [0, 30])
def test_L9_the_last_intent_wins(tab: Tab, double: Double, pause: int) -> None:
    page = tab()
    double.slow = 0.05
    page.evaluate(
        """async (pause) => {
          const { watch } = await import("/visibility.js");
          const breath = () => new Promise((resolve) => setTimeout(resolve, pause));
          for (let turn = 0; turn < 10; turn++) {
            watch("feed:gone", () => {})();
            if (turn) window.stop();
            if (pause) await breath();
            window.stop = watch("feed:stays", () => {});
            if (pause) await breath();
          }
        }""",
        pause,
    )
    wait_for(lambda: len(double.live[0].said("watch")) > 0 and double.watching == {"feed:stays"})
    double.slow = 0
    version = double.publish("feed:stays", 1)
    wait_for(lambda: ("feed:stays", version) in double.live[0].acks)
    assert double.watching == {"feed:stays"}


def test_wishes_of_one_moment_go_in_one_frame(tab: Tab, double: Double) -> None:
    page = tab("".join(box(f"item:{number}") for number in range(10)))
    wait_for(lambda: len(double.watching) == 10)
    assert len(double.live[0].said("watch")) == 1
    assert heard(page, "error") == []


# --- versions -----------------------------------------------------------------------------------------------------------


def test_older_and_equal_versions_are_ignored(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "new", version=200)
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "update"))
    double.publish("feed:1", "old", version=150)
    double.publish("feed:1", "again", version=200)
    double.publish("feed:1", "newer", version=201)
    wait_for(lambda: len(heard(page, "update")) > 1)
    assert [update["data"] for update in heard(page, "update")] == ["new", "newer"]


def test_S2_a_lost_update_is_healed_within_a_heartbeat(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "one")
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "update"))
    double.lossy = True
    double.publish("feed:1", "two")
    double.lossy = False
    wait_for(lambda: [update["data"] for update in heard(page, "update")] == ["one", "two"], 5 * double.hello["heartbeat"])
    assert len(double.live[0].said("watch")) == 1


def test_S2_a_server_that_keeps_losing_it_is_asked_again(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "one")
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "update"))
    double.lossy = True
    double.publish("feed:1", "two")
    wait_for(lambda: [update["data"] for update in heard(page, "update")] == ["one", "two"])
    assert double.live[0].said("watch")[-1]["since"] == {"feed:1": 101}
    assert double.live[0].said("unwatch") == []


def test_L9_a_watch_that_the_server_forgot_is_made_again(tab: Tab, double: Double) -> None:
    page = tab(box("feed:1"))
    wait_for(lambda: double.watching == {"feed:1"} and heard(page, "watchers"))
    double.live[0].watching.clear()
    wait_for(lambda: double.watching == {"feed:1"})


def test_while_hidden_nothing_is_asked_again(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "one")
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "update"))
    hide(page)
    wait_for(lambda: double.live[0].visible is False)
    double.lossy = True
    double.publish("feed:1", "two")
    pings = len(double.live[0].said("ping"))
    wait_for(lambda: len(double.live[0].said("ping")) > pings + 3)
    assert len(double.live[0].said("watch")) == 1


def test_after_a_restart_only_what_moved_is_sent(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "same")
    double.publish("feed:2", "before")
    page = tab(box("feed:1") + box("feed:2"))
    wait_for(lambda: len(heard(page, "update")) == 2)
    double.stop()
    expect_state(page, "waiting")
    double.publish("feed:2", "after")
    double.start()
    wait_for(lambda: len(heard(page, "update")) == 3)
    assert double.live[0].said("watch")[0]["since"] == {"feed:1": 101, "feed:2": 101}
    assert heard(page, "update")[-1]["data"] == "after"


def test_an_element_rendered_at_a_version_is_not_sent_it_again(tab: Tab, double: Double) -> None:
    version = double.publish("feed:1", "rendered")
    page = tab(box("feed:1", f"data-visibility-version={version}"))
    wait_for(lambda: double.watching == {"feed:1"})
    double.publish("feed:1", "newer")
    wait_for(lambda: heard(page, "update"))
    assert [update["data"] for update in heard(page, "update")] == ["newer"]


def test_ping_tells_the_versions(tab: Tab, double: Double) -> None:
    version = double.publish("feed:1", 1)
    tab(box("feed:1 feed:none"))
    wait_for(lambda: {"op": "ping", "have": {"feed:1": version, "feed:none": 0}} in double.live[0].frames)


# --- refusals and limits ------------------------------------------------------------------------------------------------


def test_a_refused_resource_is_told_of_and_not_asked_for_again(tab: Tab, double: Double) -> None:
    double.forbidden = {"feed:2"}
    page = tab(box("feed:1") + box("feed:2"))
    wait_for(lambda: heard(page, "error"))
    assert heard(page, "error")[0] == {"id": 1, "code": "forbidden", "detail": "not yours", "resource": "feed:2"}
    wait_for(lambda: len(double.live[0].said("ping")) > 2)
    assert len(double.live[0].said("watch")) == 1
    double.forbidden = set()
    watch(page, "feed:2")
    wait_for(lambda: double.watching == {"feed:1", "feed:2"})


def test_the_console_is_told_once_of_what_is_refused_unless_a_listener_takes_it(tab: Tab, double: Double) -> None:
    double.forbidden = {"feed:2", "feed:3", "feed:4"}
    page = tab(auto=False)
    lines: list[str] = []
    page.on("console", lambda line: lines.append(f"{line.type} {line.text}"))
    page.evaluate("addEventListener('visibility:error', (e) => e.detail.resource === 'feed:3' && e.preventDefault())")
    call(page, "v.connect()")
    for resource in ("feed:2", "feed:3", "feed:2", "feed:4"):
        before = len(heard(page, "error"))
        watch(page, resource)
        wait_for(lambda before=before: len(heard(page, "error")) > before)  # type: ignore[misc]
    said = "warning visibility: feed:{} is not watched (forbidden): not yours"
    wait_for(lambda: page.evaluate("1") and len(lines) > 1)
    assert lines == [said.format(2), said.format(4)]


def test_a_revoked_resource_is_forgotten(tab: Tab, double: Double) -> None:
    version = double.publish("feed:1", "secret")
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "update"))
    double.push({"op": "revoked", "resource": "feed:1", "reason": "left the room"})
    wait_for(lambda: heard(page, "error"))
    assert heard(page, "error") == [{"resource": "feed:1", "reason": "left the room", "code": "revoked"}]
    # Another tab is not served from what the first one got, and a new right brings all of it again.
    double.forbidden = {"feed:1"}
    double.live[0].watching.clear()
    other = tab(path="other")
    watch(other, "feed:1")
    wait_for(lambda: heard(other, "error"))
    assert got(other, "feed:1") == []
    double.forbidden = set()
    watch(page, "feed:1")
    wait_for(lambda: got(page, "feed:1") == ["secret"])
    assert version in [update["version"] for update in heard(page, "update")]


def test_a_tab_is_not_handed_what_is_not_allowed_any_more(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "secret")
    page, other = tab(box("feed:1"), path="page"), tab(path="other")
    wait_for(lambda: heard(page, "update"))
    double.slow, double.forbidden = 0.5, {"feed:1"}
    double.drop(1012)
    wait_for(lambda: double.live and double.live[0].said("watch"))
    watch(other, "feed:1")
    wait_for(lambda: heard(other, "error"))
    assert heard(other, "error")[0]["code"] == "forbidden"
    assert got(other, "feed:1") == []


def test_more_than_the_limit_waits_until_there_is_room(tab: Tab, double: Double) -> None:
    double.hello["limits"]["watches_per_socket"] = 3
    page = tab("".join(box(f"item:{number}", f"id=i{number}") for number in range(5)))
    wait_for(lambda: len(heard(page, "error")) == 2)
    assert len(double.watching) == 3
    assert {error["code"] for error in heard(page, "error")} == {"limit"}
    page.evaluate("for (const id of ['i0', 'i1']) document.getElementById(id).remove()")
    wait_for(lambda: double.watching == {"item:2", "item:3", "item:4"})


def test_long_lists_are_cut_to_the_servers_frame_size(tab: Tab, double: Double) -> None:
    double.hello["limits"]["frame_bytes"] = 2_000
    names = [f"room:{'é' * 150}{number}" for number in range(8)]
    page = tab(auto=False)
    page.evaluate(
        "async (names) => { const v = await import('/visibility.js'); for (const n of names) v.watch(n, () => {}); v.connect() }",
        names,
    )
    wait_for(lambda: double.watching == set(names))
    wait_for(lambda: len(double.live[0].said("ping")) > 8)
    assert all(len(str(frame).encode()) < 2_000 for frame in double.live[0].frames)


def test_what_the_rate_limit_dropped_is_said_again(tab: Tab, double: Double) -> None:
    double.answer = lambda socket, frame: {"op": "error", "id": None, "code": "rate", "detail": "slower", "resource": None}
    double.hello["heartbeat"] = 60
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "error"))
    assert double.watching == set()
    double.answer = lambda socket, frame: None
    wait_for(lambda: double.watching == {"feed:1"} and double.live[0].visible is True)


def test_a_bad_name_is_the_callers_error(tab: Tab, double: Double) -> None:
    page = tab()
    for bad in ("'feed'", "'feed:'", "'a b:1'", "7"):
        with pytest.raises(Exception, match="not a resource"):
            call(page, f"v.watch({bad}, () => {{}})")


# --- elements -----------------------------------------------------------------------------------------------------------


def test_the_watch_set_is_what_the_viewport_shows(tab: Tab, double: Double) -> None:
    page = tab(GAP.join(box(f"item:{number}", f"id=i{number}") for number in range(4)))
    for number in (0, 2, 3, 1, 0):
        page.evaluate("number => document.getElementById('i' + number).scrollIntoView()", number)
        wait_for(lambda number=number: double.watching == {f"item:{number}"})
    assert heard(page, "error") == []


def test_scrolled_out_and_back_within_the_linger_says_nothing(tab: Tab, double: Double) -> None:
    page = tab(box("item:0", "id=i0") + GAP + box("item:1", "id=i1"), linger=30)
    wait_for(lambda: double.watching == {"item:0"})
    page.evaluate("document.getElementById('i1').scrollIntoView()")
    wait_for(lambda: double.watching == {"item:0", "item:1"})
    page.evaluate("document.getElementById('i0').scrollIntoView()")
    wait_for(lambda: len(double.live[0].said("ping")) > 2)
    assert double.live[0].said("unwatch") == []


def test_scrolling_on_from_what_is_back_gets_what_moved(tab: Tab, double: Double) -> None:
    double.publish("item:0", "one")
    page = tab(box("item:0", "id=i0") + GAP + box("item:1", "id=i1"))
    wait_for(lambda: len(heard(page, "update")) == 1)
    page.evaluate("document.getElementById('i1').scrollIntoView()")
    wait_for(lambda: double.watching == {"item:1"})
    double.publish("item:0", "two")
    page.evaluate("document.getElementById('i0').scrollIntoView()")
    wait_for(lambda: [update["data"] for update in heard(page, "update")] == ["one", "two"])
    assert double.live[0].said("watch")[-1]["since"] == {"item:0": 101}


def test_elements_added_renamed_and_removed_later(tab: Tab, double: Double) -> None:
    page = tab("<main></main>")
    page.evaluate("document.querySelector('main').innerHTML = '<div><p data-visibility=item:1>1</p></div>'")
    wait_for(lambda: double.watching == {"item:1"})
    page.evaluate("document.querySelector('p').dataset.visibility = 'item:2 item:3'")
    wait_for(lambda: double.watching == {"item:2", "item:3"})
    page.evaluate("document.querySelector('p').removeAttribute('data-visibility')")
    wait_for(lambda: double.watching == set())
    page.evaluate("document.querySelector('p').dataset.visibility = 'item:4'")
    wait_for(lambda: double.watching == {"item:4"})
    page.evaluate("document.querySelector('div').remove()")
    wait_for(lambda: double.watching == set())


def test_a_swapped_element_keeps_the_watch(tab: Tab, double: Double) -> None:
    version = double.publish("feed:1", "one")
    page = tab(f"<main>{box('feed:1')}</main>", linger=30)
    wait_for(lambda: heard(page, "changed"))
    page.evaluate(
        """version => {
          window.seen = [];
          const swap = (more) => {
            document.querySelector("main").innerHTML = `<p data-visibility="feed:1" ${more}>new</p>`;
            for (const name of ["update", "changed"]) {
              document.querySelector("p").addEventListener("visibility:" + name, () => seen.push([more, name]));
            }
          };
          window.swap = swap;
          swap("");
        }""",
        version,
    )
    # Without a version it is handed the data, but not told to fetch: that would never end.
    wait_for(lambda: page.evaluate("seen") == [["", "update"]])
    page.evaluate(f"swap('data-visibility-version={version - 1}')")
    wait_for(lambda: len(page.evaluate("seen")) == 3)
    assert page.evaluate("seen.slice(1).map(([more, name]) => name)") == ["update", "changed"]
    page.evaluate(f"swap('data-visibility-version={version}')")
    double.publish("feed:1", "two")
    wait_for(lambda: len(page.evaluate("seen")) == 5)
    assert len(double.live[0].said("watch")) == 1
    assert double.live[0].said("unwatch") == []


def test_an_outer_element_does_not_hear_an_inner_one(tab: Tab, double: Double) -> None:
    page = tab(f"<div data-visibility=room:1>{box('post:1')}{box('post:1')}</div>")
    wait_for(lambda: double.watching == {"room:1", "post:1"})
    page.evaluate(
        """() => {
          window.at = { div: 0, p: 0 };
          for (const element of document.querySelectorAll("[data-visibility]")) {
            element.addEventListener("visibility:changed", () => at[element.localName]++);
          }
        }"""
    )
    double.publish("post:1", 1)
    wait_for(lambda: page.evaluate("at") == {"div": 0, "p": 2})
    assert len(heard(page, "changed")) == 1


# --- tabs ---------------------------------------------------------------------------------------------------------------


def test_a_hidden_tab_is_told_and_back_in_front_it_asks_at_once(tab: Tab, double: Double) -> None:
    double.hello["heartbeat"] = 60
    double.publish("feed:1", "one")
    page = tab(box("feed:1"))
    wait_for(lambda: heard(page, "update") and double.live[0].visible is True)
    hide(page)
    wait_for(lambda: double.live[0].visible is False)
    assert double.watching == {"feed:1"}
    double.lossy = True
    double.publish("feed:1", "two")
    assert double.live[0].said("ping") == []
    double.lossy = False
    hide(page, False)
    wait_for(lambda: double.live[0].visible is True)
    wait_for(lambda: len(heard(page, "update")) == 2)


def test_what_a_hidden_tab_got_is_not_acknowledged(tab: Tab, double: Double) -> None:
    page = tab(box("feed:1"))
    hide(page)
    wait_for(lambda: double.live[0].visible is False)
    double.publish("feed:1", "one")
    wait_for(lambda: heard(page, "update"))
    pings = len(double.live[0].said("ping"))
    wait_for(lambda: len(double.live[0].said("ping")) > pings + 1)
    assert double.live[0].acks == []


def test_two_tabs_share_one_socket(tab: Tab, double: Double) -> None:
    double.publish("feed:1", "one")
    first = tab(box("feed:1") + box("item:1"), path="first")
    wait_for(lambda: len(heard(first, "update")) == 1)
    second = tab(box("feed:1") + box("item:2"), path="second")
    wait_for(lambda: len(heard(second, "update")) == 1)
    wait_for(lambda: double.watching == {"feed:1", "item:1", "item:2"})
    double.publish("feed:1", "two")
    wait_for(lambda: len(heard(first, "update")) == len(heard(second, "update")) == 2)
    assert heard(second, "state")[-1]["shared"] is True
    assert len(double.sockets) == 1
    first.close()
    wait_for(lambda: double.watching == {"feed:1", "item:2"})
    assert len(double.live) == 1
    second.close()
    wait_for(lambda: not double.live)


def test_a_tab_that_joins_gets_what_the_others_had_before_they_connected(tab: Tab, double: Double) -> None:
    double.hello["heartbeat"] = 60
    version = double.publish("feed:1", "one")
    tab(box("feed:1", f"data-visibility-version={version}"), path="first")
    wait_for(lambda: double.watching == {"feed:1"})
    second = tab(box("feed:1"), path="second")
    wait_for(lambda: [update["data"] for update in heard(second, "update")] == ["one"])


def test_in_front_is_the_browser_while_any_tab_is(tab: Tab, double: Double) -> None:
    first = tab(box("item:1") + box("item:both"), path="first")
    second = tab(box("item:2") + box("item:both"), path="second")
    watch(second, "badge:1", background=True)
    wait_for(lambda: double.watching == {"item:1", "item:2", "item:both", "badge:1"})
    hide(second)
    wait_for(lambda: double.watching == {"item:1", "item:both", "badge:1"})
    assert double.live[0].visible is True
    hide(first)
    wait_for(lambda: double.live[0].visible is False)
    wait_for(lambda: double.watching == {"item:1", "item:2", "item:both", "badge:1"})
    hide(second, False)
    wait_for(lambda: double.live[0].visible is True and double.watching == {"item:2", "item:both", "badge:1"})


def test_another_scope_is_another_socket(tab: Tab, double: Double) -> None:
    tab(box("feed:1"), path="ann", scope="ann")
    tab(box("feed:2"), path="bob", scope="bob")
    wait_for(lambda: [socket.watching for socket in double.live] == [{"feed:1"}, {"feed:2"}])


@pytest.mark.parametrize("why", ["policy", "absent", "asked", "missing"])
def test_without_a_shared_worker_each_tab_has_a_socket(context: Any, tab: Tab, double: Double, why: str) -> None:
    if why == "policy":
        double.policy = double.policy.replace("worker-src 'self'", "worker-src 'none'")
    elif why == "absent":
        context.add_init_script("delete window.SharedWorker")
    double.no_worker = why == "missing"
    options = {"shared": False} if why == "asked" else {}
    pages = [tab(box("feed:1"), path=str(number), **options) for number in range(2)]
    wait_for(lambda: [socket.watching for socket in double.live] == [{"feed:1"}, {"feed:1"}])
    double.publish("feed:1", "one")
    for page in pages:
        wait_for(lambda page=page: len(heard(page, "update")) == 1)
        assert heard(page, "state")[-1]["shared"] is False
    pages[0].goto("about:blank")
    wait_for(lambda: len(double.live) == 1)
    assert all("worker-src" in error or "404" in error for error in context.errors)
    context.errors.clear()


def test_a_worker_that_the_policy_forbids_is_not_waited_for(context: Any, double: Double) -> None:
    double.policy = double.policy.replace("worker-src 'self'", "worker-src 'none'")
    page = context.new_page()
    page.clock.install(time=0)
    page.clock.pause_at(1_000)  # so that its patience does not end
    page.goto(double.page(""))
    expect_state(page, "open")
    context.errors.clear()


@pytest.mark.parametrize("shared", [True, False])
def test_a_page_that_is_put_away_leaves_and_comes_back(tab: Tab, double: Double, shared: bool) -> None:
    double.publish("feed:1", "one")
    page = tab(box("feed:1"), shared=shared)
    wait_for(lambda: heard(page, "update"))
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
    wait_for(lambda: not double.live)
    double.publish("feed:1", "two")
    page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    wait_for(lambda: [update["data"] for update in heard(page, "update")] == ["one", "two"])
    assert double.live[0].said("watch")[0]["since"] == {"feed:1": 101}


# --- the page it lives in -----------------------------------------------------------------------------------------------


def test_nothing_is_left_on_the_window(tab: Tab, double: Double) -> None:
    names = "Object.getOwnPropertyNames(window).filter((name) => name !== 'heard')"
    bare = set(tab(auto=False, path="bare").evaluate(names))
    page = tab(box("feed:1"), path="full")
    wait_for(lambda: double.watching)
    assert set(page.evaluate(names)) <= bare | set(tab(auto=False, path="again").evaluate(names))


def test_without_auto_nothing_happens_before_connect(tab: Tab, double: Double) -> None:
    page = tab(box("feed:1"), auto=False)
    assert call(page, "return v.status()") == {"state": "closed", "code": None, "retryIn": None, "session": None, "shared": False}
    assert double.sockets == []
    call(page, "v.connect({ linger: 0 })")
    wait_for(lambda: double.watching == {"feed:1"})
    call(page, "v.connect()")
    call(page, "v.close()")
    expect_state(page, "closed")
    wait_for(lambda: not double.live)
    assert call(page, "return v.status()")["code"] == 1000
    call(page, "v.connect()")
    wait_for(lambda: double.watching == {"feed:1"})
    assert len(double.sockets) == 2
    assert call(page, "return v.status()")["session"] == "s2"


def test_a_callback_that_fails_harms_nobody_else_and_is_not_acknowledged(context: Any, tab: Tab, double: Double) -> None:
    page = tab()
    call(page, "v.watch('feed:1', () => { throw new Error('broken callback') })")
    watch(page, "feed:1")
    wait_for(lambda: double.watching)
    double.publish("feed:1", "one")
    wait_for(lambda: got(page, "feed:1") == ["one"])
    wait_for(lambda: context.errors == ["Error: broken callback"] or "broken callback" in str(context.errors))
    pings = len(double.live[0].said("ping"))
    wait_for(lambda: len(double.live[0].said("ping")) > pings + 1)
    assert double.live[0].acks == []
    context.errors.clear()


def test_acks_keep_to_the_servers_rate(tab: Tab, double: Double) -> None:
    double.hello["limits"]["frames_per_second"] = 40
    names = [f"item:{number}" for number in range(10)]
    for name in names:
        double.publish(name, 0)
    tab("".join(box(name) for name in names))
    wait_for(lambda: {name for name, _ in double.live[0].acks} == set(names))
    assert len(double.live[0].acks) == 10
