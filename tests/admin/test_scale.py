"""M2: at 1,000,000 events, 200,000 flags and 100,000 watched resources every page takes less than a second and 30 queries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.insight.test_rollup import write
from visibility import freshness
from visibility.doctor import examine
from visibility.explain import explain
from visibility.insight import rollup
from visibility.insight.histogram import bucket_of
from visibility.soft import leases, sessions

EVENTS, FLAGS, WATCHED, USERS = 1_000_000, 200_000, 100_000, 20_000
PAGES = [
    "overview/",
    "overview/?range=month",
    "overview/watchers/?type=counter",
    "overview/watchers/?type=counter&offset=99950",
    "overview/presence/",
    "overview/presence/?offset=19950",
    "overview/lanes/",
    "overview/diagnosis/",
    "overview/resource/?name=counter:50000",
    "freshnessslo/",
    "event/",
    "event/?p=200",
    "event/?outcome=failed",
    "event/?outcome=waiting",
    "event/?source=emit",
    "event/?type=counter",
    "event/?type=price",
    "event/?age=10080",
    "event/?q=999999",
    "event/?q=nothing",
    "dirtyflag/",
    "dirtyflag/?p=100",
    "dirtyflag/?state=all",
    "dirtyflag/?state=quarantined",
    "dirtyflag/?type=counter",
    "dirtyflag/?type=price",
    "dirtyflag/?q=counter:777",
    "dirtyflag/?q=777",
    "scopemark/",
    "scopemark/?type=feed",
    "scopemark/?q=author:7",
]


EVENT_ROWS = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %s)
    INSERT INTO visibility_event (id, source, data_type, model, object_pk, action, "using", tenant, created_at, processed_at,
        outcome, attempts, decision, error, took_ms)
    SELECT printf('%%012x7000%%016x', %s + i * 500, 9223372036854775807 - 1000000 + i),
        CASE WHEN i %% 50 = 0 THEN 'emit' ELSE 'model' END, CASE WHEN i %% 3 = 0 THEN 'counter' ELSE 'feed' END,
        'testapp.post', CAST(i AS text), 'saved', 'default', '', datetime((%s + i * 500) / 1000, 'unixepoch'),
        datetime((%s + i * 500) / 1000, 'unixepoch'), CASE WHEN i %% 90000 = 0 THEN 'failed' ELSE 'done' END, 1,
        '{"feed": {"hot": 1, "cold": 40, "reasons": {"visible": 1, "hidden": 40}}}', '', 1.25
    FROM n"""
FLAG_ROWS = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %s)
    INSERT INTO visibility_dirtyflag (data_type, "key", mark, changes, last_at, first_at, failures, last_error, quarantined_at)
    SELECT 'counter', CAST(i AS text), i, 1, %s, CASE WHEN i %% 2 = 0 THEN %s END, 0, '', CASE WHEN i %% 9000 = 0 THEN %s END
    FROM n"""
MARK_ROWS = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %s)
    INSERT INTO visibility_scopemark (data_type, scope, mark, changes, last_at)
    SELECT 'feed', 'author:' || i, i, 1, %s FROM n"""


def fill() -> None:
    """Rows by one statement each: what matters is how many there are."""
    now = timezone.now()
    start = int(now.timestamp() * 1000) - EVENTS * 500
    with connection.cursor() as cursor:
        cursor.execute(EVENT_ROWS, [EVENTS, start, start, start])
        cursor.execute(FLAG_ROWS, [FLAGS, now, now, now])
        cursor.execute(MARK_ROWS, [FLAGS, now])


def crowd() -> None:
    """Leases on 100,000 resources, 20,000 users online."""
    for start in range(0, WATCHED, 2_000):
        leases.renew([leases.Watch(f"counter:{n}", f"{n % USERS}/tab", "watch", 3_600) for n in range(start, start + 2_000)])
    for start in range(0, USERS, 1_000):
        sessions.attend("node", "node.1", [sessions.Attending(str(n), f"s{n}", "visible") for n in range(start, start + 1_000)])
    for age in (0, 2):
        write(age, {"gate_hot|counter|": 5, f"freshness_sent|counter|~{bucket_of(0.3)}": 20})


def took(act: Callable[[], object], limit: float) -> float:
    """Seconds of the fastest of some runs, until one is below the limit: the machine may have others on it."""
    times: list[float] = []
    while len(times) < 4 and (not times or min(times) >= limit):
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return min(times)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(
    settings.DATABASES["default"]["ENGINE"] != "django.db.backends.sqlite3", reason="rows are made in SQLite's SQL"
)
def test_M2_every_page_takes_less_than_a_second_and_30_queries(redis: redis_py.Redis, root: Client) -> None:
    fill()
    crowd()
    freshness.sync_slos()
    rollup.roll(everything=True)
    redis.config_resetstat()
    slow: dict[str, Any] = {}
    for page in PAGES:
        with CaptureQueriesContext(connection) as queries:
            root.get("/admin/visibility/" + page)
        # The next request empties the log of queries.
        made = queries.captured_queries
        assert len(made) <= 30, page
        seconds = took(lambda page=page: root.get("/admin/visibility/" + page), 1)
        if seconds >= 1:
            worst = max(made, key=lambda one: float(one["time"]), default={"time": "0", "sql": ""})
            slow[page] = (round(seconds, 2), worst["time"], worst["sql"][:300])
    for name, act, limit in (
        ("doctor", examine, 3.0),
        ("explain", lambda: explain("counter:50000"), 0.5),
        ("report", freshness.report, 0.5),
    ):
        if (seconds := took(act, limit)) >= limit:
            slow[name] = round(seconds, 2)
    assert not slow
    used = set(redis.info("commandstats"))
    assert not {name for name in used if "scan" in name or name == "cmdstat_keys"}
