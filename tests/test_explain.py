from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from django.utils import timezone, translation

from tests.app.models import Follow, Post
from tests.lanes import change, claim, drain, pend, watch
from tests.support import wait_for
from visibility import dirty
from visibility.events.external import emit
from visibility.exceptions import BadResource, UnknownDataType
from visibility.explain import Explanation, aexplain, explain, iso
from visibility.insight import metrics, reasons
from visibility.insight.happenings import decided
from visibility.models import Event
from visibility.read import read
from visibility.soft import client, leases


def said(found: Explanation) -> str:
    return " ".join(found["why"])


@pytest.mark.django_db
class TestHotAndCold:
    def test_cold_because_nobody_watches(self) -> None:
        found = explain("counter:a")
        assert found["state"] == "cold"
        assert "nobody watches or holds it" in said(found)
        assert "no snapshot" in said(found)
        assert found["leases"]["watch"] == found["leases"]["hold"] == 0
        assert found["snapshot"] is found["pending"] is found["lock"] is None

    def test_hot_because_tabs_watch_it(self) -> None:
        for n in range(3):
            watch("counter:a", member=f"7/tab{n}")
        found = explain("counter:a")
        assert found["state"] == "hot"
        assert "Hot because 3 tabs watch it" in said(found)
        assert found["leases"]["watch"] == 3
        assert found["leases"]["members"][0] == {"kind": "watch", "user": "7", "session": "tab0", "holder": ""}
        assert 50 < found["visible_for"] <= 60

    def test_hot_because_of_a_holder(self) -> None:
        leases.renew([leases.Watch("counter:a", "hold/report", "hold", 60)])
        found = explain("counter:a")
        assert "1 holder keeps it" in said(found)
        assert found["leases"]["members"] == [{"kind": "hold", "user": "", "session": "", "holder": "report"}]

    def test_it_lingers_after_the_last_one_left(self) -> None:
        watch("counter:a")
        leases.release([("counter:a", "1/tab", "watch")])
        found = explain("counter:a")
        assert found["state"] == "hot"
        assert "the last watcher has just left" in said(found)

    def test_parked_tabs_do_not_count(self) -> None:
        watch("counter:a", kind="parked")
        found = explain("counter:a")
        assert found["state"] == "cold"
        assert "1 hidden tab is parked" in said(found)

    def test_what_a_change_does_to_it_is_told_by_its_type(self) -> None:
        assert "only marked" in said(explain("feed:1"))
        assert "counted by kind" in said(explain("badge:1"))
        assert "dropped" in said(explain("price:x"))

    def test_members_are_bounded(self) -> None:
        watch("counter:a")
        leases.renew([leases.Watch("counter:a", f"{n}/tab", "watch", 60) for n in range(2, 102)])
        found = explain("counter:a")
        assert found["leases"]["watch"] == 101
        assert len(found["leases"]["members"]) == 20


@pytest.mark.django_db
class TestWork:
    def test_it_waits_and_then_somebody_builds_it(self) -> None:
        watch("counter:a")
        pend("counter:a", since=None)
        found = explain("counter:a")
        assert found["pending"] is not None and found["lock"] is None
        assert "waits for a recompute" in said(found)
        claim()
        found = explain("counter:a")
        assert found["lock"] is not None and found["pending"] is None
        assert found["lock"]["owner"] and 0 <= (found["lock"]["age"] or 0) < 5 < found["lock"]["left"]
        assert "A build runs" in said(found)

    def test_nobody_took_it(self, redis: redis_py.Redis) -> None:
        watch("counter:a")
        pend("counter:a")
        redis.zincrby("{vis:0}:pending:hot", -20_000, "counter:a")
        assert "no worker took it: run visibility_doctor" in said(explain("counter:a"))

    def test_an_owner_that_died(self, redis: redis_py.Redis) -> None:
        pend("counter:a")
        claim()
        redis.zincrby("{vis:0}:claimed:hot", -60_000, "counter:a")
        assert "ended" in said(explain("counter:a"))
        assert "next drain takes it over" in said(explain("counter:a"))

    def test_workers_that_died_at_it(self, redis: redis_py.Redis) -> None:
        pend("counter:a")
        for _ in range(3):
            claim()
            redis.zincrby("{vis:0}:claimed:hot", -60_000, "counter:a")
        claim()
        found = explain("counter:a")
        assert found["failures"]["workers_lost"] == 3
        assert "3 workers in a row died or hung while building it" in said(found)
        drain()
        redis.zincrby("{vis:0}:claimed:hot", -60_000, "counter:a")
        drain()
        assert explain("counter:a")["failures"]["workers_lost"] == 0

    def test_a_build_that_fails_and_the_quarantine(self) -> None:
        dirty.quarantine("counter", "a", 5, "ValueError: no")
        found = explain("counter:a")
        assert "in quarantine after 5 failed builds (ValueError: no)" in said(found)
        assert found["failures"]["quarantined_at"]
        assert [one["kind"] for one in found["timeline"]] == ["failed", "marked"] or "failed" in [
            one["kind"] for one in found["timeline"]
        ]


@pytest.mark.django_db
class TestSnapshot:
    def test_current_and_trusted(self) -> None:
        change("a", 1)
        watch("counter:a")
        read("counter", "a")
        read("counter", "a")
        found = explain("counter:a")
        assert found["snapshot"] is not None
        assert found["snapshot"]["current"] and found["snapshot"]["trusted"]
        assert found["snapshot"]["size"] == len(b'{"value":1}')
        assert "served without asking the database" in said(found)

    def test_behind_the_marks(self) -> None:
        change("a", 1)
        read("counter", "a")
        dirty.mark("counter", {"a": 4})
        found = explain("counter:a")
        assert found["snapshot"] is not None and not found["snapshot"]["current"]
        assert found["missed"] == 4
        assert "misses 4 changes" in said(found)
        assert "dirty flag stands since" in said(found)

    def test_what_it_shows_is_no_older_than_a_scope_change_that_its_build_saw(self, make_user: Any) -> None:
        reader, author = make_user(), make_user()
        Follow.objects.bulk_create([Follow(follower=reader, author=author)])
        now = timezone.now()
        old, new = now - timedelta(hours=2), now - timedelta(hours=1)
        name, scope = f"feed:{reader.pk}", f"author:{author.pk}"

        def shown() -> str | None:
            found = explain(name)["snapshot"]
            assert found is not None
            return found["event_at"]

        dirty.mark("feed", {str(reader.pk): 1}, old)
        dirty.mark_scopes("feed", {scope: 1}, new)
        read("feed", str(reader.pk))
        assert shown() == iso(new)
        # Unread since: the mark's only time is that of a change which is not shown.
        dirty.mark_scopes("feed", {scope: 1}, now)
        assert shown() is None
        dirty.mark("feed", {str(reader.pk): 1}, now + timedelta(minutes=1))
        read("feed", str(reader.pk))
        assert shown() == iso(now + timedelta(minutes=1))

    def test_scopes_are_named_the_newest_first(self, make_user: Any) -> None:
        reader, authors = make_user(), [make_user() for _ in range(3)]
        Follow.objects.bulk_create([Follow(follower=reader, author=author) for author in authors])
        for author in authors:
            dirty.mark_scopes("feed", {f"author:{author.pk}": 2})
        found = explain(f"feed:{reader.pk}")
        assert [one["scope"] for one in found["marks"]["scopes"]] == [f"author:{author.pk}" for author in reversed(authors)]
        assert found["marks"]["scopes"][0]["changes"] == 2


@pytest.mark.django_db(transaction=True)
def test_its_last_events_with_the_gates_reasons_and_a_time_line() -> None:
    watch("counter:a")
    emit("counter", ["a"])
    emit("counter", ["b"])
    found = wait_for(lambda: (f := explain("counter:a")) and f["events"] and f["events"][-1]["outcome"] == "done" and f)
    mine = [one for one in found["events"] if one["about"] == "resource"]
    assert len(mine) == 1
    assert mine[0]["hot"] == 1
    assert mine[0]["reasons"]
    others = [one for one in found["events"] if one["about"] == "type"]
    assert len(others) == 1
    drain()
    metrics.flush()
    kinds = [one["kind"] for one in explain("counter:a")["timeline"]]
    assert {"event", "built"} <= set(kinds)


@pytest.mark.django_db(transaction=True)
def test_an_event_whose_audience_is_a_query_is_known_by_its_sample(make_user: Any) -> None:
    reader, author = make_user(), make_user()
    Follow.objects.create(follower=reader, author=author)
    watch(f"feed:{reader.pk}")
    Post.objects.create(author=author, text="hi")
    found = wait_for(lambda: (f := explain(f"feed:{reader.pk}")) and any(e["hot"] for e in f["events"]) and f)
    assert next(one["model"].lower() for one in found["events"] if one["about"] == "resource") == "testapp.post"


@pytest.mark.django_db(transaction=True)
def test_changes_that_were_marked_by_scope_stand_in_the_time_line(make_user: Any) -> None:
    reader, author, stranger = make_user(), make_user(), make_user()
    Follow.objects.create(follower=reader, author=author)
    name = f"feed:{reader.pk}"
    read("feed", str(reader.pk))
    for who in (author, stranger):
        Post.objects.create(author=who, text="hi")
    found = wait_for(lambda: (f := explain(name)) and all(e["outcome"] == "done" for e in f["events"]) and f["missed"] == 1 and f)
    told = {(one["about"], one["scope"]) for one in found["events"] if one["model"].lower() == "testapp.post"}
    assert told == {("scope", f"author:{author.pk}"), ("type", "")}
    posts = [one["text"] for one in found["timeline"] if "Post" in one["text"]]
    assert len(posts) == 1
    assert posts[0].endswith(": hot 0, 1 scope mark")
    assert not any("in all" in one["text"] for one in found["timeline"])
    # Without the event, by the mark itself.
    Event.objects.all().delete()
    lines = [one for one in explain(name)["timeline"] if f"Scope author:{author.pk} marked" in one["text"]]
    assert [one["kind"] for one in lines] == ["marked"]


@pytest.mark.django_db(transaction=True)
def test_an_emitted_scope_is_known_by_the_resources_that_depend_on_it(make_user: Any) -> None:
    reader, author = make_user(), make_user()
    Follow.objects.create(follower=reader, author=author)
    emit("feed", scope=f"author:{author.pk}")
    wait_for(lambda: explain(f"feed:{reader.pk}")["marks"]["scopes"])
    emitted = [one for one in explain(f"feed:{reader.pk}")["events"] if one["source"] == "emit"]
    assert [(one["about"], one["scope"]) for one in emitted] == [("scope", f"author:{author.pk}")]
    assert [one["about"] for one in explain(f"feed:{author.pk}")["events"] if one["source"] == "emit"] == ["type"]


@pytest.mark.django_db(transaction=True)
def test_events_of_the_same_transaction_on_other_types_are_not_its_own(make_user: Any) -> None:
    reader, author = make_user(), make_user()
    Follow.objects.create(follower=reader, author=author)
    watch(f"feed:{reader.pk}", f"counter:{reader.pk}")
    with transaction.atomic():
        Post.objects.create(author=author, text="hi")
        emit("counter", [str(reader.pk)])
        emit("counter", ["other"])

    def mine(resource: str) -> list[tuple[str, str]]:
        found = explain(resource)["events"]
        return sorted((one["model"] or one["source"], one["about"]) for one in found if one["outcome"] == "done")

    counter = wait_for(lambda: (f := mine(f"counter:{reader.pk}")) and len(f) == 2 and f)
    assert counter == [("emit", "resource"), ("emit", "type")]
    assert [one for one in mine(f"feed:{reader.pk}") if "emit" in one] == []


@pytest.mark.django_db
class TestShape:
    def test_it_is_json_and_every_key_is_always_there(self) -> None:
        watch("counter:a")
        pend("counter:a")
        keys = set(Explanation.__annotations__)
        for name in ("counter:a", "feed:9", "price:x"):
            found = json.loads(json.dumps(explain(name)))
            assert set(found) == keys

    def test_queries_are_bounded(self, make_user: Any, django_assert_max_num_queries: Any) -> None:
        reader = make_user()
        author = make_user()
        Follow.objects.bulk_create([Follow(follower=reader, author=author)])
        Event.objects.create(
            source="model", data_type="feed", created_at=timezone.now(), body={"audience": {"feed": [{"scope": "author:1"}]}}
        )
        with django_assert_max_num_queries(8):
            explain(f"feed:{reader.pk}")

    def test_redis_away_leaves_the_databases_part(self, settings: Any) -> None:
        dirty.mark("counter", {"a": 2})
        client.close()
        settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
        try:
            found = explain("counter:a")
        finally:
            client.close()
        assert (found["state"], found["redis"]) == ("unknown", "away")
        assert found["marks"]["changes"] == 2
        assert "Redis does not answer" in said(found)

    @pytest.mark.parametrize(
        ("name", "error"), [("counter", BadResource), ("nothing:1", UnknownDataType), ("counter:a b", BadResource)]
    )
    def test_what_cannot_be_is_refused(self, name: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            explain(name)

    def test_the_longest_key_in_any_script(self) -> None:
        name = "counter:" + "ключ" * 50
        watch(name)
        assert explain(name)["state"] == "hot"

    def test_sentences_follow_the_language(self) -> None:
        with translation.override("en"):
            assert explain("counter:a")["why"]


async def test_the_asynchronous_twin(transactional_db: None) -> None:
    assert (await aexplain("counter:a"))["state"] == "cold"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (4.25, "4.2 s"),
        (59.9, "60 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (86_400 * 3 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert reasons.span(seconds) == text


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ({"hot": 1, "cold": 1, "reasons": {"watched": 1, "scope": 1}}, "hot 1, 1 scope mark"),
        ({"hot": 0, "cold": 5, "reasons": {"hidden": 3, "scope": 2}}, "hot 0, cold 3, 2 scope marks"),
        ({"hot": 1, "cold": 2, "reasons": {"hidden": 2}}, "hot 1, cold 2"),
        ({"hot": 0, "cold": 0}, "hot 0, cold 0"),
    ],
)
def test_a_scopes_mark_is_not_called_cold(verdict: dict[str, Any], text: str) -> None:
    assert decided(verdict) == text


@pytest.mark.django_db
class TestCommand:
    def test_in_words(self) -> None:
        watch("counter:a")
        dirty.mark("counter", {"a": 1})
        out = io.StringIO()
        call_command("visibility_explain", "counter:a", stdout=out, no_color=True)
        text = out.getvalue()
        assert text.startswith("counter:a: hot\n")
        assert "1 tab watches it" in text
        assert "time line" in text

    def test_as_json(self) -> None:
        out = io.StringIO()
        call_command("visibility_explain", "counter:a", json=True, stdout=out)
        assert json.loads(out.getvalue())["resource"] == "counter:a"

    def test_a_mistake_is_one_line(self) -> None:
        with pytest.raises(CommandError, match="no data type 'nothing'"):
            call_command("visibility_explain", "nothing:1")
