"""Checks of the lanes: work waits, workers listen, jobs are few, claims end, somebody maintains."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _

from visibility import maintain
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.doctor import engine
from visibility.doctor.finding import CRITICAL, INFO, WARNING, Finding
from visibility.soft import inspect, levels, pages, upkeep

LATE = 10.0
SILENT = 30.0
MANY_JOBS = 4


def _promise(lane: str) -> float:
    return min((one.freshness.seconds for one in registry if one.lane == lane), default=3.0)


def queues_reachable() -> Iterator[Finding]:
    """RQ's Redis answers for each lane."""
    for name in settings.LANES:
        error = engine.problem(settings.lane(name).queue)
        if error:
            yield Finding(
                code="queue_away",
                severity=CRITICAL,
                symptom=_("The RQ queue of the lane '%(name)s' cannot be reached: changes wait, nothing is built.")
                % {"name": name},
                evidence={"lane": name, "queue": settings.lane(name).queue, "error": error},
                remedy=_("Check RQ_QUEUES: the queue must be named there and its Redis must answer."),
            )


def no_worker() -> Iterator[Finding]:
    """A worker listens on every lane's queue."""
    for name in settings.LANES:
        lane = settings.lane(name)
        alive = engine.workers(lane.queue)
        if alive == 0:
            state = levels.lane_state(name)
            yield Finding(
                code="no_worker",
                severity=CRITICAL if state.pending + state.claimed else WARNING,
                symptom=_("No worker listens on the queue '%(queue)s' of the lane '%(name)s'.")
                % {"queue": lane.queue, "name": name},
                evidence={"lane": name, "queue": lane.queue, "workers": 0, "pending": state.pending},
                remedy=_("Start one, supervised: manage.py visibility_worker --lane %(name)s, or manage.py rqworker %(queue)s.")
                % {"name": name, "queue": lane.queue},
            )


def piling_up() -> Iterator[Finding]:
    """What is due is taken soon."""
    for name in settings.LANES:
        state = levels.lane_state(name)
        lane = settings.lane(name)
        late = state.lag > max(LATE, 3 * _promise(name))
        full = state.pending + state.claimed >= 0.9 * lane.bound
        if late or full:
            yield Finding(
                code="queue_piling_up",
                severity=CRITICAL if full else WARNING,
                symptom=_("Work piles up in the lane '%(name)s': %(n)s wait, the oldest is %(late)s s late.")
                % {"name": name, "n": state.pending, "late": f"{state.lag:.0f}"},
                evidence={
                    "lane": name,
                    "pending": state.pending,
                    "due": state.due,
                    "claimed": state.claimed,
                    "bound": lane.bound,
                    "lag_seconds": round(state.lag, 1),
                    "oldest": state.oldest,
                    "workers": engine.workers(lane.queue),
                },
                remedy=_(
                    "With no worker: start one. With workers: build_many may be slow (build times are on the overview), coalesce "
                    "too short, or a lane shared by types of different urgency: add workers, or give the slow type its own lane."
                ),
            )


def pressed() -> Iterator[Finding]:
    """Lanes that leave work out."""
    for name in settings.LANES:
        stage = levels.lane_state(name).stage
        if stage and stage != "normal":
            yield Finding(
                code="under_pressure",
                severity=WARNING if stage == "flooded" else INFO,
                symptom=_("The lane '%(name)s' is %(stage)s: windows are wider and part of the work is only marked.")
                % {"name": name, "stage": stage},
                evidence={"lane": name, "stage": stage},
                remedy=_("It goes back by itself once the lane empties. If it stays, the lane has too few workers for its load."),
            )


def doubled_jobs() -> Iterator[Finding]:
    """A few drain jobs at most wait for each lane."""
    for name in settings.LANES:
        queue = settings.lane(name).queue
        waiting = engine.waiting(queue)
        allowed = MANY_JOBS * settings.SHARDS
        if waiting > allowed:
            jobs = engine.doubled(queue)
            yield Finding(
                code="doubled_jobs",
                severity=WARNING,
                symptom=_("%(n)s jobs wait in '%(queue)s', where one for each shard is enough.") % {"n": waiting, "queue": queue},
                evidence={"lane": name, "queue": queue, "waiting": waiting, "shards": settings.SHARDS, "same": jobs},
                remedy=_(
                    "Harmless for the data: a job carries no key and finds nothing left to do. If no worker runs, the "
                    "maintenance loop has asked again and again: start one, and empty the queue if you like. If another app "
                    "uses this queue, give each its own."
                ),
            )


def ended_claims() -> Iterator[Finding]:
    """Claims end by their owner, not by time."""
    for name in settings.LANES:
        state = levels.lane_state(name)
        ended = inspect.ended_claims(name, 2 * settings.BUILD_LEASE)
        if ended:
            yield Finding(
                code="leaked_claims",
                severity=CRITICAL if not engine.workers(settings.lane(name).queue) else WARNING,
                symptom=_("%(n)s builds of the lane '%(name)s' were claimed, their owners are gone, and nobody took over.")
                % {"n": ended, "name": name},
                evidence={"lane": name, "ended": ended, "all_ended": state.expired, "claimed": state.claimed},
                remedy=_(
                    "A worker died at work (out of memory? killed by a deploy?) and none drains the lane since. Start a worker: "
                    "the first drain takes these over. Nothing else has to be cleaned up."
                ),
            )


def hanging_builds() -> Iterator[Finding]:
    """No build runs for longer than it may."""
    for name in settings.LANES:
        old = [held for held in pages.claims(name, limit=50).rows if held.left > 0 and held.age > settings.BUILD_TIMEOUT]
        if old:
            yield Finding(
                code="leaked_locks",
                severity=WARNING,
                symptom=_("%(n)s builds of the lane '%(name)s' run for longer than BUILD_TIMEOUT and still renew their claim.")
                % {"n": len(old), "name": name},
                evidence={
                    "lane": name,
                    "timeout": settings.BUILD_TIMEOUT,
                    "held": [[one.resource, round(one.age)] for one in old[:5]],
                },
                remedy=_(
                    "Look what the worker does (py-spy dump --pid …): a build without a timeout on its own I/O. End that worker; "
                    "its claim ends within BUILD_LEASE seconds and the next drain builds again."
                ),
            )


def nobody_maintains() -> Iterator[Finding]:
    """The maintenance loop beats."""
    silent = upkeep.silence()
    if silent is None or silent > SILENT:
        yield Finding(
            code="nobody_maintains",
            severity=CRITICAL,
            symptom=_("No maintenance loop runs: endings are not announced, lost jobs not made good, marks not promoted."),
            evidence={"seconds_since_last": None if silent is None else round(silent, 1)},
            remedy=_("Start visibility_maintain, or use visibility_worker, which has the loop inside. Two or more are fine."),
        )


def failing_duties() -> Iterator[Finding]:
    """Each duty of the maintenance loop is done."""
    found = upkeep.troubles([duty.name for duty in maintain.DUTIES])
    if found:
        now = inspect.redis_time()
        since = {name: max(0, round(now - one.since)) for name, one in found.items()}
        yield Finding(
            code="duty_failing",
            severity=CRITICAL if max(since.values()) > SILENT else WARNING,
            symptom=_("Duties of the maintenance loop fail: %(names)s.") % {"names": ", ".join(found)},
            evidence={"since_seconds": since, "errors": {name: one.error for name, one in found.items()}},
            remedy=_(
                "The log of visibility, where the loop runs, has the traceback. The other duties go on; what this one heals is "
                "left as it is until the error is gone."
            ),
        )
