"""The maintenance loop: what must happen though nobody calls for it. Any number of processes may run it at once.

| duty | period | does |
|---|---|---|
| lanes | 0.75 s | wakes lanes that have work or ended claims and nobody on the way; judges their pressure |
| promote | 1 s | visible resources with a standing mark go to their lane, oldest first, as far as there is room |
| presence | 1 s | announces what became hidden and who went offline |
| outbox | 2 s | takes events through the gate whose process died, or that came while Redis was away |
| audit | 2 s | visible resources that no lease vouches for, page by page: promotes those whose snapshot is behind their marks |
| precompute | 2 s | with `PRECOMPUTE`, while all lanes are idle: builds hidden dirty resources on the last lane |
| freshness | 10 s | carries metrics over into rollups, judges the promises |
| prune | 60 s | deletes events, marks, natural keys and versions that have served |

Every duty is idempotent or pops what it handles atomically. Periods are jittered, and all but the first are taken in turns over
the cluster. Where a batch of pruning was full, the next follows a second later, so that rows go as fast as they came. An outage
is logged and waited out. A duty that fails is logged with a traceback once for each error, then by a line now and then; the
doctor names it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import models, router
from django.utils import timezone
from django.utils.module_loading import import_string

from visibility import dirty, freshness, gate, pressure, promotion
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.events import outbox
from visibility.exceptions import RedisAway
from visibility.insight import metrics
from visibility.models import AppliedVersion, NaturalKey
from visibility.presence import sweep
from visibility.soft import levels, upkeep
from visibility.sql import hygiene
from visibility.wake import wake

logger = logging.getLogger("visibility")
PRECOMPUTER = "visibility.recompute.enqueue_precompute"
SWEEPS = 10
PRUNE_BATCH = 2_000
MOMENT = 1.0
_started = False


def rouse_lanes(now: datetime) -> int:
    """Wake what waits, and judge each lane."""
    upkeep.beat()
    woken = 0
    for name in settings.LANES:
        shards = levels.rouse(name)
        wake(name, shards)
        woken += len(shards)
        pressure.evaluate(settings.lane(name))
    return woken


def sweep_presence(now: datetime) -> int:
    """Announce what became hidden and who went offline."""
    total = 0
    for _round in range(SWEEPS):
        done = sweep()
        total += done
        if not done:
            break
    return total


def redrive(now: datetime) -> int:
    """Take over events that nobody finished."""
    return gate.redrive()


def precompute(now: datetime) -> int:
    """While every lane is idle, let the last one's worker build hidden dirty resources."""
    if not settings.PRECOMPUTE:
        return 0
    for name in settings.LANES:
        state = levels.lane_state(name)
        if state.pending or state.claimed or pressure.stage(name) is not pressure.Stage.NORMAL:
            return 0
    import_string(PRECOMPUTER)()
    return 1


def carry_over(now: datetime) -> int:
    """Metrics into rollups, and the judgement of the promises."""
    global _started
    starting, _started = not _started, True
    return freshness.maintain(now, starting=starting)


def _delete(table: models.QuerySet[models.Model]) -> int:
    """Delete by primary key in one batch: short locks, and it runs on every database."""
    pks = list(table.values_list("pk", flat=True)[:PRUNE_BATCH])
    return table.filter(pk__in=pks).delete()[0] if pks else 0


def _rows(model: type[models.Model]) -> models.QuerySet[models.Model]:
    return model._default_manager.using(router.db_for_write(model)).order_by()


def prune(now: datetime) -> int:
    """Delete what has served: one batch of each kind."""
    ttl = timedelta(seconds=settings.EVENT_TTL)
    longest = max([settings.EVENT_TTL, *(2 * t.ttl * (1 + t.jitter) for t in registry)])
    gone = outbox.prune(now, ttl)
    gone += _delete(_rows(NaturalKey).filter(expires_at__lt=now))
    gone += _delete(_rows(AppliedVersion).filter(updated_at__lt=now - 7 * ttl))
    return gone + dirty.prune(now, timedelta(seconds=longest))


class Duty(NamedTuple):
    """One thing to do every so many seconds; `shared` ones by one process over the cluster at a time.

    `full`: where a run did so much, there is more to do, and whoever did it goes on after a moment.
    """

    name: str
    every: float
    run: Callable[[datetime], int]
    shared: bool = True
    full: int = 0


DUTIES = (
    Duty("lanes", 0.75, rouse_lanes, shared=False),
    Duty("promote", 1, lambda now: promotion.promote()),
    Duty("presence", 1, sweep_presence),
    Duty("outbox", 2, redrive),
    Duty("audit", 2, lambda now: promotion.audit()),
    Duty("precompute", 2, precompute),
    Duty("freshness", 10, carry_over),
    Duty("prune", 60, prune, full=PRUNE_BATCH),
)
AGAIN = 300.0
ERRORS = 20
TROUBLE_SECONDS = 60.0
_away: set[str] = set()


@dataclass
class Failing:
    """What this process has said of a duty that fails, and when last (monotonic)."""

    said: set[str] = field(default_factory=set)
    last: float = 0.0


_failing: dict[str, Failing] = {}


def _failed(duty: Duty, error: Exception) -> None:
    """Say so, with a traceback where it is new."""
    found, text, now = _failing.setdefault(duty.name, Failing()), f"{type(error).__name__}: {error}", time.monotonic()
    if text not in found.said and len(found.said) < ERRORS:
        logger.error("maintenance: %s failed; it is tried again in %g s", duty.name, duty.every, exc_info=error)
        found.said.add(text)
        found.last = now
    elif now - found.last >= AGAIN:
        logger.error("maintenance: %s still fails: %s", duty.name, text)
        found.last = now
    with suppress(RedisAway):
        upkeep.note_trouble(duty.name, text, max(TROUBLE_SECONDS, 3 * duty.every))


def _goes_on(duty: Duty) -> None:
    if duty.name in _away or duty.name in _failing:
        _away.discard(duty.name)
        if _failing.pop(duty.name, None):
            with suppress(RedisAway):
                upkeep.end_trouble(duty.name)
        logger.warning("maintenance: %s goes on", duty.name)


def perform(duty: Duty, now: datetime, *, in_turn: bool = False) -> int | None:
    """Do one duty; None if it was another's turn, or it failed (logged once for each time Redis goes away, and each error)."""
    try:
        if in_turn and duty.shared and not upkeep.take_turn(duty.name, duty.every * 0.7):
            return None
        done = duty.run(now)
    except RedisAway as error:
        if duty.name not in _away:
            logger.warning("maintenance: %s waits: %s", duty.name, error)
        _away.add(duty.name)
        return None
    except Exception as error:
        # One duty's trouble, or the database's, must not end the loop that heals it.
        _failed(duty, error)
        return None
    _goes_on(duty)
    return done


def tick(now: datetime | None = None) -> dict[str, int | None]:
    """Do every duty once, now; answers what each did, None where it failed."""
    at = now or timezone.now()
    return {duty.name: perform(duty, at) for duty in DUTIES}


def loop(stop: threading.Event) -> None:
    """Do the duties at their periods until `stop` is set; the thread's database connections are closed in between."""
    due = {duty.name: time.monotonic() + random.uniform(0, duty.every / 2) for duty in DUTIES}  # noqa: S311
    going_on: set[str] = set()
    while not stop.wait(max(0.0, min(due.values()) - time.monotonic())):
        for duty in DUTIES:
            if due[duty.name] > time.monotonic() or stop.is_set():
                continue
            hygiene.close_old()
            done = perform(duty, timezone.now(), in_turn=duty.name not in going_on)
            going_on.discard(duty.name)
            wait = duty.every
            if duty.full and done is not None and done >= duty.full:
                going_on.add(duty.name)
                wait = MOMENT
            due[duty.name] = time.monotonic() + wait * random.uniform(0.75, 1.25)  # noqa: S311
    hygiene.close_old()
    metrics.flush()
