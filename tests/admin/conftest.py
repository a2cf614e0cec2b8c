"""Staff of different permissions, and a system with something of everything in it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from tests.insight.test_rollup import write
from tests.lanes import change, claim, pend, watch
from visibility import dirty, freshness
from visibility.insight import metrics, rollup, trail
from visibility.insight.histogram import bucket_of
from visibility.models import Event
from visibility.read import read
from visibility.soft import client as soft_client, sessions


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    metrics._buffer.take()
    soft_client.close()
    yield
    soft_client.close()


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """`staff("view_event", …)`: a logged-in browser of a member of staff with these permissions; "all" is a superuser."""
    made = 0

    def make(*permissions: str) -> Client:
        nonlocal made
        made += 1
        user = User.objects.create_user(f"staff{made}", password="pw", is_staff=True, is_superuser="all" in permissions)
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="visibility", codename__in=permissions))
        browser = Client()
        browser.force_login(user)
        return browser

    return make


@pytest.fixture
def root(staff: Callable[..., Client]) -> Client:
    return staff("all")


VIEWS = ("view_overview", "view_event", "view_dirtyflag", "view_scopemark", "view_freshnessslo")


@pytest.fixture
def reader(staff: Callable[..., Client]) -> Client:
    """May see everything and do nothing."""
    return staff(*VIEWS)


@pytest.fixture
def system(db: None) -> dict[str, Any]:
    """Something of everything: counts, events of each outcome, flags, marks, watchers, users, pending work, a claim."""
    freshness.sync_slos()
    for age in (0, 2, 30):
        write(
            age,
            {
                "gate_hot|counter|": 5,
                "gate_cold|counter|": 95,
                "gate_deduped|counter|": 3,
                "reads|counter|fresh": 9,
                "builds|counter|": 5,
                f"build_seconds|counter|~{bucket_of(0.02)}": 5,
                "build_seconds|counter|~s": 100_000,
                f"freshness_sent|counter|~{bucket_of(0.3)}": 20,
                f"freshness_sent|counter|~{bucket_of(9)}": 1,
            },
        )
    rollup.roll(everything=True)
    now = timezone.now()
    for n, outcome in enumerate(("done", "done", "failed", "ignored", "deferred", "")):
        Event.objects.create(
            source="model",
            data_type="counter",
            model="testapp.Counter",
            object_pk=str(n),
            action="saved",
            created_at=now,
            processed_at=now if outcome else None,
            outcome=outcome,
            decision={"counter": {"hot": 1, "cold": 2, "reasons": {"watched": 1, "hidden": 2}, "sample": ["a"]}}
            if outcome
            else None,
            error="KeyError: <b>x</b>" if outcome == "failed" else "",
            body={"keys": ["a"], "note": "<script>alert(1)</script>"},
            took_ms=1.5,
        )
    dirty.mark("counter", {"d1": 3, "d2": 1}, now - dt.timedelta(minutes=5))
    dirty.quarantine("counter", "q1", 5, "ValueError: <i>no</i>")
    dirty.mark_scopes("feed", {"author:7": 2})
    change("a", 1)
    watch("counter:a", "counter:w", member="7/tab1")
    watch("counter:a", member="8/tab2", kind="parked")
    sessions.attend("node1", "node1.1", [sessions.Attending("7", "tab1", "visible", ["counter:a"])])
    read("counter", "a")
    pend("counter:a", "counter:p1", "counter:p2")
    claim(limit=1)
    trail.note("counter:a", "built", version=7, seconds=0.1)
    metrics.flush()
    return {"event": Event.objects.filter(outcome="failed").get()}
