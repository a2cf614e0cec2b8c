"""B3, the other half: how many changes a second can be put into Redis, and what is stale after workers were killed.

The peer is one RQ job per key with `unique=True`, under an id of the key's own: what one would write to have each key built once.
Each key changes several times before anything is built, so that most of it is duplicates on both sides.

Then both sides build while 15 in 100 batches end by SIGKILL, at a step of the drain drawn by chance, or between what the plain
job reads and what it stores. Stale is a key whose stored value is not the source's when nothing is left to do.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from django.db import connections
from django.test import override_settings
from django_rq import get_queue
from rq import SimpleWorker
from rq.exceptions import DuplicateJobError

from tests.app.models import Counter
from tests.benchmarks import plain
from tests.benchmarks.harness import Part, Turns, by_turns, timed
from tests.benchmarks.stage import Stage
from tests.support import wait_for
from visibility import points, promotion, recompute
from visibility.conf import settings
from visibility.read import read_many
from visibility.soft import leases, levels, pending
from visibility.soft.pending import Item
from visibility.wake import wake

KEYS, CHANGES, AUDIENCE = 400, 5, 100
ROUNDS, CHANCE = 60, 0.15
STEPS = [
    "drain.claimed", "build.claimed", "build.marks", "build.read", "build.store", "build.stored", "build.cleared", "build.pushed",
    "build.done",
]  # fmt: skip
_dies_at = -1


def measure(stage: Stage) -> Iterator[Part]:
    """Marks per second, one by one and by audiences; then stale keys."""
    keys = [f"m{n}" for n in range(stage.size.n(KEYS, 10))]
    Counter.objects.bulk_create([Counter(name=key) for key in keys])
    leases.renew([leases.Watch(f"counter:{key}", "1/tab", "watch", 3600) for key in keys])
    for what, at_once, limit in (("one key a change", 1, 1.0), (f"{AUDIENCE} keys a change", AUDIENCE, 20.0)):
        turns = _marks(stage, keys, at_once)
        rate = CHANGES * len(keys)
        part = turns.gain(
            f"marks per second, {what}", limit, "one RQ job per key, unique=True",
            ours_per_second=rate / _median(turns.ours), theirs_per_second=rate / _median(turns.floor),
        )  # fmt: skip
        part.counts = False
        yield part
    ours, kills = _killed(stage, keys, _pend, _drain, _settle)
    if ours:
        raise AssertionError(f"{ours} keys are stale after {kills} of {ROUNDS} batches were killed")
    theirs, their_kills = _killed(stage, keys, _enqueue, _work, lambda: _fork(_work, -1))
    yield Part(
        what=f"stale keys after {kills} killed batches", ratio=float(ours), limit=0.0, against="one RQ job per key, unique=True",
        counts=False, figures={"keys": len(keys), "theirs": theirs, "their_killed_batches": their_kills},
    )  # fmt: skip


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _marks(stage: Stage, keys: list[str], at_once: int) -> Turns:
    parts = [keys[start : start + at_once] for _ in range(CHANGES) for start in range(0, len(keys), at_once)]

    def side(put: Callable[[Sequence[str]], None]) -> Callable[[], float]:
        return timed(lambda: [put(part) for part in parts])

    return by_turns(side(_pend), side(_enqueue), stage.size.times(7), before=(_empty, _empty), meter=stage.cpu)


def _empty() -> None:
    for name in ("visibility-hot", "plain"):
        get_queue(name).empty()
    while recompute.drain("hot"):
        pass
    connections.close_all()


def _pend(keys: Sequence[str]) -> None:
    now = int(time.time() * 1000)
    wake("hot", pending.pend(settings.lane("hot"), [Item(f"counter:{key}", now, window=0.0) for key in keys]).wake)


def _enqueue(keys: Sequence[str]) -> None:
    queue = recompute.queue("plain")
    for key in keys:
        with suppress(DuplicateJobError):
            queue.enqueue_call(build_or_die, args=(key,), job_id=f"plain-{key}", unique=True, result_ttl=0)


# --- under SIGKILL ------------------------------------------------------------------------------------------------------


def build_or_die(key: str) -> None:
    """The plain job; where it is its turn, it dies between its read and its write."""
    global _dies_at
    value = Counter.objects.get(name=key).value
    if _dies_at == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _dies_at -= 1
    plain.redis().set(f"plain:counter:{key}", json.dumps({"value": value}), ex=300)


def _killed(
    stage: Stage,
    keys: list[str],
    put: Callable[[Sequence[str]], None],
    work: Callable[[], None],
    settle: Callable[[], object],
) -> tuple[int, int]:
    """Change some, put them in, build in a process that may be killed, again and again. Stale keys, and how many were killed."""
    dice, kills = random.Random(7), 0
    plain.redis().flushdb()
    leases.renew([leases.Watch(f"counter:{key}", "1/tab", "watch", 3600) for key in keys])
    put(keys)
    _fork(work, -1)
    for n in range(1, stage.size.n(ROUNDS, 4) + 1):
        some = dice.sample(keys, max(1, len(keys) // 10))
        Counter.objects.filter(name__in=some).update(value=n)
        put(some)
        dies = dice.randrange(len(STEPS)) if dice.random() < CHANCE else -1
        kills += dies >= 0
        _fork(work, dies)
    settle()
    truth = dict(Counter.objects.filter(name__in=keys).values_list("name", "value"))
    if put is _pend:
        shown = {key: one.data["value"] for key, one in read_many("counter", keys).items()}
    else:
        shown = {key: json.loads(plain.redis().get(f"plain:counter:{key}") or b'{"value": null}')["value"] for key in keys}
    return sum(shown[key] != truth[key] for key in keys), kills


def _fork(work: Callable[[], object], dies: int) -> None:
    """Do it in a child, as a forking worker does."""
    global _dies_at
    connections.close_all()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _dies_at = dies
            points.hook = None if dies < 0 else lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == STEPS[dies] else None
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError("a child failed")


def _drain() -> None:
    with override_settings(VISIBILITY={**_own(), "BUILD_LEASE": 1.0}):
        recompute.drain("hot")


def _own() -> dict[str, object]:
    from django.conf import settings as project

    return dict(project.VISIBILITY)


def _work() -> None:
    queue = get_queue("plain")
    SimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


def _settle() -> None:
    def quiet() -> bool:
        promotion.promote()
        _drain()
        state = levels.lane_state("hot")
        return not state.pending and not state.claimed

    wait_for(quiet, 60, "the lane is quiet")
