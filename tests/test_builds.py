"""The build sequence: what it stores, whom it tells, and what becomes of a claim whose build fails, hangs or is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from django.db import OperationalError
from django.test import override_settings
from hypothesis import given, strategies as st

from tests.lanes import change, claim, drain, drain_all, look, pend, watch
from tests.support import wait_for
from tests.support.probe import builds, order
from visibility import dirty, points, push
from visibility.builds import GIVE_UP_AFTER, backoff, build_claimed, holding, processes, run_build
from visibility.conf import settings
from visibility.datatypes import DataType, registry
from visibility.exceptions import BadSnapshot, BuildTimeout
from visibility.models import DirtyFlag, Summary
from visibility.read import read
from visibility.signals import snapshot_built
from visibility.soft import claims, snapshots
from visibility.soft.claims import Claim
from visibility.soft.client import guard, line
from visibility.soft.looks import Look

LANE = "hot"


class Type(DataType):
    """A data type around a function; not registered."""

    name = "pure"

    def __init__(self, function: Callable[[Sequence[str]], Any]) -> None:
        self.function, self.calls = function, 0

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        self.calls += 1
        return self.function(keys)  # type: ignore[no-any-return]


def values(keys: Sequence[str], bad: Sequence[str] = ()) -> dict[str, Any]:
    if set(keys) & set(bad):
        raise ValueError("bad")
    return {key: key.upper() for key in keys}


# --- pure -------------------------------------------------------------------------------------------------------------


@given(keys=st.lists(st.text("abc", min_size=1), min_size=1, max_size=40, unique=True), data=st.data())
def test_J14_the_bad_keys_of_a_batch_are_found_and_the_others_are_built(keys: list[str], data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.sampled_from(keys), unique=True, max_size=3))
    one = Type(lambda some: values(some, bad))
    out = run_build(one, keys)
    assert out.keys() == set(keys)
    assert {key for key, value in out.items() if isinstance(value, ValueError)} == set(bad)
    assert all(out[key] == key.upper() for key in keys if key not in bad)
    # By halves: a bad key costs two calls a level.
    assert one.calls <= 1 + 2 * len(bad) * (len(keys).bit_length() + 1)


def test_a_build_that_forgets_a_key_fails_for_that_key() -> None:
    out = run_build(Type(lambda keys: {keys[0]: 1}), ["a", "b"])
    assert out["a"] == 1
    assert isinstance(out["b"], LookupError)


@pytest.mark.parametrize("nonsense", [None, 7, [1, 2]])
def test_a_build_that_returns_no_mapping_fails_by_itself(nonsense: Any) -> None:
    out = run_build(Type(lambda keys: nonsense), ["a", "b"])
    assert all(isinstance(value, Exception) for value in out.values())


def test_keys_may_come_back_as_the_numbers_they_are_in_the_database() -> None:
    assert run_build(Type(lambda keys: {int(key): 1 for key in keys}), ["1", "2"]) == {"1": 1, "2": 1}


def test_a_timeout_is_not_tried_again_by_halves() -> None:
    def hang(keys: Sequence[str]) -> Any:
        raise BuildTimeout("too long")

    one = Type(hang)
    assert all(isinstance(value, BuildTimeout) for value in run_build(one, ["a", "b", "c"]).values())
    assert one.calls == 1


@given(tries=st.integers(1, 10_000))
def test_back_off_doubles_with_jitter_up_to_five_minutes(tries: int) -> None:
    middle = min(300.0, 2.0**tries) if tries < 16 else 300.0
    assert 0.5 * middle <= backoff(tries) <= 1.5 * middle


def test_a_build_may_not_take_longer_than_its_limit() -> None:
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "BUILD_TIMEOUT": 0.2}):
        started = time.monotonic()
        out = run_build(Type(lambda keys: time.sleep(30)), ["a", "b"], processes.time_limit)
        assert time.monotonic() - started < 5
        assert all(isinstance(value, BuildTimeout) for value in out.values())


def test_a_limit_that_strikes_in_the_middle_of_a_command_is_not_a_redis_that_is_away(redis: redis_py.Redis) -> None:
    with override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "BUILD_TIMEOUT": 0.2}):
        with pytest.raises(BuildTimeout), processes.time_limit(), guard():
            line().ask("BLPOP", "nothing", 30)
        with guard():
            assert line().ask("ECHO", "next") == b"next"


# --- on real parts ----------------------------------------------------------------------------------------------------


def built(resource: str) -> Any:
    stored = snapshots.unpack(look(resource).raw, 1)
    return stored and snapshots.json.loads(stored.body)


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []

    def receive(sender: str, **kwargs: Any) -> None:
        rows.append({"sender": sender, **kwargs})

    snapshot_built.connect(receive)
    yield rows
    snapshot_built.disconnect(receive)


@pytest.mark.parametrize("text", ["\ud800", "a\x00b"], ids=["surrogate", "nul"])
def test_a_failure_with_text_that_nobody_stores_is_noted_as_any_other(
    db: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def fail(self: Any, keys: Sequence[str]) -> Mapping[str, Any]:
        raise ValueError(text)

    monkeypatch.setattr(type(registry.get("counter")), "build_many", fail)
    monkeypatch.setattr("visibility.builds.GIVE_UP_AFTER", 1)
    watch("counter:a")
    pend("counter:a")
    drain()
    flag = DirtyFlag.objects.get(key="a")
    assert (flag.failures, flag.last_error[:12]) == (1, "ValueError: ")


def test_a_snapshot_is_stored_under_the_token_of_its_claim(db: None, probes: Path, told: list[dict[str, Any]]) -> None:
    change("a", 7)
    watch("probe:a")
    pend("probe:a")
    owned = claim()
    with holding(LANE, owned) as lost:
        out = build_claimed(registry.get("probe"), LANE, owned, owned.rows, lost)["probe:a"]
    assert out.stored is not None and out.stored.version == int(owned.token) == look("probe:a").version
    assert built("probe:a") == {"value": 7}
    assert look("probe:a").fresh == int(owned.token)
    assert [(row["sender"], row["resource"], row["version"]) for row in told] == [("probe", "probe:a", int(owned.token))]


@pytest.mark.parametrize("value", [None, 0, False, [], "", {}])
def test_C6_empty_values_are_values(db: None, probes: Path, value: Any) -> None:
    order("a", value=value)
    assert read("probe", "a").data == value
    assert read("probe", "a").data == value
    assert len(builds("a")) == 1


@pytest.mark.parametrize(("value", "said"), [({1, 2}, "JSON"), (float("nan"), "JSON"), ("x" * 2_000_000, "snapshot_bytes")])
def test_what_cannot_be_stored_names_the_resource_and_leaves_the_others(value: Any, said: str) -> None:
    with pytest.raises(BadSnapshot, match=r"'pure:a'.*" + said):
        snapshots.encode_body("pure:a", value)


def test_a_bad_value_fails_its_key_alone(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(registry.get("probe")), "build_many", lambda self, keys: {"a": {1}, "b": 2})
    pend("probe:a", "probe:b", forced=True)
    drain()
    assert built("probe:a") is None and built("probe:b") == 2
    assert "probe:a" in look("probe:a").error


def test_J13_a_flag_is_cleared_after_success_only(db: None, probes: Path) -> None:
    dirty.mark("probe", {"a": 1})
    order("a", fail="no")
    watch("probe:a")
    pend("probe:a")
    drain()
    assert dirty.dirty_among("probe", ["a"])
    order("a")
    drain_all()
    assert not dirty.dirty_among("probe", ["a"])


def test_a_flag_that_moved_during_the_build_stays(db: None, probes: Path) -> None:
    change("a", 1)
    dirty.mark("probe", {"a": 1})
    watch("probe:a")
    pend("probe:a")

    def move(name: str) -> None:
        if name == "build.read":
            dirty.mark("probe", {"a": 1})

    points.hook = move
    try:
        drain()
    finally:
        points.hook = None
    assert dirty.dirty_among("probe", ["a"])
    assert look("probe:a").fresh == 0
    assert read("probe", "a").state == "rebuilt"


def test_a_push_that_fails_fails_no_build(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(updates: object) -> None:
        raise ConnectionError("no layer")

    monkeypatch.setattr(push, "publish", broken)
    watch("probe:a")
    pend("probe:a")
    assert drain() == 1
    assert not look("probe:a").queued


def test_a_summary_is_emptied_once_it_is_shown_and_not_before(db: None, probes: Path) -> None:
    dirty.mark("digest", {"a": 2}, kinds={"a": {"comment": 2}})
    watch("digest:a")
    pend("digest:a")

    def more(name: str) -> None:
        if name == "build.read":
            dirty.mark("digest", {"a": 1}, kinds={"a": {"comment": 1}})

    points.hook = more
    try:
        drain()
    finally:
        points.hook = None
    assert Summary.objects.get(key="a").count == 3
    assert read("digest", "a").missed == 3
    assert not Summary.objects.filter(key="a").exists()


def test_five_failures_in_a_row_set_a_resource_aside_until_it_is_released(db: None, probes: Path, redis: redis_py.Redis) -> None:
    order("a", fail="poison")
    watch("probe:a")
    pend("probe:a")
    for _ in range(GIVE_UP_AFTER):
        redis.zadd("{vis:0}:pending:hot", {"probe:a": 1}, xx=True)
        drain()
    assert not look("probe:a").queued
    flag = DirtyFlag.objects.get(data_type="probe", key="a")
    assert flag.quarantined_at is not None and flag.failures == 5 and "poison" in flag.last_error
    assert flag.first_at is not None
    assert dirty.dirty_among("probe", ["a"]) == {}
    assert dirty.release("probe", ["a"]) == 1
    assert list(dirty.dirty_among("probe", ["a"])) == ["a"]


def test_quarantine_ends_by_itself(db: None, probes: Path) -> None:
    dirty.quarantine("probe", "a", 5, "no")
    assert dirty.oldest("probe", 10) == []
    DirtyFlag.objects.update(not_before=DirtyFlag.objects.get(key="a").quarantined_at)
    assert [key for key, _ in dirty.oldest("probe", 10)] == ["a"]


def test_success_ends_quarantine(db: None, probes: Path) -> None:
    dirty.quarantine("probe", "a", 5, "no")
    assert read("probe", "a").state == "rebuilt"
    flag = DirtyFlag.objects.get(key="a")
    assert (flag.first_at, flag.quarantined_at, flag.not_before, flag.failures, flag.last_error) == (None, None, None, 0, "")


# --- claims while a build runs ----------------------------------------------------------------------------------------


def short_leases(seconds: float) -> Any:
    return override_settings(VISIBILITY={"REDIS_URL": settings.REDIS_URL, "BUILD_LEASE": seconds})


@contextmanager
def drain_under_way() -> Iterator[None]:
    """A drain that builds `probe:a`, which goes on once it is told to. It is waited for at the end."""
    order("a", hold=True)
    pend("probe:a", forced=True)
    thread = threading.Thread(target=drain)
    thread.start()
    wait_for(lambda: builds("a"), 5, "the build runs")
    yield
    thread.join(10)


def test_a_long_build_keeps_its_claim(transactional_db: None, probes: Path) -> None:
    with short_leases(0.6), drain_under_way():
        first = look("probe:a").claim_ms or 0
        wait_for(lambda: (look("probe:a").claim_ms or 0) > first + 600, 5, "the claim outlived its lease")
        assert claims.claim(LANE, 0, 10, 15).rows == []
        order("a", value=1)
    assert built("probe:a") == 1
    assert len(builds("a")) == 1


def test_J9_a_claim_that_was_lost_on_the_way_stores_nothing(transactional_db: None, probes: Path, redis: redis_py.Redis) -> None:
    """Its lease ended while it built (it was starved); somebody else took over and built something newer."""
    with drain_under_way():
        redis.zadd("{vis:0}:claimed:hot", {"probe:a": 1})
        other = claim()
        claims.store(LANE, other, [(other.rows[0], 60_000, other.now_ms + 60_000, _packed(other, b'"newer"'), False)])
        order("a", value="older")
    assert built("probe:a") == "newer"
    assert look("probe:a").owner == other.token


def _packed(owned: Claim, body: bytes) -> bytes:
    return snapshots.pack(snapshots.Stored(int(owned.token), 1, owned.now_ms, 0, owned.now_ms + 60_000, 1, "0.0.0", body))


@pytest.mark.parametrize("stop", [SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("point", ["build.claimed", "build.marks", "build.read", "build.store", "build.stored", "build.cleared"])
def test_a_worker_that_is_stopped_gives_its_claims_back_at_once(db: None, probes: Path, point: str, stop: BaseException) -> None:
    change("a", 1)
    dirty.mark("probe", {"a": 1, "b": 1})
    watch("probe:a")
    pend("probe:a", "probe:b", forced=True)

    def at(name: str) -> None:
        if name == point:
            raise stop

    points.hook = at
    try:
        with pytest.raises(type(stop)):
            drain()
    finally:
        points.hook = None
    for name in ("probe:a", "probe:b"):
        seen = look(name)
        assert seen.claim_ms is None and seen.owner == "" and seen.due_ms is not None
        assert seen.due_ms <= seen.now_ms + 60
    drain_all()
    assert built("probe:a") == {"value": 1}


@pytest.mark.parametrize("moved", [False, True])
def test_where_no_mark_stood_the_store_ends_the_claim_unless_it_moved(db: None, probes: Path, at: Any, moved: bool) -> None:
    watch("probe:a")
    pend("probe:a", "probe:b", forced=True)
    seen: list[Look] = []

    if moved:
        at("build.store", lambda: pend("probe:a", window=60.0))
    at("build.stored", lambda: seen.extend(look(name) for name in ("probe:a", "probe:b")))
    drain()
    own, other = seen
    assert [one.claim_ms is None for one in seen] == [not moved, True]
    assert (own.fresh == own.version, own.pending) == (not moved, moved)
    assert other.version and not other.pending and not other.fresh, "nobody watches it, nothing vouches for it"
    after = look("probe:a")
    assert after.claim_ms is None and after.version == own.version
    assert (after.due_ms is not None) == moved == (not after.fresh)


def test_what_the_store_ended_is_told_whatever_fails_after_it(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(push, "publish", lambda updates: told.extend(name for name, _ in updates))
    dirty.mark("probe", {"a": 1})
    watch("probe:a", "probe:b")
    pend("probe:a", "probe:b")

    def away(*_: object) -> None:
        raise OperationalError("server closed the connection")

    with monkeypatch.context() as patch:
        patch.setattr(dirty, "clear", away)
        with pytest.raises(OperationalError):
            drain()
    assert told == ["probe:b"]
    drain_all()
    assert told == ["probe:b", "probe:a"]


def test_readers_who_wait_are_woken_by_the_store(transactional_db: None, probes: Path, redis: redis_py.Redis) -> None:
    with drain_under_way():
        (refused,) = claims.claim_named(LANE, ["probe:a"], 15)[1].values()
        assert isinstance(refused, claims.Busy)
        assert not claims.wait_for_build("probe:a", refused.owner, 0.05)
        order("a", value=1)
        assert claims.wait_for_build("probe:a", refused.owner, 10)
        assert built("probe:a") == 1


def test_a_database_that_is_away_puts_the_batch_off(db: None, probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch("probe:a")
    pend("probe:a")

    def away(*args: object) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(dirty, "marks", away)
    with pytest.raises(OperationalError):
        drain()
    seen = look("probe:a")
    assert seen.claim_ms is None and seen.tries == 0
    assert 1_000 < (seen.due_ms or 0) - seen.now_ms <= 2_000


def test_a_reader_that_is_stopped_leaves_no_claim(db: None, probes: Path) -> None:
    def at(name: str) -> None:
        if name == "build.read":
            raise KeyboardInterrupt

    points.hook = at
    try:
        with pytest.raises(KeyboardInterrupt):
            read("probe", "a")
    finally:
        points.hook = None
    assert not look("probe:a").queued
    assert read("probe", "a").state == "rebuilt"
