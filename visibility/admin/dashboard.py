"""What the overview shows: states, lanes, data types with their promises and accounts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils import timezone
from django.utils.translation import gettext as _

from visibility import freshness, health
from visibility.admin.charts import Chart
from visibility.admin.figures import COUNTS, Range, charts, range_of
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.doctor import engine
from visibility.exceptions import RedisAway
from visibility.insight import history
from visibility.insight.histogram import Histogram
from visibility.insight.ledger import Ledger, ledger, together
from visibility.insight.metrics import Figures
from visibility.soft import levels, pages


@dataclass(frozen=True, kw_only=True)
class LaneLine:
    """A lane as the pages show it; `fill` is the share of its bound that is taken."""

    name: str
    queue: str
    state: levels.LaneState
    bound: int
    workers: int | None
    css: str

    @property
    def fill(self) -> float:
        return (self.state.pending + self.state.claimed) / self.bound if self.bound else 0.0

    @property
    def stage_words(self) -> str:
        return {"normal": _("normal"), "pressed": _("pressed"), "flooded": _("flooded")}.get(self.state.stage, self.state.stage)


@dataclass(frozen=True, kw_only=True)
class TypeLine:
    """A data type as the overview shows it. Watchers are of a sample of its visible resources."""

    name: str
    visible: int | None
    watchers: Histogram
    account: Ledger
    promise: freshness.Report | None
    fresh_share: float | None

    @property
    def most(self) -> int:
        return round(self.watchers.quantile(1.0) or 0)

    @property
    def median(self) -> int:
        return round(self.watchers.quantile(0.5) or 0)


def lanes() -> list[LaneLine]:
    """Every lane.

    Raises:
        RedisAway: Redis does not answer.
    """
    out = []
    for name in settings.LANES:
        lane = settings.lane(name)
        state = levels.lane_state(name)
        css = {"normal": "ok", "pressed": "warn"}.get(state.stage, "bad")
        out.append(
            LaneLine(name=name, queue=lane.queue, state=state, bound=lane.bound, workers=engine.workers(lane.queue), css=css)
        )
    return out


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All that the overview page shows."""

    states: dict[str, str]
    online: int | None
    lanes: Sequence[LaneLine]
    types: Sequence[TypeLine]
    account: Ledger
    charts: Sequence[Chart]
    chosen: Range

    @property
    def visible(self) -> int | None:
        counts = [line.visible for line in self.types if line.visible is not None]
        return sum(counts) if counts else None

    @property
    def oldest(self) -> float | None:
        ages = [line.promise.oldest for line in self.types if line.promise and line.promise.oldest is not None]
        return max(ages) if ages else None


def overview(slug: str, now: dt.datetime | None = None) -> Overview:
    """Collect the overview: five queries, and some calls to Redis for each type and lane. Its tiles, charts and account are made
    of one reading of the figures, over the span that was chosen, so that they agree."""
    now = now or timezone.now()
    chosen = range_of(slug)
    names = [data_type.name for data_type in registry]
    steps = history.series(COUNTS, chosen.seconds, chosen.step, now)
    whole = Figures()
    for _at, figures in steps:
        whole.merge(figures)
    promises = {found.data_type: found for found in freshness.report(now=now)}
    crowds: dict[str, pages.Crowd] = {}
    online, found_lanes = None, list[LaneLine]()
    try:
        crowds = {name: pages.crowd(name) for name in names}
        online, found_lanes = pages.people(limit=1).total, lanes()
    except RedisAway:
        pass
    types = []
    for account in ledger(whole, names):
        crowd = crowds.get(account.data_type)
        reads = whole.total("reads", account.data_type)
        types.append(
            TypeLine(
                name=account.data_type,
                visible=crowd.visible if crowd else None,
                watchers=Histogram.of(crowd.watchers if crowd else ()),
                account=account,
                promise=promises.get(account.data_type),
                fresh_share=whole.total("reads", account.data_type, "fresh") / reads if reads else None,
            )
        )
    account = together(line.account for line in types)
    return Overview(
        states=health.state(),
        online=online,
        lanes=found_lanes,
        types=types,
        account=account,
        charts=charts(chosen, steps, account),
        chosen=chosen,
    )
