"""A machine that makes histories: changes, watches, leaves, tabs that hide, heartbeats, lapses, drains, late and doubled jobs,
duplicates, crashes, flushes, clock steps, revocations and reads, in any order and inside one another at named points.

The model is a number per counter (what the source holds, and what a gate has ended for) and the leases that tabs should have.
Everything else is the public interface on a real Redis and a real database. The invariants of the design are the assertions.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_py
from django.conf import settings as django_settings
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import visibility
from tests.app.models import Counter
from visibility import gate, points, pressure, testing
from visibility.builds.look import look
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.dirty import marks
from visibility.models import AppliedVersion, DirtyFlag, Event, ScopeMark, Summary
from visibility.promotion import promote
from visibility.read import read
from visibility.recompute import work
from visibility.soft import claims, leases, looks, snapshots
from visibility.soft.client import run

KEYS = ("a", "b")
TABS = ("1/one", "1/two", "2/three")
BUILD = ("build.claimed", "build.marks", "build.read", "build.store", "build.stored", "build.cleared", "build.pushed")
DRAIN = ("drain.claimed", *BUILD)
GATE = ("gate.start", "gate.looked", "gate.pended", "gate.marked", "gate.relooked", "gate.finish")
READ = ("read.looked", "read.marks", *BUILD)
LEASE = 60.0
# One call each: what a history costs is its trips to Redis.
WRONG = """local wrong = {}
for _, name in ipairs(redis.call('KEYS', '{vis:*')) do
  if redis.call('TTL', name) == -1 then wrong[#wrong + 1] = 'no lifetime: ' .. name end
end
for _, name in ipairs(redis.call('ZRANGE', '{vis:0}:pending:hot', 0, -1)) do
  if redis.call('ZSCORE', '{vis:0}:claimed:hot', name) then wrong[#wrong + 1] = 'pending and claimed: ' .. name end
end
return wrong"""
PAST = """for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, name) end"""
LAPSE = """for _, role in ipairs({'watchers', 'background', 'holders', 'fresh'}) do
  redis.call('DEL', '{vis:0}:' .. role .. ':counter:' .. ARGV[1])
end
redis.call('ZADD', '{vis:0}:visible:counter', 'XX', 1, ARGV[1])"""
tally: Tally[str] = Tally()


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


class Clock:
    """This machine's wall clock, which steps: `ahead` seconds are added to what it says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        seconds, nanos, now = time.time, time.time_ns, timezone.now
        patch.setattr(time, "time", lambda: seconds() + self.ahead)
        patch.setattr(time, "time_ns", lambda: nanos() + int(self.ahead * 1e9))
        patch.setattr(timezone, "now", lambda: now() + dt.timedelta(seconds=self.ahead))


keys = st.sampled_from(KEYS)
tabs = st.sampled_from(TABS)
WHATS = (
    "change", "emitted_twice", "watch", "hide", "leave", "lapse", "beat", "flush", "drain", "look", "expire_claims", "shed",
    "pass_time", "step_clock",
)  # fmt: skip
inside = st.tuples(st.sampled_from(WHATS), keys)


class Histories(RuleBasedStateMachine):
    """Each rule is one thing that can happen; some happen inside another, at a named point."""

    redis: redis_py.Redis
    clock: Clock

    @initialize()
    def begin(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            for model in (Event, DirtyFlag, ScopeMark, Summary, AppliedVersion, Counter):
                cursor.execute(f"DELETE FROM {model._meta.db_table}")
            Counter.objects.bulk_create([Counter(name=key, value=0) for key in KEYS])
        self.redis.flushall()
        pressure.forget()
        self.clock.ahead = 0.0
        self.truth, self.floor = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 0)
        self.version = dict.fromkeys(KEYS, 0)
        self.open: dict[tuple[str, str], bool] = {}
        self.ends: dict[tuple[str, str], float] = {}
        self.passed = 0.0
        self.sent = 0
        tally["histories"] += 1
        if tally["histories"] % 500 == 0:
            print(dict(tally), flush=True)  # noqa: T201

    # Changes

    @rule(key=keys)
    def change(self, key: str) -> None:
        """A save whose gate runs to its end; while nobody looks it makes no job (I5)."""
        waits, seen = self._waits(key), visibility.is_visible(f"counter:{key}")
        self._save(key)
        self.floor[key] = max(self.floor[key], self.truth[key])
        if not seen and not waits and points.hook is None:
            assert not self._waits(key), "a change that nobody watches waits for a build"

    def _waits(self, key: str) -> bool:
        return self.redis.zscore("{vis:0}:pending:hot", f"counter:{key}") is not None

    def _save(self, key: str) -> None:
        value = self.truth[key] + 1
        with transaction.atomic():
            self._put(key, value)
        # Only here is it the truth, and an inner change may have come between.
        self.truth[key] = max(self.truth[key], value)

    def _put(self, key: str, value: int) -> None:
        row = Counter.objects.get(name=key)
        row.value = value
        row.save()

    @rule(key=keys)
    def emitted_twice(self, key: str) -> None:
        """A change that only its sender tells of, twice by the same id: it counts once (I3)."""
        self.sent += 1
        value, name = self.truth[key] + 1, f"sent-{self.sent}"
        Counter.objects.filter(name=key).update(value=value)
        self.truth[key] = value
        first = visibility.emit("counter", keys=[key], id=name)
        self.floor[key] = max(self.floor[key], value)
        again = visibility.emit("counter", keys=[key], id=name)
        assert (first.duplicate, again.duplicate) == (False, True)

    @rule(key=keys)
    def rolled_back(self, key: str) -> None:
        before = Event.objects.count()
        with transaction.atomic():
            self._put(key, -1)
            transaction.set_rollback(True)
        assert Event.objects.count() == before

    @rule(key=keys, point=st.sampled_from(GATE), what=inside)
    def change_interrupted(self, key: str, point: str, what: tuple[str, str]) -> None:
        value = self.truth[key] + 1
        with at(point, lambda: self._do(what)), transaction.atomic():
            self._put(key, value)
            self.truth[key] = value
        self.floor[key] = max(self.floor[key], value)

    @rule(key=keys, point=st.sampled_from(GATE))
    def gate_crashes(self, key: str, point: str) -> None:
        tally["gate crashes"] += 1
        value = self.truth[key] + 1
        with testing.kill_at(point):
            self._save(key)
        self.truth[key] = max(self.truth[key], value)

    @rule(key=keys)
    def shed(self, key: str) -> None:
        """A change that the full lane does not take."""
        self.redis.zadd("{vis:0}:pending:hot", {f"counter:full{n}": 9e15 for n in range(3)})
        options = {**settings.LANES, "hot": {**settings.LANES["hot"], "bound": 1}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(django_settings.VISIBILITY, "LANES", options)
            self._save(key)
            self.floor[key] = max(self.floor[key], self.truth[key])
        self.redis.zrem("{vis:0}:pending:hot", *(f"counter:full{n}" for n in range(3)))
        # The stage was judged against the small bound; with the usual one the lane is empty.
        pressure.evaluate(settings.lane("hot"))

    # Tabs

    @rule(key=keys, tab=tabs)
    def watch(self, key: str, tab: str) -> None:
        """The lease first, then what a read finds (rule 1)."""
        self._renew({(key, tab): True}, switch=not self.open.get((key, tab), True))
        self.look(key)

    @rule(key=keys, tab=tabs)
    def hide(self, key: str, tab: str) -> None:
        """The tab goes to the background, where its watch is parked: it makes nothing visible."""
        if (key, tab) in self.open:
            self._renew({(key, tab): False}, switch=True)

    @rule(key=keys, tab=tabs)
    def leave(self, key: str, tab: str) -> None:
        """Twice: the second does nothing."""
        kind = "watch" if self.open.pop((key, tab), True) else "parked"
        self.ends.pop((key, tab), None)
        leases.release([(f"counter:{key}", tab, kind), (f"counter:{key}", tab, kind)])

    @rule()
    def beat(self) -> None:
        """Every tab's heartbeat brings its leases back, whatever was lost, and catches up (I2)."""
        found = self._renew(dict(self.open))
        look([name for name, one in found.items() if not one.fresh])

    def _renew(self, wanted: dict[tuple[str, str], bool], switch: bool = False) -> leases.Found:
        for pair, front in wanted.items():
            self.open[pair] = front
            self.ends.pop(pair, None)
            if front:
                self.ends[pair] = self.passed + LEASE
        kinds = {True: "watch", False: "parked"}
        found = leases.renew([leases.Watch(f"counter:{k}", t, kinds[f], None, switch) for (k, t), f in wanted.items()])
        return {name: one for name, one in found.items() if any(f and f"counter:{k}" == name for (k, _), f in wanted.items())}

    @rule(key=keys)
    def lapse(self, key: str) -> None:
        """The leases end by themselves, and the tabs behind them are gone."""
        for pair in [pair for pair in self.open if pair[0] == key]:
            del self.open[pair]
            self.ends.pop(pair, None)
        self.redis.eval(LAPSE, 0, key)

    @rule(user=st.sampled_from(("1", "2")), key=keys)
    def revoke(self, user: str, key: str) -> None:
        """Whoever fetched a snapshot before reads of it by its number, across a flush, too (I6)."""
        before = int(self.redis.get("{vis:0}:access") or 0)
        visibility.revoke(user, f"counter:{key}")
        last, floor, rows = run("accessed", 0, before, 10)
        assert int(last) > before
        told = [json.loads(row[row.index(b"{") :]) for row in rows]
        assert before < int(floor) or [(one["user"], one["resource"]) for one in told] == [(user, f"counter:{key}")]

    # Jobs

    @rule()
    def drain(self) -> None:
        """One batch; what is not due yet is made so, which no clock can tell from waiting."""
        self.redis.eval(PAST, 1, "{vis:0}:pending:hot")
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
        with testing.kill_at(point):
            self.drain()

    @rule()
    def expire_claims(self) -> None:
        """Every claim's lease is over: whoever still works under one is late from now on."""
        self.redis.eval(PAST, 1, "{vis:0}:claimed:hot")

    @rule()
    def maintain(self) -> None:
        gate.redrive(older_than=0)
        self._settled_events()
        promote()

    # Redis and clocks

    @rule()
    def flush(self) -> None:
        tally["flushes"] += 1
        self.redis.flushall()
        self.ends.clear()

    @rule(seconds=st.sampled_from((25, 61)))
    def pass_time(self, seconds: int) -> None:
        """For the soft state; what lives by the server's clock ends by it."""
        testing.advance(seconds)
        self.passed += seconds
        self.ends = {pair: end for pair, end in self.ends.items() if end > self.passed}

    @rule(seconds=st.sampled_from((-7200.0, -3.0, 0.0, 3600.0)))
    def step_clock(self, seconds: float) -> None:
        """This machine's wall clock jumps; nothing that must hold depends on it (I7)."""
        tally["clock steps"] += 1
        self.clock.ahead = seconds

    # Reads

    @rule(key=keys)
    def look(self, key: str) -> None:
        """A read never serves as fresh what is older than the last change whose gate has ended (I1), nor an older version (I3).

        A claim that a crash left, or that the path around this read holds, is over: waiting it out would only cost time.
        """
        self.expire_claims()
        floor, version = self.floor[key], self.version[key]
        snapshot = read("counter", key)
        tally["reads"] += 1
        if snapshot.state in ("fresh", "rebuilt"):
            assert snapshot.data["value"] >= floor, f"{snapshot.state} {snapshot.data} after the gate of {floor} had ended"
        assert snapshot.version >= version, f"version {snapshot.version} after {version}"
        self.version[key] = max(self.version[key], snapshot.version)

    @rule(key=keys, point=st.sampled_from(READ), what=inside)
    def look_interrupted(self, key: str, point: str, what: tuple[str, str]) -> None:
        with at(point, lambda: self._do(what)):
            self.look(key)

    # Inside another

    def _do(self, what: tuple[str, str]) -> None:
        name, key = what
        tally[f"inside: {name}"] += 1
        action = getattr(self, name)
        if name in ("watch", "leave", "hide"):
            action(key, TABS[0])
        elif name in ("drain", "flush", "expire_claims", "beat"):
            action()
        elif name == "pass_time":
            action(61)
        elif name == "step_clock":
            action(-7200.0)
        else:
            action(key)

    def _settled_events(self) -> None:
        Event.objects.filter(processed_at=None).update(retry_at=None)
        gate.redrive(older_than=0)
        if not Event.objects.filter(processed_at=None).exists():
            self.floor = dict(self.truth)

    # What must always hold

    @invariant()
    def bounded_and_mortal(self) -> None:
        """I4: at most one entry or one claim a resource. I8: every key has a lifetime; what RQ keeps has names of its own."""
        assert self.redis.eval(WRONG, 0) == []

    @rule()
    def counted(self) -> None:
        """Counts are the live leases of tabs in front, never what was added up (I7)."""
        for key in KEYS:
            expected = sum(pair[0] == key for pair in self.ends)
            assert visibility.watchers(f"counter:{key}").watching == expected

    def teardown(self) -> None:
        """When all is quiet: whatever is shown, or would be served, is the truth (I1)."""
        if not hasattr(self, "truth"):
            return
        points.hook = None
        self.counted()
        self.expire_claims()
        self._settled_events()
        self.beat()
        self.counted()
        for _ in range(20):
            promote()
            self.redis.eval(PAST, 1, "{vis:0}:pending:hot")
            owned = claims.claim("hot", 0, 10, 15)
            if not owned.rows:
                break
            work(settings.lane("hot"), owned)
            self.expire_claims()
        data_type = registry.get("counter")
        found = looks.look("hot", [f"counter:{key}" for key in KEYS])
        marked = marks(data_type, list(KEYS))
        for key in KEYS:
            seen, truth = found[f"counter:{key}"], self.truth[key]
            stored = snapshots.unpack(seen.raw, data_type.schema)
            shown = None if stored is None else json.loads(stored.body)["value"]
            if stored is not None and marked[key].same(stored.stamp) and not seen.pending:
                assert shown == truth, f"lost update: {shown} instead of {truth}"
            if any(pair[0] == key for pair in self.ends):
                assert shown == truth, f"who watches sees {shown} instead of {truth}"
            assert read("counter", key).data["value"] == truth
