from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from tests.admin.conftest import VIEWS
from tests.lanes import change, drain, look, watch
from visibility import dirty
from visibility.datatypes import registry
from visibility.models import DirtyFlag, Event, FreshnessSLO
from visibility.presence import watchers
from visibility.read import read
from visibility.soft import client as soft_client, leases, sessions

BASE = "/admin/visibility/"
FLAGS = BASE + "dirtyflag/"


def act(client: Client, name: str, *keys: str, confirmed: bool = True, url: str = FLAGS + "?state=all") -> Any:
    pks = [str(pk) for pk in DirtyFlag.objects.filter(key__in=keys).values_list("pk", flat=True)]
    data = {"action": name, "index": "0", "_selected_action": pks, **({"confirmed": "1"} if confirmed else {})}
    return client.post(url, data, follow=True)


def waits(resource: str) -> bool:
    """Whether a build of it has been asked for."""
    return look(resource).due_ms is not None


@pytest.fixture
def flags(db: None) -> None:
    change("a", 1)
    change("b", 2)
    dirty.mark("counter", {"a": 1, "b": 1})


@pytest.mark.usefixtures("flags")
class TestFlags:
    def test_nothing_is_done_before_the_answer(self, root: Client) -> None:
        answer = act(root, "rebuild", "a", confirmed=False)
        assert "Rebuild these resources?" in answer.content.decode()
        assert "counter:a" in answer.content.decode()
        assert not waits("counter:a")
        assert not LogEntry.objects.exists()

    def test_rebuild_builds_though_nobody_watches_and_can_be_repeated(self, root: Client) -> None:
        for _ in range(2):
            answer = act(root, "rebuild", "a", "b")
            assert "Asked to be rebuilt: 2 resources." in answer.content.decode()
        assert waits("counter:a")
        drain()
        assert read("counter", "a").data == {"value": 1}
        assert DirtyFlag.objects.get(key="a").first_at is None
        entries = LogEntry.objects.filter(object_repr="counter:a")
        assert entries.count() == 2
        assert "rebuilt" in entries[0].get_change_message()

    def test_discard_forgets_the_snapshot_and_clears_the_flag(self, root: Client) -> None:
        read("counter", "a")
        dirty.mark("counter", {"a": 1})
        act(root, "discard", "a")
        act(root, "discard", "a")
        assert DirtyFlag.objects.get(key="a").first_at is None
        assert look("counter:a").raw == b""
        assert read("counter", "a").state == "rebuilt"

    def test_discard_of_what_somebody_watches_builds_it_now(self, root: Client) -> None:
        watch("counter:a")
        act(root, "discard", "a")
        assert waits("counter:a")

    def test_release_lets_it_be_built_again(self, root: Client) -> None:
        dirty.quarantine("counter", "a", 5, "ValueError: no")
        act(root, "release", "a")
        flag = DirtyFlag.objects.get(key="a")
        assert flag.quarantined_at is None and flag.failures == 0
        drain()
        assert read("counter", "a").data == {"value": 1}

    def test_only_what_was_chosen_by_hand_is_taken(self, root: Client) -> None:
        pk = DirtyFlag.objects.get(key="a").pk
        data = {"action": "rebuild", "index": "0", "select_across": "1", "_selected_action": [str(pk)], "confirmed": "1"}
        root.post(FLAGS, data)
        assert waits("counter:a")
        assert not waits("counter:b")

    def test_a_flag_of_a_type_that_is_gone_is_passed_over(self, root: Client) -> None:
        dirty.mark("ghost", {"g": 1})
        answer = act(root, "rebuild", "g", url=FLAGS + "?state=all")
        assert answer.status_code == 200
        assert registry.find("ghost") is None

    def test_redis_away_is_said_and_nothing_is_cleared(self, root: Client, settings: Any) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
        answer = act(root, "discard", "a")
        assert "Redis does not answer" in answer.content.decode()
        soft_client.close()
        assert DirtyFlag.objects.get(key="a").first_at is not None

    @pytest.mark.parametrize(
        ("permission", "names"), [("change_dirtyflag", {"rebuild", "release"}), ("delete_dirtyflag", {"discard"})]
    )
    def test_permissions_decide_what_is_offered_and_done(
        self, staff: Callable[..., Client], permission: str, names: set[str]
    ) -> None:
        browser = staff("view_dirtyflag", permission)
        body = browser.get(FLAGS).content.decode()
        for name in ("rebuild", "release", "discard"):
            assert (f'value="{name}"' in body) == (name in names)
            act(browser, name, "a")
        assert waits("counter:a") == ("rebuild" in names)
        assert (DirtyFlag.objects.get(key="a").first_at is None) == ("discard" in names)


@pytest.mark.usefixtures("flags")
class TestInspector:
    URL = BASE + "overview/resource/?name=counter:a"

    def test_rebuild_asks_first_then_acts_and_is_logged(self, root: Client) -> None:
        assert "Rebuild it?" in root.post(self.URL, {"act": "rebuild"}).content.decode()
        assert not waits("counter:a")
        root.post(self.URL, {"act": "rebuild", "confirmed": "1"})
        assert waits("counter:a")
        entry = LogEntry.objects.get()
        assert entry.object_id == "counter:a"
        assert root.get(str(entry.get_admin_url())).status_code == 302

    def test_a_reader_may_not(self, reader: Client) -> None:
        for what in ("rebuild", "discard", "release"):
            assert reader.post(self.URL, {"act": what, "confirmed": "1"}).status_code == 403
        assert reader.post(self.URL, {"act": "explode"}).status_code == 404


@pytest.mark.usefixtures("db")
class TestDrop:
    URL = BASE + "overview/drop/"

    @pytest.fixture(autouse=True)
    def people(self, db: None) -> None:
        for user, sid, node in (("7", "s1", "n1"), ("7", "s2", "n2"), ("8", "s3", "n2")):
            sessions.attend(node, f"{node}.1", [sessions.Attending(user, sid, "visible", ["counter:a"])])
            watch("counter:a", member=f"{user}/{sid}")
        leases.renew([leases.Watch("counter:a", "hold/report", "hold", 60)])

    @pytest.mark.parametrize(
        ("what", "value", "left"),
        [("user", "7", 1), ("session", "s3", 2), ("node", "n2", 1), ("data_type", "counter", 0), ("resource", "counter:a", 0)],
    )
    def test_each_kind(self, root: Client, what: str, value: str, left: int) -> None:
        answer = root.post(self.URL, {"what": what, "value": value})
        assert "Drop these watches?" in answer.content.decode()
        assert watchers("counter:a").watching == 3
        for _ in range(2):
            answer = root.post(self.URL, {"what": what, "value": value, "confirmed": "1"}, follow=True)
            assert answer.status_code == 200
        assert watchers("counter:a").watching == left
        assert LogEntry.objects.count() == 2

    def test_nonsense_is_said(self, root: Client) -> None:
        for data in ({}, {"what": "user"}, {"what": "planet", "value": "x"}):
            assert "Say what to drop" in root.post(self.URL, data, follow=True).content.decode()
        answer = root.post(self.URL, {"what": "data_type", "value": "nothing", "confirmed": "1"}, follow=True)
        shown = [str(one) for one in answer.context["messages"]]
        assert any("no data type" in one for one in shown), shown
        assert root.get(self.URL).status_code == 302

    def test_it_takes_its_own_permission(self, staff: Callable[..., Client]) -> None:
        data = {"what": "user", "value": "7", "confirmed": "1"}
        assert staff(*VIEWS, "change_dirtyflag").post(self.URL, data).status_code == 403
        assert watchers("counter:a").watching == 3
        assert staff(*VIEWS, "drop_leases").post(self.URL, data).status_code == 302
        assert watchers("counter:a").watching == 1


@pytest.mark.usefixtures("system")
class TestEvents:
    def test_failed_ones_go_through_the_gate_again(self, root: Client, system: dict[str, Any]) -> None:
        done = Event.objects.filter(outcome="done").first()
        assert done is not None
        data = {"action": "again", "index": "0", "_selected_action": [str(system["event"].pk), str(done.pk)], "confirmed": "1"}
        answer = root.post(BASE + "event/", data, follow=True)
        assert "1 resource" in answer.content.decode() or answer.status_code == 200
        again = Event.objects.get(pk=system["event"].pk)
        assert (again.processed_at, again.outcome, again.attempts) == (None, "", 0)
        assert Event.objects.get(pk=done.pk).processed_at is not None

    def test_it_takes_the_permission_to_change(self, reader: Client, system: dict[str, Any]) -> None:
        data = {"action": "again", "index": "0", "_selected_action": [str(system["event"].pk)], "confirmed": "1"}
        reader.post(BASE + "event/", data)
        assert Event.objects.get(pk=system["event"].pk).outcome == "failed"


@pytest.mark.usefixtures("system")
class TestPromises:
    def test_an_edit_is_kept_and_can_be_given_up(self, root: Client) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        url = f"{BASE}freshnessslo/{slo.pk}/change/"
        root.post(url, {"seconds": "9", "objective": "0.95", "window": "86400"})
        slo.refresh_from_db()
        assert (slo.seconds, slo.objective, slo.edited) == (9, 0.95, True)
        root.get(BASE + "freshnessslo/")
        slo.refresh_from_db()
        assert slo.seconds == 9
        data = {"action": "follow_code", "index": "0", "_selected_action": [str(slo.pk)], "confirmed": "1"}
        root.post(BASE + "freshnessslo/", data)
        slo.refresh_from_db()
        assert (slo.seconds, slo.edited) == (2, False)

    def test_saving_without_a_change_is_no_edit(self, root: Client) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        root.post(f"{BASE}freshnessslo/{slo.pk}/change/", {"seconds": "2.0", "objective": "0.99", "window": "86400"})
        slo.refresh_from_db()
        assert not slo.edited

    @pytest.mark.parametrize(("field", "value"), [("seconds", "0"), ("objective", "1"), ("objective", "0"), ("window", "60")])
    def test_what_makes_no_sense_is_refused(self, root: Client, field: str, value: str) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        data = {"seconds": "2", "objective": "0.99", "window": "86400", field: value}
        answer = root.post(f"{BASE}freshnessslo/{slo.pk}/change/", data)
        assert answer.status_code == 200 and "errorlist" in answer.content.decode()
        slo.refresh_from_db()
        assert slo.edited is False

    def test_a_reader_sees_and_does_not_edit(self, reader: Client) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        assert reader.post(f"{BASE}freshnessslo/{slo.pk}/change/", {"seconds": "9"}).status_code == 403
