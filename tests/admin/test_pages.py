from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from django.contrib.admin.sites import AdminSite
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.lanes import watch
from visibility import admin as own
from visibility.models import Event, FreshnessSLO
from visibility.soft import sessions

BASE = "/admin/visibility/"
PAGES = [
    "overview/",
    "overview/?range=hour",
    "overview/?range=month",
    "overview/?range=nonsense",
    "overview/watchers/",
    "overview/watchers/?type=counter",
    "overview/watchers/?type=nothing&offset=x",
    "overview/presence/",
    "overview/presence/?user=7",
    "overview/presence/?user=nobody",
    "overview/lanes/",
    "overview/lanes/?lane=hot&offset=1",
    "overview/diagnosis/",
    "overview/resource/",
    "overview/resource/?name=counter:a",
    "overview/resource/?name=counter:q1",
    "overview/resource/?name=nothing:1",
    "overview/resource/?name=no+colon",
    "freshnessslo/",
    "event/",
    "event/?outcome=failed",
    "event/?outcome=waiting",
    "event/?source=model&type=counter&age=60",
    "event/?age=x",
    "event/?q=3",
    "event/?q=00000000-0000-7000-8000-000000000000",
    "dirtyflag/",
    "dirtyflag/?state=all",
    "dirtyflag/?state=quarantined",
    "dirtyflag/?type=counter&q=counter:d1",
    "dirtyflag/?q=d1",
    "scopemark/",
    "scopemark/?type=feed",
    "scopemark/?q=author:7",
    "",
]
INLINE = re.compile(rb"<style|\sstyle=|\son\w+=\"|<script(?![^>]*\bsrc=)|javascript:", re.I)


@pytest.mark.usefixtures("system")
class TestEveryPage:
    @pytest.mark.parametrize("page", PAGES)
    def test_M2_it_answers_in_at_most_30_queries_without_a_scan_and_without_anything_inline(
        self, root: Client, redis: redis_py.Redis, page: str
    ) -> None:
        redis.config_resetstat()
        with CaptureQueriesContext(connection) as queries:
            answer = root.get(BASE + page)
        assert answer.status_code == 200
        assert len(queries) <= 30
        assert not INLINE.findall(answer.content)
        used = set(redis.info("commandstats"))
        assert not {name for name in used if "scan" in name or name == "cmdstat_keys"}

    @pytest.mark.parametrize("page", PAGES)
    def test_redis_away_shows_what_the_database_has(self, root: Client, settings: Any, page: str) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
        answer = root.get(BASE + page)
        assert answer.status_code == 200

    @pytest.mark.parametrize("page", PAGES)
    def test_reading_is_all_that_a_reader_may(self, reader: Client, page: str) -> None:
        answer = reader.get(BASE + page)
        assert answer.status_code == 200
        body = re.sub(r'<form[^>]*id="logout-form".*?</form>', "", answer.content.decode(), flags=re.S)
        body = re.sub(r'<form[^>]*id="changelist-form"[^>]*method="post"', "", body)
        assert 'method="post"' not in body
        assert 'name="action"' not in body

    @pytest.mark.parametrize("page", [page for page in PAGES if page])
    def test_staff_without_permission_see_nothing(self, staff: Callable[..., Client], page: str) -> None:
        assert staff().get(BASE + page).status_code == 403

    @pytest.mark.parametrize("page", [page for page in PAGES if page])
    def test_strangers_are_sent_to_the_login(self, db: None, page: str) -> None:
        answer = Client().get(BASE + page)
        assert answer.status_code == 302 and "/login/" in answer["Location"]

    def test_texts_of_others_are_escaped(self, root: Client, system: dict[str, Any]) -> None:
        for page in (f"event/{system['event'].pk}/change/", "dirtyflag/?state=quarantined", "overview/resource/?name=counter:q1"):
            body = root.get(BASE + page).content
            assert b"<script>alert" not in body and b"<b>x</b>" not in body and b"<i>no</i>" not in body


def text_of(client: Client, page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", client.get(BASE + page).content.decode()))


@pytest.mark.usefixtures("system")
class TestWhatTheyShow:
    def test_the_overview(self, root: Client) -> None:
        text = text_of(root, "overview/")
        assert "In this span: hot 15" in text
        assert "cold 285" in text
        assert "Users online 1" in text
        assert "Visible resources 2" in text
        assert "✓ answers" in text

    def test_figures_stand_in_a_table_too(self, root: Client) -> None:
        body = root.get(BASE + "overview/").content.decode()
        assert body.count("<figure") == body.count("<figcaption")
        drawn = body.count("<svg viewBox")
        assert drawn and body.count('<caption class="visually-hidden">') >= drawn

    def test_the_inspector(self, root: Client) -> None:
        text = text_of(root, "overview/resource/?name=counter:a")
        assert "Hot because 1 tab watches it" in text
        assert "user 7" in text
        assert "Version 7 built in 0.100 s" in text
        assert "watched × 1, hidden × 2" in text or "hidden × 2, watched × 1" in text

    def test_the_quarantine(self, root: Client) -> None:
        text = text_of(root, "dirtyflag/?state=quarantined")
        assert "counter:q1" in text and "counter:d1" not in text
        assert "✗ in quarantine" in text

    def test_dirty_flags_leave_clean_ones_out(self, root: Client) -> None:
        text = text_of(root, "dirtyflag/")
        assert "counter:d1" in text and "counter:d2" in text

    def test_events_with_the_gates_reasons(self, root: Client) -> None:
        text = text_of(root, "event/")
        assert "counter: hot 1, cold 2" in text
        assert "hidden × 2, watched × 1" in text
        assert "✗ failed" in text

    def test_a_page_of_one_event(self, root: Client, system: dict[str, Any]) -> None:
        text = text_of(root, f"event/{system['event'].pk}/change/")
        assert "KeyError" in text and "View event" in text

    def test_lanes_and_locks(self, root: Client) -> None:
        text = text_of(root, "overview/lanes/")
        assert "counter:p1" in text or "counter:p2" in text
        assert "✓ ends in" in text
        assert "✗ nobody listens" in text

    def test_watchers(self, root: Client) -> None:
        text = text_of(root, "overview/watchers/?type=counter")
        assert re.search(r"counter:a 1 1 0", text)
        assert "2 in all" in text

    def test_presence(self, root: Client) -> None:
        text = text_of(root, "overview/presence/")
        assert "tab1 on node1, in front" in text

    def test_diagnosis(self, root: Client) -> None:
        text = text_of(root, "overview/diagnosis/")
        assert "No maintenance loop runs" in text and "What to do:" in text

    def test_a_promise_with_its_history(self, root: Client) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        for chosen in ("hour", "day", "month"):
            answer = root.get(f"{BASE}freshnessslo/{slo.pk}/change/?range={chosen}")
            assert answer.status_code == 200
            assert not INLINE.findall(answer.content)
        text = text_of(root, f"freshnessslo/{slo.pk}/change/")
        assert "63 updates, 3 late" in text
        assert "Burn rates" in text

    def test_a_flags_own_page_is_its_resources(self, root: Client) -> None:
        from visibility.models import DirtyFlag

        flag = DirtyFlag.objects.get(key="d1")
        answer = root.get(f"{BASE}dirtyflag/{flag.pk}/change/")
        assert answer.status_code == 302 and "name=counter%3Ad1" in answer["Location"]

    def test_pages_of_watchers_are_bounded_and_lead_on(self, root: Client) -> None:
        watch(*(f"counter:x{n}" for n in range(120)))
        body = root.get(BASE + "overview/watchers/?type=counter").content.decode()
        assert body.count('class="vis-resource"') == 50
        assert "offset=50" in body
        last = root.get(BASE + "overview/watchers/?type=counter&offset=100").content.decode()
        assert last.count('class="vis-resource"') == 22
        assert "offset=50" in last and "offset=150" not in last

    def test_pages_of_users_are_bounded(self, root: Client) -> None:
        sessions.attend("n", "n.1", [sessions.Attending(f"u{n}", f"s{n}", "visible", []) for n in range(60)])
        body = root.get(BASE + "overview/presence/").content.decode()
        assert body.count("<code>") == 50
        assert "offset=50" in body


class TestTexts:
    def test_every_label_is_translated_by_the_active_language(self, system: Any, root: Client, settings: Any) -> None:
        # No catalogue is needed to see that nothing breaks in a locale with another decimal sign.
        settings.LANGUAGE_CODE = "de"
        settings.USE_THOUSAND_SEPARATOR = True
        body = root.get(BASE + "overview/").content.decode()
        for attribute in re.findall(r' (?:x|y|x1|y1|width|height|d)="([^"]*)"', body):
            assert "," not in attribute


class TestSites:
    def test_it_registers_with_a_site_of_ones_own(self) -> None:
        site = AdminSite("other")
        own.register(site)
        assert all(site.is_registered(model) for model in own.MODELS)
        site.unregister(own.MODELS)

    def test_the_app_index_lists_the_pages(self, root: Client) -> None:
        text = text_of(root, "")
        for name in ("Overview", "Freshness SLOs", "Processed events", "Dirty flags", "Scope marks"):
            assert name in text

    def test_nothing_can_be_added_or_deleted(self, system: Any, root: Client) -> None:
        event = Event.objects.first()
        assert event is not None
        for page in ("event/add/", "dirtyflag/add/", "scopemark/add/", "freshnessslo/add/", f"event/{event.pk}/delete/"):
            assert root.get(BASE + page).status_code == 403
