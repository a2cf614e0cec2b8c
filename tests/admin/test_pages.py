from __future__ import annotations

import os
import re
from collections.abc import Callable
from socket import gethostname
from typing import Any

import pytest
import redis as redis_py
from django.contrib.admin.models import LogEntry
from django.contrib.admin.sites import AdminSite
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.app.models import Follow
from tests.insight.test_rollup import write
from tests.lanes import watch
from tests.support.declared import waiting
from visibility import admin as own, dirty
from visibility.admin import dashboard, events
from visibility.explain import explain
from visibility.insight import metrics
from visibility.insight.histogram import bucket_of
from visibility.models import Event, FreshnessSLO, Rollup
from visibility.soft import sessions
from visibility.soft.locks import lock

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
        assert "marked 285" in text
        assert "Users online 1" in text
        assert "Visible resources 2" in text
        assert "✓ answers" in text

    def test_tiles_charts_and_account_of_the_overview_tell_one_story(self, root: Client) -> None:
        write(0, {"gate_hot|feed|": 4, "gate_cold|feed|": 20, "saved_builds|feed|": 2, "gate_dropped|price|": 1000})
        write(0, {f"freshness_resolved|feed|~{bucket_of(60)}": 7, "builds|feed|": 5, "build_seconds|feed|~s": 500_000})
        for chosen in ("hour", "day", "month"):
            found = dashboard.overview(chosen)
            whole = found.account
            # Of the system: 285 marked and 9 merged of counter; what price dropped is no saving.
            assert (whole.hot, whole.marked, whole.merged, whole.dropped) == (19, 305, 9, 1000)
            assert whole.saved == 305 + 9 + 2 - 7 == sum(line.account.saved for line in found.types)
            text = text_of(root, f"overview/?range={chosen}")
            assert "Builds saved 309 " in text
            assert "19 of 1 324: somebody watched" in text.replace("\u202f", " ")
            charts = {chart.slug: chart for chart in found.charts}
            drawn = {one.name: sum(value or 0 for value in one.values) for one in charts["saved"].series}
            assert drawn == {"merged": 9, "marked": 305, "put off": 2}
            assert charts["saved"].summary.endswith("Of the marked, 7 were built later: 309 builds saved.")
            assert sum(sum(value or 0 for value in one.values) for one in charts["changes"].series) == whole.changes

    def test_nothing_is_claimed_where_nothing_was_built(self, root: Client, redis: redis_py.Redis) -> None:
        redis.flushall()
        Rollup.objects.all().delete()
        write(0, {"gate_dropped|price|": 40})
        text = text_of(root, "overview/?range=hour")
        assert "Builds saved 0" in text and "Worker time saved – " in text and "0 ms" not in text

    def test_figures_stand_in_a_table_too(self, root: Client) -> None:
        body = root.get(BASE + "overview/").content.decode()
        assert body.count("<figure") == body.count("<figcaption")
        drawn = body.count("<svg viewBox")
        assert drawn and body.count('<caption class="visually-hidden">') >= drawn

    def test_the_inspector(self, root: Client) -> None:
        text = text_of(root, "overview/resource/?name=counter:a")
        assert "Hot because 1 tab watches it" in text
        assert "user 7" in text
        assert "Version 7 built in 100 ms" in text
        assert "watched × 1, hidden × 2" in text or "hidden × 2, watched × 1" in text

    def test_one_snapshot_has_one_time_and_one_figure(self, root: Client) -> None:
        metrics.flush()
        body = root.get(BASE + "overview/resource/?name=counter:a").content.decode()
        found = explain("counter:a")["snapshot"]
        assert found is not None
        card = re.search(r"<dt>built</dt><dd>(<time.*?</time>)</dd>.*?<dt>took</dt><dd>([^<]+)</dd>", body, re.S)
        assert card is not None
        told = rf"Version {found['version']} built in (.*?)</span>"
        line = rf"{re.escape(card[1])}</span> <span class=\"vis-kind\">built</span> <span>{told}"
        assert re.findall(line, body) == [card[2].replace("\u00a0", " ")]

    def test_a_change_marked_by_scope_says_so(self, root: Client, make_user: Any) -> None:
        user = make_user()
        Follow.objects.bulk_create([Follow(follower=user, author=user)])
        dirty.mark_scopes("feed", {f"author:{user.pk}": 1})
        Event.objects.create(
            source="model",
            data_type="feed",
            model="testapp.Post",
            action="saved",
            created_at=timezone.now(),
            outcome="done",
            decision={"feed": {"hot": 0, "cold": 1, "reasons": {"scope": 1}}},
            body={"audience": {"feed": [{"scope": f"author:{user.pk}"}]}},
        )
        text = text_of(root, f"overview/resource/?name=feed:{user.pk}")
        assert f"by its scope author:{user.pk} " in text
        for page in (f"overview/resource/?name=feed:{user.pk}", "overview/", "event/"):
            assert "hot 0, 1 scope mark" in text_of(root, page)

    def test_few_samples_are_called_so(self, root: Client, redis: redis_py.Redis) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        pages = ("overview/", "freshnessslo/", f"freshnessslo/{slo.pk}/change/")
        for page in pages[:2]:
            assert "few samples" not in text_of(root, page)
        redis.flushall()
        Rollup.objects.all().delete()
        write(1, {f"freshness_sent|counter|~{bucket_of(0.3)}": 5})
        for page in pages:
            assert "few samples" in text_of(root, page)
        assert "few samples (5), median" in text_of(root, pages[-1])

    def test_pages_open_on_the_last_hour(self, root: Client) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        for page in ("overview/", f"freshnessslo/{slo.pk}/change/"):
            assert 'aria-current="true">Hour<' in root.get(BASE + page).content.decode()

    def test_a_single_measure_is_drawn_as_a_dot(self, root: Client) -> None:
        body = root.get(BASE + "overview/?range=hour").content.decode()
        assert re.search(r'class="vis-line vis-line-p50 vis-dot" d="M[\d.]+ [\d.]+h0.01', body)

    def test_freshness_promises_have_one_name(self, root: Client) -> None:
        slo = FreshnessSLO.objects.get(data_type="counter")
        for page in ("", "overview/", "freshnessslo/", f"freshnessslo/{slo.pk}/change/"):
            text = text_of(root, page)
            assert "Freshness promises" in text and "SLO" not in text

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

    def test_a_long_name_is_cut_in_a_list_and_whole_in_its_title(self, root: Client) -> None:
        Event.objects.filter(outcome="done").update(object_pk="0123456789" * 3)
        body = root.get(BASE + "event/?outcome=done").content.decode()
        assert f'<span title="testapp.Counter saved {"0123456789" * 3}">testapp.Counter saved 012345678901…</span>' in body

    def test_an_event_shows_the_decision_on_its_own_types(self, root: Client, system: dict[str, Any]) -> None:
        shown = {"hot": 1, "cold": 0, "reasons": {}}
        hidden = {"hot": 0, "cold": 778_899, "reasons": {"hidden": 778_899}}
        Event.objects.filter(pk=system["event"].pk).update(decision={"counter": shown, "feed": hidden})
        for page in ("event/?outcome=failed", f"event/{system['event'].pk}/change/"):
            assert "778899" not in text_of(root, page).replace(",", "")

    def test_what_the_list_leaves_out_is_said_and_ids_are_found_in_the_whole_log(
        self, root: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "NEWEST", 3)
        oldest = Event.objects.order_by("pk")[0]
        Event.objects.filter(pk=oldest.pk).update(external_id="order-1", object_pk="first")
        assert "looks through" not in text_of(root, "event/")
        assert "looks through the newest 3 events only, back to" in text_of(root, "event/?q=first")
        assert root.get(BASE + "event/?q=first").context["cl"].result_list.count() == 0
        for term in ("order-1", str(oldest.pk)):
            assert "looks through" not in text_of(root, f"event/?q={term}")
            assert list(root.get(BASE + f"event/?q={term}").context["cl"].result_list) == [oldest]

    def test_a_page_of_one_event(self, root: Client, system: dict[str, Any]) -> None:
        text = text_of(root, f"event/{system['event'].pk}/change/")
        assert "KeyError" in text and "View event" in text

    def test_lanes_and_locks(self, root: Client) -> None:
        text = text_of(root, "overview/lanes/")
        assert "counter:p1" in text or "counter:p2" in text
        assert "✓ ends in" in text
        assert "✗ nobody listens" in text
        assert "No lock is held." in text

    def test_named_locks_with_their_owners_and_ages(self, root: Client, redis: redis_py.Redis) -> None:
        with lock("report:7", 30), lock("died", 30), lock("endless", 30):
            redis.delete("{vis:0}:lock:died")
            redis.zincrby("{vis:0}:locks", -35_000, "died")
            redis.persist("{vis:0}:lock:endless")
            text = text_of(root, "overview/lanes/")
        here = f"{gethostname()}:{os.getpid()}"
        assert re.search(rf"report:7 {here} \d+ ms ✓ ends in (29|30).s", text)
        assert re.search(r"died – – ! ended unreleased .* ago", text)
        assert re.search(rf"endless {here} .* ✗ never ends", text)

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

    @pytest.mark.parametrize(
        "page", ["overview/presence/?offset=²", "overview/presence/?user=%00", "dirtyflag/?type=%00", "event/?type=%00"]
    )
    def test_an_address_that_makes_no_sense_is_no_error(self, root: Client, page: str) -> None:
        assert root.get(f"/admin/visibility/{page}").status_code == 200

    @pytest.mark.parametrize("name", ["counter:a%00b", "counter:" + "k" * 201, "nosuch:1", "counter"])
    def test_nothing_is_done_to_what_is_no_resource(self, root: Client, name: str) -> None:
        for act in ("rebuild", "release", "discard"):
            page = root.post(f"/admin/visibility/overview/resource/?name={name}", {"act": act, "confirmed": "1"}, follow=True)
            assert "resource" in page.content.decode() or "data type" in page.content.decode()
        assert not LogEntry.objects.exists()
        assert "k" * 201 not in waiting("counter")

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
        for name in ("Overview", "Freshness promises", "Processed events", "Dirty flags", "Scope marks"):
            assert name in text

    def test_nothing_can_be_added_or_deleted(self, system: Any, root: Client) -> None:
        event = Event.objects.first()
        assert event is not None
        for page in ("event/add/", "dirtyflag/add/", "scopemark/add/", "freshnessslo/add/", f"event/{event.pk}/delete/"):
            assert root.get(BASE + page).status_code == 403
