from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

from tests.lanes import pend, watch
from tests.support import need
from visibility.insight import metrics
from visibility.insight.catalogue import CATALOGUE, COUNTER, SECONDS
from visibility.models import FreshnessSLO
from visibility.soft import client

need("prometheus")
from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from visibility.contrib import prometheus  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    metrics._buffer.take()
    client.close()
    yield
    client.close()


def scrape(**options: Any) -> dict[str, Any]:
    registry = CollectorRegistry(auto_describe=False)
    prometheus.register(registry, **options)
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    for family in families.values():
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    raise AssertionError(f"no sample {name} {labels}")


def test_counts_and_durations_come_as_they_were_counted() -> None:
    metrics.count("gate_hot", 3, data_type="feed")
    metrics.count("reads", 2, data_type="feed", label="stale")
    for seconds in (0.02, 0.02, 0.3, 40):
        metrics.observe("build_seconds", seconds, data_type="feed")
    metrics.observe("lock_seconds", 0.2, data_type="hot")
    metrics.count("claims_lost", 4, label="hot")
    metrics.flush()
    families = scrape()
    assert value(families, "visibility_gate_hot_total", data_type="feed", result="") == 3
    assert value(families, "visibility_reads_total", data_type="feed", result="stale") == 2
    assert value(families, "visibility_build_seconds_count", data_type="feed") == 4
    assert value(families, "visibility_build_seconds_sum", data_type="feed") == pytest.approx(40.34)
    assert value(families, "visibility_lock_seconds_count", lane="hot") == 1
    assert value(families, "visibility_claims_lost_total", lane="hot") == 4
    buckets = {float(s.labels["le"]): s.value for s in families["visibility_build_seconds"].samples if s.name.endswith("_bucket")}
    below = {edge: n for edge, n in buckets.items() if n == 2}
    assert min(below) == pytest.approx(0.025, rel=0.06)
    assert buckets[float("inf")] == 4
    assert list(buckets.values()) == sorted(buckets.values())


def test_gauges_say_how_it_stands() -> None:
    watch("counter:a", "counter:b")
    pend("counter:a", "counter:b", "counter:c")
    FreshnessSLO.objects.create(data_type="counter", seconds=2, objective=0.9)
    metrics.observe("freshness_sent", 0.5, data_type="counter", n=9)
    metrics.observe("freshness_sent", 50, data_type="counter")
    metrics.flush()
    families = scrape()
    assert value(families, "visibility_visible_resources", data_type="counter") == 2
    assert value(families, "visibility_lane_pending", lane="hot") == 3
    assert value(families, "visibility_lane_stage", lane="hot") == 0
    assert value(families, "visibility_up", part="redis") == value(families, "visibility_up", part="database") == 1
    assert value(families, "visibility_slo_attained", data_type="counter") == pytest.approx(0.9)
    assert value(families, "visibility_slo_budget_left", data_type="counter") == pytest.approx(0, abs=1e-6)


def test_redis_away_is_a_figure_and_not_an_error(settings: Any) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
    families = scrape()
    assert value(families, "visibility_up", part="redis") == 0
    assert value(families, "visibility_up", part="database") == 1


def test_M1_the_labels_are_data_type_result_and_lane_and_their_values_are_few() -> None:
    watch("counter:secret-key", member="user77/tab")
    pend("counter:secret-key")
    for name, metric in CATALOGUE.items():
        for kind in ("feed", "counter"):
            if metric.kind == COUNTER:
                metrics.count(name, data_type=kind, label="stale")
                metrics.count(name, data_type=kind, label="counter:secret-key")
            else:
                metrics.observe(name, 1, data_type=kind)
    metrics.count("reads", data_type="counter:secret-key", label="user77")
    metrics.flush()
    families = scrape()
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert labels <= {"data_type", "result", "lane", "le", "part"}
    assert "secret-key" not in "".join(str(family.samples) for family in families.values())
    for family in families.values():
        series = [tuple(sorted((k, v) for k, v in s.labels.items() if k != "le")) for s in family.samples]
        assert len(set(series)) <= 40, family.name


@pytest.mark.slow
def test_M3_a_scrape_after_200_restarts_is_fast_and_the_counts_are_whole(redis: Any) -> None:
    code = (
        "import os, django; django.setup(); from visibility.insight import metrics\n"
        "for n in range(100):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        metrics.count('builds', 3, data_type='feed'); metrics.observe('build_seconds', 0.1, data_type='feed')\n"
        "        metrics.flush(); os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT)
    scrape()
    times = []
    for _ in range(3):
        started = time.perf_counter()
        families = scrape()
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1
    assert value(families, "visibility_builds_total", data_type="feed") == 600
    assert value(families, "visibility_build_seconds_count", data_type="feed") == 200
    assert len(redis.keys("*:m:*")) <= 3


def test_M2_a_scrape_scans_nothing(redis: Any) -> None:
    watch(*(f"counter:{n}" for n in range(2000)))
    redis.config_resetstat()
    scrape()
    used = set(redis.info("commandstats"))
    assert not {name for name in used if "scan" in name or name == "cmdstat_keys"}
    assert sum(one["calls"] for name, one in redis.info("commandstats").items() if name == "cmdstat_evalsha") < 60


def test_the_view_asks_for_its_token() -> None:
    view = prometheus.exposition(token="t0ken")
    get = RequestFactory().get
    assert view(get("/")).status_code == 401
    assert view(get("/", headers={"Authorization": "Bearer no"})).status_code == 401
    answer = view(get("/", headers={"Authorization": "Bearer t0ken"}))
    assert answer.status_code == 200
    assert b"visibility_up" in answer.content
    assert prometheus.exposition(token=None)(get("/")).status_code == 200


# --- the catalogue, the code and the page say the same -----------------------------------------------------------------


def _used() -> dict[str, set[str]]:
    """Metric names in the code, with how they are written: count or observe."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "visibility").rglob("*.py"):
        text = path.read_text()
        for how, name in re.findall(r"metrics\.(count|observe|observe_all)\(\s*\"(\w+)\"", text):
            found.setdefault(name, set()).add("count" if how == "count" else "observe")
    # Written through a variable: the two that a build chooses between.
    for name in ("freshness_built", "freshness_resolved"):
        found.setdefault(name, set()).add("observe")
    # The buffer's own.
    assert metrics.DROPPED[1].startswith("metrics_dropped|")
    return {**found, "metrics_dropped": {"count"}}


def test_every_metric_of_the_code_is_in_the_catalogue_and_the_other_way_round() -> None:
    used = _used()
    assert set(used) == set(CATALOGUE)
    for name, ways in used.items():
        assert ways == {"count" if CATALOGUE[name].kind == COUNTER else "observe"}, name


def test_the_page_has_the_catalogues_table() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(visibility_\w+)` \| ([^|]*) \|", text, re.M))
    wanted = {}
    for name, metric in CATALOGUE.items():
        unit = "_seconds" if metric.kind == SECONDS and not name.endswith("_seconds") else ""
        full = f"visibility_{name}_total" if metric.kind == COUNTER else f"visibility_{name}{unit}"
        wanted[full] = ", ".join(metric.labels) or "–"
    gauges = {name for name in rows if name not in wanted}
    assert {name: labels for name, labels in rows.items() if name in wanted} == wanted
    scraped = {family.name for family in scrape().values() if family.type == "gauge"}
    assert scraped - {"visibility_maintenance_age_seconds"} == gauges - {"visibility_maintenance_age_seconds"}
