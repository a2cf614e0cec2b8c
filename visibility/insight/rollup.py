"""Carry the minutes that `metrics` keeps in Redis over into `Rollup` rows, and prune what is old.

Each minute becomes one row a series, and is added to the rows of its hour (`metric@hour`) and day (`metric@day`), so that a
month is read from some dozens of rows. Any number of processes may run this at once, and again: a minute's row only grows
towards what Redis holds, hour and day grow by the same difference in the same transaction, and a minute that nobody wrote since
it was carried over is left alone. A minute is carried over once it has ended; if Redis is flushed, what was carried over stays.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Mapping

from django.db import IntegrityError, OperationalError, router, transaction
from django.utils import timezone

from visibility.insight.histogram import Histogram
from visibility.insight.metrics import HORIZON, MINUTE_TTL, Figures
from visibility.models import Rollup
from visibility.soft import inspect

HOUR, DAY = "@hour", "@day"
GRACE = 5
RECENT = 6
KEEP_MINUTES = dt.timedelta(hours=50)
KEEP_HOURS = dt.timedelta(days=35)
KEEP_DAYS = dt.timedelta(days=400)
PRUNE_BATCH = 2_000
ATTEMPTS = 5
Series = tuple[str, str, str]


def minute_at(minute: int) -> dt.datetime:
    """The start of a minute given as minutes since 1970."""
    return dt.datetime.fromtimestamp(minute * 60, tz=dt.UTC)


def roll(*, everything: bool = False) -> int:
    """Carry over every ended minute that was written since it was last carried over; return how many.

    Looks at the last few minutes, or with `everything` as far back as Redis keeps them: do that when a process starts.

    Raises:
        RedisAway: Redis does not answer.
    """
    now = inspect.redis_time()
    last = int((now - GRACE) // 60) - 1
    minutes = range(last - (HORIZON if everything else RECENT) + 1, last + 1)
    written = inspect.minutes_written(minutes)
    moved = [minute for minute in minutes if written[minute].writes > written[minute].rolled]
    for minute in moved:
        fields = inspect.minute_fields(minute)
        save_minute(minute, Figures.parse(fields))
        inspect.note_rolled(minute, fields.get("_n", 0), MINUTE_TTL)
    return len(moved)


def save_minute(minute: int, figures: Figures) -> None:
    """Bring one minute's rows, and with them its hour's, up to these figures. Safe to repeat and to run twice at once."""
    rows: dict[Series, Histogram | float] = {series: float(n) for series, n in figures.counters.items()}
    rows |= {(name, kind, ""): histogram for (name, kind), histogram in figures.histograms.items()}
    using = router.db_for_write(Rollup)
    for attempt in range(ATTEMPTS):
        try:
            with transaction.atomic(using=using):
                at = minute_at(minute)
                grown = _grow(using, at, rows, "")
                _grow(using, at.replace(minute=0), grown, HOUR)
                _grow(using, at.replace(minute=0, hour=0), grown, DAY)
            return
        except (IntegrityError, OperationalError):
            # Another process inserted or locked the same rows; it may have seen less than we did, so look again.
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311


def _grow(
    using: str, at: dt.datetime, wanted: Mapping[Series, Histogram | float], suffix: str
) -> dict[Series, Histogram | float]:
    """Write rows and return by how much each grew: up to `wanted` for a minute, by `wanted` for an hour."""
    rows = Rollup.objects.using(using)
    names = {name + suffix for name, _kind, _label in wanted}
    held = {
        (row.metric, row.data_type, row.label): row
        for row in rows.select_for_update().filter(minute=at, metric__in=names).order_by("pk")
    }
    grown: dict[Series, Histogram | float] = {}
    new, changed = [], []
    for (name, kind, label), value in sorted(wanted.items(), key=lambda item: item[0]):
        row = held.get((name + suffix, kind, label))
        have = _value(row, value)
        target = _plus(have, value) if suffix else _at_least(have, value)
        difference = _minus(target, have)
        if row is not None and not difference:
            continue
        grown[name, kind, label] = difference
        if row is None:
            row = Rollup(minute=at, metric=name + suffix, data_type=kind, label=label)
            new.append(row)
        else:
            changed.append(row)
        if isinstance(target, Histogram):
            row.value, row.buckets = target.total, target.to_json()
        else:
            row.value, row.buckets = target, None
    rows.bulk_create(new, batch_size=500)
    rows.bulk_update(changed, ["value", "buckets"], batch_size=200)
    return grown


def _value(row: Rollup | None, like: Histogram | float) -> Histogram | float:
    if isinstance(like, Histogram):
        return Histogram.from_json(row.buckets, row.value) if row else Histogram()
    return row.value if row else 0.0


def _at_least(have: Histogram | float, seen: Histogram | float) -> Histogram | float:
    if isinstance(have, Histogram) and isinstance(seen, Histogram):
        return have.at_least(seen)
    return max(_number(have), _number(seen))


def _plus(have: Histogram | float, more: Histogram | float) -> Histogram | float:
    if isinstance(have, Histogram) and isinstance(more, Histogram):
        return Histogram(dict(have.buckets), have.total).merge(more)
    return _number(have) + _number(more)


def _minus(new: Histogram | float, old: Histogram | float) -> Histogram | float:
    if isinstance(new, Histogram) and isinstance(old, Histogram):
        return new.minus(old)
    return _number(new) - _number(old)


def _number(value: Histogram | float) -> float:
    return 0.0 if isinstance(value, Histogram) else value


def prune(now: dt.datetime | None = None, *, batches: int = 5) -> int:
    """Delete minutes after 50 hours, hours after 35 days, days after 400; a bounded number at a time. Return how many went."""
    now = now or timezone.now()
    using = router.db_for_write(Rollup)
    rows = Rollup.objects.using(using).order_by("minute")
    ends = (
        rows.filter(minute__lt=now - KEEP_MINUTES).exclude(metric__endswith=HOUR).exclude(metric__endswith=DAY),
        rows.filter(minute__lt=now - KEEP_HOURS).exclude(metric__endswith=DAY),
        rows.filter(minute__lt=now - KEEP_DAYS),
    )
    gone = 0
    for old in ends:
        for _batch in range(batches):
            ids = list(old.values_list("pk", flat=True)[:PRUNE_BATCH])
            if ids:
                gone += Rollup.objects.using(using).filter(pk__in=ids).delete()[0]
            if len(ids) < PRUNE_BATCH:
                break
    return gone
