"""Histories against a trivial model: changes, watches, leaves, lapses, drains, late jobs, crashes, flushes, reads, in any
order and inside one another.

The model is one number per counter: what the source holds, and what the gate has ended for. Everything else is the public
interface on a real Redis and a real database. The invariants of the design are the assertions.

    VISIBILITY_HISTORIES=10000 python -m pytest tests/test_histories.py -q -s      the long run; prints its report
"""

from __future__ import annotations

import os
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_py
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.app.models import Counter
from visibility import gate, points, pressure
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.dirty import marks
from visibility.models import AppliedVersion, DirtyFlag, Event, ScopeMark, Summary
from visibility.promotion import promote
from visibility.read import read
from visibility.recompute import work
from visibility.soft import claims, leases, looks, snapshots

KEYS = ("a", "b")
TABS = ("1/one", "1/two", "2/three")
HISTORIES = int(os.environ.get("VISIBILITY_HISTORIES", "60"))
BUILD = ("build.claimed", "build.marks", "build.read", "build.store", "build.stored", "build.cleared", "build.pushed")
DRAIN = ("drain.claimed", *BUILD)
GATE = ("gate.start", "gate.looked", "gate.pended", "gate.marked", "gate.relooked", "gate.finish")
READ = ("read.looked", "read.marks", *BUILD)
tally: Tally[str] = Tally()


class Crash(BaseException):
    """Ends a path the way SIGKILL would: nothing after it runs."""


@contextmanager
def at(point: str, action: Callable[[], Any]) -> Iterator[None]:
    """Run the action the first time the code reaches the point inside this block."""
    waiting = [action]

    def reach(name: str) -> None:
        if name == point and waiting:
            waiting.pop()()

    before, points.hook = points.hook, reach
    try:
        yield
    finally:
        points.hook = before


keys = st.sampled_from(KEYS)
tabs = st.sampled_from(TABS)
WHATS = ("change", "watch", "leave", "lapse", "flush", "drain", "read", "expire_claims", "shed")
inside = st.tuples(st.sampled_from(WHATS), keys)


class Histories(RuleBasedStateMachine):
    """Each rule is one thing that can happen; some happen inside another, at a named point."""

    redis: redis_py.Redis

    @initialize()
    def begin(self) -> None:
        for model in (Event, DirtyFlag, ScopeMark, Summary, AppliedVersion, Counter):
            model.objects.all().delete()
        self.redis.flushall()
        pressure.forget()
        Counter.objects.bulk_create([Counter(name=key, value=0) for key in KEYS])
        self.truth = dict.fromkeys(KEYS, 0)
        self.floor = dict.fromkeys(KEYS, 0)
        self.watching: set[tuple[str, str]] = set()
        tally["histories"] += 1

    # What can happen

    @rule(key=keys)
    def change(self, key: str) -> None:
        """A save whose gate runs to its end."""
        self._save(key)
        self.floor[key] = max(self.floor[key], self.truth[key])

    def _save(self, key: str) -> None:
        value = self.truth[key] + 1
        with transaction.atomic():
            row = Counter.objects.get(name=key)
            row.value = value
            row.save()
        # Only here is it the truth, and an inner change may have come between.
        self.truth[key] = max(self.truth[key], value)

    @rule(key=keys)
    def rolled_back(self, key: str) -> None:
        before = Event.objects.count()
        with transaction.atomic():
            row = Counter.objects.get(name=key)
            row.value = -1
            row.save()
            transaction.set_rollback(True)
        assert Event.objects.count() == before

    @rule(key=keys, point=st.sampled_from(GATE), what=inside)
    def change_interrupted(self, key: str, point: str, what: tuple[str, str]) -> None:
        value = self.truth[key] + 1
        with at(point, lambda: self._do(what)), transaction.atomic():
            row = Counter.objects.get(name=key)
            row.value = value
            row.save()
            self.truth[key] = value
        self.floor[key] = max(self.floor[key], value)

    @rule(key=keys, point=st.sampled_from(GATE))
    def gate_crashes(self, key: str, point: str) -> None:
        tally["gate crashes"] += 1

        def crash() -> None:
            raise Crash

        with at(point, crash):
            try:
                self._save(key)
            except Crash:
                self.truth[key] += 1

    @rule(key=keys, tab=tabs)
    def watch(self, key: str, tab: str) -> None:
        """The lease first, then what a read finds (rule 1)."""
        self.watching.add((key, tab))
        leases.renew([leases.Watch(f"counter:{key}", tab)])
        self.look(key)

    @rule(key=keys, tab=tabs)
    def leave(self, key: str, tab: str) -> None:
        self.watching.discard((key, tab))
        leases.release([(f"counter:{key}", tab, "watch"), (f"counter:{key}", tab, "watch")])

    @rule(key=keys)
    def lapse(self, key: str) -> None:
        """The leases end by themselves: their time is over."""
        self.watching = {pair for pair in self.watching if pair[0] != key}
        shard = leases.shard_of(f"counter:{key}")
        for role in ("watchers", "background", "holders", "fresh"):
            self.redis.delete(f"{{vis:{shard}}}:{role}:counter:{key}")
        if self.redis.zscore(f"{{vis:{shard}}}:visible:counter", key) is not None:
            self.redis.zadd(f"{{vis:{shard}}}:visible:counter", {key: 1})

    @rule()
    def drain(self) -> None:
        """One batch; what is not due yet is made so, which no clock can tell from waiting."""
        self._due()
        owned = claims.claim("hot", 0, 10, 15)
        if owned.rows:
            work(settings.lane("hot"), owned)

    @rule(point=st.sampled_from(DRAIN), what=inside)
    def drain_interrupted(self, point: str, what: tuple[str, str]) -> None:
        with at(point, lambda: self._do(what)):
            self.drain()

    @rule(point=st.sampled_from((*DRAIN, "drain.marked")))
    def drain_crashes(self, point: str) -> None:
        tally["drain crashes"] += 1

        def crash() -> None:
            raise Crash

        with at(point, crash):
            try:
                self.drain()
            except Crash:
                return

    @rule()
    def expire_claims(self) -> None:
        """Every claim's lease is over: whoever still works under one is late from now on."""
        for resource in self.redis.zrange("{vis:0}:claimed:hot", 0, -1):
            self.redis.zadd("{vis:0}:claimed:hot", {resource: 1})

    @rule()
    def flush(self) -> None:
        tally["flushes"] += 1
        self.redis.flushall()
        self.watching.clear()

    @rule(key=keys)
    def shed(self, key: str) -> None:
        """A change that the full lane does not take."""
        self.redis.zadd("{vis:0}:pending:hot", {f"counter:full{n}": 9e15 for n in range(3)})
        options = {**settings.LANES, "hot": {**settings.LANES["hot"], "bound": 1}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(settings_dict(), "LANES", options)
            self.change(key)
        self.redis.zrem("{vis:0}:pending:hot", *(f"counter:full{n}" for n in range(3)))
        # The stage was judged against the small bound; with the usual one the lane is empty.
        pressure.evaluate(settings.lane("hot"))

    @rule(key=keys)
    def look(self, key: str) -> None:
        """A read never serves as fresh what is older than the last change whose gate has ended (I1).

        A claim that a crash left, or that the path around this read holds, is over: waiting it out would only cost time.
        """
        self.expire_claims()
        floor = self.floor[key]
        snapshot = read("counter", key)
        tally["reads"] += 1
        if snapshot.state in ("fresh", "rebuilt"):
            assert snapshot.data["value"] >= floor, f"{snapshot.state} {snapshot.data} after the gate of {floor} had ended"

    @rule(key=keys, point=st.sampled_from(READ), what=inside)
    def look_interrupted(self, key: str, point: str, what: tuple[str, str]) -> None:
        with at(point, lambda: self._do(what)):
            self.look(key)

    @rule()
    def maintain(self) -> None:
        gate.redrive(older_than=0)
        self._settled_events()
        promote()

    # Inside another

    def _do(self, what: tuple[str, str]) -> None:
        name, key = what
        tally[f"inside: {name}"] += 1
        if name == "read":
            name = "look"
        action = getattr(self, name)
        if name == "watch" or name == "leave":
            action(key, TABS[0])
        elif name in ("drain", "flush", "expire_claims"):
            action()
        else:
            action(key)

    def _due(self) -> None:
        for resource in self.redis.zrange("{vis:0}:pending:hot", 0, -1):
            self.redis.zadd("{vis:0}:pending:hot", {resource: 1}, xx=True)

    def _settled_events(self) -> None:
        Event.objects.filter(processed_at=None).update(retry_at=None)
        gate.redrive(older_than=0)
        if not Event.objects.filter(processed_at=None).exists():
            self.floor = dict(self.truth)

    # What must always hold

    @invariant()
    def nothing_without_a_lifetime(self) -> None:
        """I8. What RQ keeps for itself has names of its own."""
        assert [key for key in self.redis.keys("{vis:*") if self.redis.ttl(key) == -1] == []

    @invariant()
    def bounded(self) -> None:
        """I4: at most one entry and one live claim a resource."""
        waiting = set(self.redis.zrange("{vis:0}:pending:hot", 0, -1))
        owned = set(self.redis.zrange("{vis:0}:claimed:hot", 0, -1))
        assert not waiting & owned

    def teardown(self) -> None:
        """When all is quiet: whatever is shown, or would be served, is the truth (I1)."""
        if not hasattr(self, "truth"):
            return
        points.hook = None
        self.expire_claims()
        self._settled_events()
        for _ in range(20):
            promote()
            self._due()
            owned = claims.claim("hot", 0, 10, 15)
            if not owned.rows:
                break
            work(settings.lane("hot"), owned)
            self.expire_claims()
        data_type = registry.get("counter")
        for key in KEYS:
            seen = looks.look("hot", [f"counter:{key}"])[f"counter:{key}"]
            stored = snapshots.unpack(seen.raw, data_type.schema)
            stands = marks(data_type, [key])[key]
            if stored is not None and stands.same(stored.stamp) and not seen.pending:
                assert value_of(stored) == self.truth[key], f"lost update: {value_of(stored)} instead of {self.truth[key]}"
            if stored is not None and seen.visible_ms > 0:
                assert value_of(stored) == self.truth[key], f"who watches sees {value_of(stored)} instead of {self.truth[key]}"
            assert read("counter", key).data["value"] == self.truth[key]


def value_of(stored: snapshots.Stored) -> int:
    import json

    return int(json.loads(stored.body)["value"])


def settings_dict() -> dict[str, Any]:
    from django.conf import settings as django_settings

    return django_settings.VISIBILITY


@pytest.mark.django_db(transaction=True)
def test_histories_keep_the_invariants(redis: redis_py.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.VISIBILITY = {**settings.VISIBILITY, "LINGER": 0}
    monkeypatch.setattr(Histories, "redis", redis, raising=False)
    started = time.monotonic()
    tally.clear()
    run_state_machine_as_test(
        Histories,
        settings=hypothesis_settings(
            max_examples=HISTORIES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )
    print(f"\n{dict(tally)} in {time.monotonic() - started:.0f} s, losses: 0")  # noqa: T201
