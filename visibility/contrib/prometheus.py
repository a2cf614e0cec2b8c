"""Prometheus: a collector over the counts in Redis. Needs `pip install django-visibility[prometheus]`.

Nothing is kept in the process, so a scrape says the same whichever process answers it, and restarts leave nothing behind.
Scrape one process only, or any one behind a load balancer. Counts begin anew when Redis is flushed, as a counter may::

    urlpatterns = [path("metrics/visibility", prometheus.exposition(token=os.environ["METRICS_TOKEN"]))]

or, beside the metrics of your own, `prometheus.register()`.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from visibility import freshness
from visibility.conf import settings
from visibility.datatypes import registry as data_types
from visibility.exceptions import RedisAway
from visibility.insight.catalogue import AMOUNTS, CATALOGUE, COUNTER
from visibility.insight.histogram import Histogram, bucket_of, upper
from visibility.insight.metrics import Figures
from visibility.soft import inspect, leases, levels, upkeep

STAGES = ("normal", "pressed", "flooded")
# Edges are those of our own buckets next to these, so that each counts whole buckets.
SECONDS = tuple(upper(bucket_of(edge)) for edge in (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60, 300, 3600, 86_400))
NUMBERS = tuple(upper(bucket_of(edge)) for edge in (1, 2, 5, 10, 25, 50, 100, 250, 1000, 10_000))


class VisibilityCollector(Collector):
    """Reads Redis at each scrape: one call for the counts, one a lane and data type for the gauges, and three queries.

    `database` False leaves the promises out, and with them the queries.
    """

    def __init__(self, *, database: bool = True) -> None:
        self.database = database

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not known before a scrape, and registering must not need Redis."""
        return ()

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("visibility_up", "Whether Redis and the database answered this scrape", labels=["part"])
        try:
            found = [*self._counts(Figures.parse(inspect.total_fields())), *self._gauges()]
            up.add_metric(["redis"], 1)
            yield from found
        except RedisAway:
            up.add_metric(["redis"], 0)
        if self.database:
            try:
                promises = list(self._promises())
                up.add_metric(["database"], 1)
                yield from promises
            except DatabaseError:
                up.add_metric(["database"], 0)
        yield up

    def _counts(self, figures: Figures) -> Iterator[Metric]:
        for name, metric in CATALOGUE.items():
            labels = list(metric.labels)
            if metric.kind == COUNTER:
                family = CounterMetricFamily(f"visibility_{name}", metric.help, labels=labels)
                for (held, kind, word), n in sorted(figures.counters.items()):
                    if held == name:
                        family.add_metric(_values(labels, kind, word), n)
                yield family
                continue
            edges = NUMBERS if metric.kind == AMOUNTS else SECONDS
            unit = "" if metric.kind == AMOUNTS or name.endswith("_seconds") else "_seconds"
            spread = HistogramMetricFamily(f"visibility_{name}{unit}", metric.help, labels=labels)
            for (held, kind), histogram in sorted(figures.histograms.items(), key=lambda item: item[0]):
                if held == name:
                    spread.add_metric(_values(labels, kind, ""), _buckets(histogram, edges), histogram.total)
            yield spread

    def _gauges(self) -> Iterator[Metric]:
        visible = GaugeMetricFamily("visibility_visible_resources", "Resources visible now", labels=["data_type"])
        for data_type in data_types:
            visible.add_metric([data_type.name], leases.visible_count(data_type.name))
        yield visible
        states = {name: levels.lane_state(name) for name in settings.LANES}
        gauges = (
            ("pending", "Resources that wait for a recompute", lambda state: state.pending),
            ("claimed", "Resources being built", lambda state: state.claimed),
            ("oldest_seconds", "How late the oldest entry is", lambda state: max(0.0, state.lag)),
            ("stage", "Pressure stage: 0 normal, 1 pressed, 2 flooded", lambda state: STAGES.index(state.stage)),
        )
        for name, text, value in gauges:
            family = GaugeMetricFamily(f"visibility_lane_{name}", text, labels=["lane"])
            for lane, state in states.items():
                family.add_metric([lane], value(state))
            yield family
        silence = upkeep.silence()
        if silence is not None:
            yield GaugeMetricFamily("visibility_maintenance_age_seconds", "Since a maintenance loop last beat", value=silence)

    def _promises(self) -> Iterator[Metric]:
        attained = GaugeMetricFamily(
            "visibility_slo_attained", "Share of changes shown in time, over the window", labels=["data_type"]
        )
        left = GaugeMetricFamily(
            "visibility_slo_budget_left", "Share of the error budget left; below 0 it is overspent", labels=["data_type"]
        )
        oldest = GaugeMetricFamily("visibility_oldest_mark_seconds", "Age of the oldest dirty flag", labels=["data_type"])
        for found in freshness.report():
            if found.attained is not None and found.budget_left is not None:
                attained.add_metric([found.data_type], found.attained)
                left.add_metric([found.data_type], found.budget_left)
            oldest.add_metric([found.data_type], found.oldest or 0)
        yield from (attained, left, oldest)


def _values(labels: list[str], kind: str, word: str) -> list[str]:
    # What stands in the place of the data type is the lane for the metrics of lanes.
    by_name = {"data_type": kind, "lane": kind or word, "result": word}
    return [by_name[label] for label in labels]


def _buckets(histogram: Histogram, edges: Iterable[float]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = [(f"{edge:.6g}", n) for edge, n in histogram.cumulative(edges)]
    return [*found, ("+Inf", histogram.count)]


def register(registry: CollectorRegistry = REGISTRY, *, database: bool = True) -> VisibilityCollector:
    """Add the collector to a registry; call it once, from `AppConfig.ready` of the project."""
    collector = VisibilityCollector(database=database)
    registry.register(collector)
    return collector


def exposition(*, token: str | None, database: bool = True) -> Callable[[HttpRequest], HttpResponse]:
    """A view that answers a scrape. `token` is asked for as `Authorization: Bearer …`; None leaves the view open to whoever
    reaches it, for networks where only Prometheus does."""
    own = CollectorRegistry(auto_describe=False)
    register(own, database=database)

    def view(request: HttpRequest) -> HttpResponse:
        given = request.headers.get("Authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return HttpResponse("a bearer token is needed\n", status=401, content_type="text/plain")
        return HttpResponse(generate_latest(own), content_type=CONTENT_TYPE_LATEST)

    return view
