"""Events from outside the ORM: applied once, in order of their versions, in one transaction with their record."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction

import visibility
from tests.app.models import Price
from tests.support.declared import at, configured, declared, marked, redis_away, scopes_marked, waiting, watch
from visibility import gate
from visibility.datatypes import DataType
from visibility.exceptions import BadDeclaration, BadResource, PayloadTooLarge, UnknownDataType
from visibility.models import AppliedVersion, Event

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


class Quote(DataType):
    """As the test project's price, and must-deliver: every event leaves a row."""

    name = "quote"

    def apply(self, key: str, version: int | None, payload: Any) -> None:
        if payload == "boom":
            raise ZeroDivisionError
        if not Price.objects.filter(symbol=key).update(cents=payload["cents"]):
            Price.objects.create(symbol=key, cents=payload["cents"])

    def build(self, key: str) -> Any:
        return Price.objects.get(symbol=key).cents


def cents(symbol: str) -> int:
    return Price.objects.get(symbol=symbol).cents


def test_an_event_is_applied_and_marks(transactional_db: None) -> None:
    watch("quote:ACME")
    with declared(Quote):
        done = visibility.emit("quote", ["ACME", "UMBR"], id="m1", version=7, tenant="t1", payload={"cents": 100})
        assert done
        assert done.applied == ("ACME", "UMBR")
        assert (cents("ACME"), cents("UMBR")) == (100, 100)
        assert waiting("quote") == {"ACME"}
        assert marked("quote") == {"UMBR": 1}
        event = Event.objects.get()
        assert event.pk == done.event_id
        assert (event.source, event.external_id, event.version, event.tenant) == ("emit", "m1", 7, "t1")
        assert event.body == {"keys": ["ACME", "UMBR"], "payload": {"cents": 100}}
        assert event.outcome == "done"


def test_the_same_id_twice_is_applied_once(transactional_db: None) -> None:
    with declared(Quote):
        assert visibility.emit("quote", ["A"], id="m1", payload={"cents": 1})
        again = visibility.emit("quote", ["A"], id="m1", payload={"cents": 2})
        assert not again
        assert again.duplicate
        assert cents("A") == 1
        assert marked("quote") == {"A": 1}
        assert Event.objects.count() == 1
        assert visibility.emit("price", ["A"], id="m1", payload={"cents": 3}), "ids are a data type's own"


def test_an_older_or_equal_version_is_ignored_key_by_key(transactional_db: None) -> None:
    with declared(Quote):
        visibility.emit("quote", ["A"], version=5, payload={"cents": 5})
        for version in (5, 4, -1):
            late = visibility.emit("quote", ["A"], version=version, payload={"cents": 0})
            assert not late
            assert late.ignored == ("A",)
        assert set(Event.objects.exclude(version=5).values_list("outcome", flat=True)) == {"ignored"}
        mixed = visibility.emit("quote", ["A", "B"], version=4, payload={"cents": 4})
        assert (mixed.applied, mixed.ignored) == (("B",), ("A",))
        assert (cents("A"), cents("B")) == (5, 4)
        assert marked("quote") == {"A": 1, "B": 1}
        assert dict(AppliedVersion.objects.values_list("key", "version")) == {"A": 5, "B": 4}
        assert visibility.emit("quote", ["A"], payload={"cents": 9}), "without a version nothing is compared"


def test_apply_and_its_record_stand_or_fall_together(transactional_db: None) -> None:
    with declared(Quote):
        with pytest.raises(ZeroDivisionError):
            visibility.emit("quote", ["A", "B"], id="m1", version=1, payload="boom")
        assert not Event.objects.exists()
        assert not AppliedVersion.objects.exists()
        assert not Price.objects.exists()
        assert not marked("quote")
        assert visibility.emit("quote", ["A"], id="m1", version=1, payload={"cents": 1}), "it may be sent again"


def test_inside_a_transaction_of_the_host(transactional_db: None) -> None:
    with declared(Quote):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            visibility.emit("quote", ["A"], id="m1", payload={"cents": 1})
            assert Event.objects.count() == 1
            raise ZeroDivisionError
        assert not Event.objects.exists()
        assert not marked("quote")
        with transaction.atomic():
            visibility.emit("quote", ["A"], id="m1", payload={"cents": 1})
            assert not visibility.emit("quote", ["A"], id="m1", payload={"cents": 2})
            assert not marked("quote")
        assert marked("quote") == {"A": 1}


def test_best_effort_types_pay_no_row(transactional_db: None) -> None:
    class Plain(DataType):
        name = "plain"
        must_deliver = False

        def build(self, key: str) -> Any:
            return key

    with declared(Plain):
        assert visibility.emit("plain", ["a"])
        assert marked("plain") == {"a": 1}
        assert not Event.objects.exists()
        with configured(GATE="worker"):
            visibility.emit("plain", ["b"])
        assert Event.objects.count() == 1
        gate.redrive(older_than=0)
        assert set(marked("plain")) == {"a", "b"}


def test_a_scope_from_outside(make_user: Callable[..., User], transactional_db: None) -> None:
    from tests.app.models import Follow

    ann, bob = make_user("ann"), make_user("bob")
    Follow.objects.create(author=ann, follower=bob)
    watch(f"feed:{bob.pk}")
    done = visibility.emit("feed", scope=f"author:{ann.pk}", keys=Follow.objects.filter(author=ann).values_list("follower"))
    assert done
    assert scopes_marked("feed") == {f"author:{ann.pk}": 1}
    assert waiting("feed") == {str(bob.pk)}


def test_a_scope_alone_reaches_whoever_looks(make_user: Callable[..., User], transactional_db: None) -> None:
    from tests.app.models import Follow

    ann, bob = make_user("ann"), make_user("bob")
    Follow.objects.create(author=ann, follower=bob)
    watch(f"feed:{bob.pk}", "feed:31415")
    assert visibility.emit("feed", scope=f"author:{ann.pk}").scope
    assert waiting("feed") == {str(bob.pk)}


def test_an_orphan_of_emit_is_taken_over(transactional_db: None) -> None:
    def die() -> None:
        raise ZeroDivisionError

    with declared(Quote):
        visibility.emit("quote", ["A"], version=9, payload={"cents": 9})
        with at("gate.start", die):
            visibility.emit("quote", ["A", "B"], id="m2", version=5, payload={"cents": 5})
        assert gate.redrive(older_than=0) == 1
        assert marked("quote") == {"A": 1, "B": 1}


def test_with_redis_away(transactional_db: None) -> None:
    watch("quote:A")
    with declared(Quote):
        with redis_away():
            assert visibility.emit("quote", ["A"], id="m1", payload={"cents": 1})
            assert marked("quote") == {"A": 1}
        Event.objects.update(retry_at=None)
        assert gate.redrive(older_than=0) == 1
        assert waiting("quote") == {"A"}


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "says"),
    [
        (("nope", ["a"]), {}, UnknownDataType, "nope"),
        (("quote",), {}, BadDeclaration, "neither keys nor a scope"),
        (("quote", "abc"), {}, BadDeclaration, "'abc'"),
        (("quote", ["a b"]), {}, BadResource, "'a b'"),
        (("quote", ["a"], "s"), {}, BadDeclaration, "does not define scopes"),
        (("feed", ["1"], "a b"), {}, BadResource, "a b"),
        (("feed", ["1"], "s"), {"version": 1}, BadDeclaration, "not to a scope"),
        (("quote", ["a"]), {"id": ""}, BadDeclaration, "id is text"),
        (("quote", ["a"]), {"id": 5}, BadDeclaration, "id is text"),
        (("quote", ["a"]), {"id": "x" * 201}, BadDeclaration, "id is text"),
        (("quote", ["a"]), {"id": "a\x00b"}, BadDeclaration, "id is text"),
        (("quote", ["a"]), {"id": "\ud800"}, BadDeclaration, "id is text"),
        (("quote", ["a"]), {"tenant": "\ud800"}, BadDeclaration, "tenant is text"),
        (("quote", ["a"]), {"payload": {"x": "\ud800"}}, BadDeclaration, "not JSON"),
        (("quote", ["a"]), {"version": "7"}, BadDeclaration, "version is an integer"),
        (("quote", ["a"]), {"version": True}, BadDeclaration, "version is an integer"),
        (("quote", ["a"]), {"version": 2**63}, BadDeclaration, "version is an integer"),
        (("quote", ["a"]), {"tenant": "x" * 101}, BadDeclaration, "tenant is text"),
        (("quote", ["a"]), {"payload": object()}, BadDeclaration, "not JSON"),
        (("quote", ["a"]), {"payload": float("nan")}, BadDeclaration, "not JSON"),
        (("quote", ["a"]), {"payload": {"x": "a\x00"}}, BadDeclaration, "payload has NUL"),
        (("quote", ["a"]), {"payload": {"x\\\x00": 1}}, BadDeclaration, "payload has NUL"),
        (("quote", ["a"]), {"payload": "x" * 9000}, PayloadTooLarge, "'quote'"),
    ],
)
def test_bad_arguments_are_named(transactional_db: None, args: Any, kwargs: Any, error: type[Exception], says: str) -> None:
    with declared(Quote):
        with pytest.raises(error, match=says.replace("(", r"\(")):
            visibility.emit(*args, **kwargs)
        assert not Event.objects.exists()


def test_a_payload_may_have_a_backslash_before_what_looks_like_nul(transactional_db: None) -> None:
    with declared(Quote):
        visibility.emit("quote", ["a"], id="m", payload={"cents": 1, "note": "\\u0000"})
        assert Event.objects.get().body["payload"]["note"] == "\\u0000"


def test_the_payload_limit_is_a_setting(transactional_db: None) -> None:
    with declared(Quote), configured(LIMITS={"payload_bytes": 30}):
        visibility.emit("quote", ["a"], payload={"cents": 1})
        with pytest.raises(PayloadTooLarge, match=r"38 bytes.*is 30"):
            visibility.emit("quote", ["a"], payload={"cents": 1, "note": "12345678901234567"})


async def test_aemit(transactional_db: None) -> None:
    with declared(Quote):
        assert await visibility.aemit("quote", ["A"], id="m", payload={"cents": 3})
        assert (await Price.objects.aget(symbol="A")).cents == 3


def test_the_same_id_in_many_threads_is_applied_once(transactional_db: None) -> None:
    done: list[bool] = []
    start = threading.Barrier(6)

    def send() -> None:
        start.wait()
        try:
            done.append(bool(visibility.emit("quote", ["A"], id="same", version=1, payload={"cents": 1})))
        finally:
            connections.close_all()

    with declared(Quote):
        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done.count(True) == 1
        assert len(done) == 6
        assert marked("quote") == {"A": 1}


def test_the_highest_version_wins_among_threads(transactional_db: None) -> None:
    start = threading.Barrier(4)

    def send(versions: list[int]) -> None:
        start.wait()
        try:
            for version in versions:
                visibility.emit("quote", ["A"], version=version, payload={"cents": version})
        finally:
            connections.close_all()

    with declared(Quote):
        shuffled = random.Random(3).sample(range(1, 61), 60)
        threads = [threading.Thread(target=send, args=(shuffled[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cents("A") == 60
        assert AppliedVersion.objects.get().version == 60


def _storm(count: int, seed: int, together: int) -> None:
    """Duplicated and reordered events, some in one transaction, against a dictionary that does the same."""
    rng = random.Random(seed)
    symbols = [f"S{n}" for n in range(40)]
    sent: list[tuple[str, str, int]] = []
    model: dict[str, int] = {}
    seen: set[str] = set()
    applied = 0
    for start in range(0, count, together):
        with transaction.atomic():
            for n in range(start, start + together):
                if sent and rng.random() < 0.3:
                    name, symbol, version = rng.choice(sent)
                else:
                    name, symbol, version = f"e{n}", rng.choice(symbols), rng.randrange(count)
                    sent.append((name, symbol, version))
                fresh = name not in seen and version > model.get(symbol, -1)
                done = visibility.emit("quote", [symbol], id=name, version=version, payload={"cents": version})
                assert bool(done) == fresh
                assert done.duplicate == (name in seen)
                seen.add(name)
                if fresh:
                    model[symbol] = version
                    applied += 1
    assert dict(Price.objects.values_list("symbol", "cents")) == model
    assert dict(AppliedVersion.objects.values_list("key", "version")) == model
    assert Event.objects.count() == len(seen)
    assert sum(marked("quote").values()) == applied


def test_duplicated_and_reordered_events_end_as_the_model_does(transactional_db: None) -> None:
    with declared(Quote):
        _storm(500, 1, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_duplicated_and_reordered_events(transactional_db: None) -> None:
    with declared(Quote):
        _storm(10_000, 2, 25)
