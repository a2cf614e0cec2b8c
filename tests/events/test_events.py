"""Sources, the collecting of events in transactions, and the outbox row of a change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.db.models.signals import post_save
from django.test import TestCase

from tests.app.models import Counter, Follow, Message, Notice, Post, Room
from tests.support.declared import alone, at, configured, declared, marked, scopes_marked, waiting, watch
from visibility.datatypes import Audience, Change, DataType, on, registry
from visibility.models import DirtyFlag, Event, ScopeMark

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def ann(make_user: Callable[..., User], transactional_db: None) -> User:
    return make_user("ann")


@pytest.fixture
def heard() -> Iterator[list[Change]]:
    """A type that hears everything of posts, rooms and counters; what it heard."""
    changes: list[Change] = []

    class Ear(DataType):
        name = "ear"

        @on(Post, Room, Counter)
        def anything(self, change: Change) -> list[str]:
            changes.append(change)
            return [f"{type(change.instance).__name__}:{change.instance.pk}"]

        def build(self, key: str) -> Any:
            return key

    with declared(Ear):
        yield changes


# --- When the gate runs ---


def test_E1_nothing_is_marked_before_the_commit(transactional_db: None) -> None:
    with transaction.atomic():
        Counter.objects.create(name="a")
        assert not DirtyFlag.objects.exists()
        assert not waiting("counter")
    assert marked("counter") == {"a": 1}


def test_E1_outside_a_transaction_the_gate_runs_at_once(transactional_db: None) -> None:
    watch("counter:a")
    Counter.objects.create(name="a")
    assert waiting("counter") == {"a"}
    assert not marked("counter")


def test_E2_nothing_remains_of_a_savepoint_that_was_rolled_back(transactional_db: None) -> None:
    with transaction.atomic():
        Counter.objects.create(name="outer")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Counter.objects.create(name="inner")
            with transaction.atomic():
                Counter.objects.create(name="innermost")
            raise ZeroDivisionError
        with transaction.atomic():
            Counter.objects.create(name="kept")
    assert set(marked("counter")) == {"outer", "kept"}
    assert Event.objects.count() == 2
    assert not Event.objects.filter(processed_at=None).exists()


def test_E2_released_savepoints_go_with_the_one_around_them(transactional_db: None) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with transaction.atomic():
                Counter.objects.create(name="released")
            Counter.objects.create(name="after")
            raise ZeroDivisionError
        assert not Event.objects.exists()
        Counter.objects.create(name="last")
    assert set(marked("counter")) == {"last"}


def test_E3_a_rollback_leaves_neither_job_nor_mark_nor_event(transactional_db: None, redis: Any) -> None:
    watch("counter:a")

    def keys() -> set[str]:
        # Counts of earlier tests may still be on their way.
        return {key for key in redis.keys("*") if not key.startswith(("{vis:0}:m:", "{vis:0}:totals"))}

    before = keys()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Counter.objects.create(name="a")
        raise ZeroDivisionError
    assert not Event.objects.exists()
    assert not DirtyFlag.objects.exists()
    assert keys() == before


def test_E6_the_gate_comes_before_the_hosts_own_hooks(transactional_db: None) -> None:
    seen: list[dict[str, int]] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(marked("counter")))
        Counter.objects.create(name="a")
        with transaction.atomic():
            transaction.on_commit(lambda: seen.append(marked("counter")))
            Counter.objects.create(name="b")
    assert seen == [{"a": 1, "b": 1}] * 2


def test_J12_a_failing_hook_of_the_host_does_not_drop_ours(transactional_db: None) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        transaction.on_commit(fail)
        Counter.objects.create(name="a")
    assert marked("counter") == {"a": 1}


def test_J12_a_failing_gate_raises_into_nobody(transactional_db: None, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError("in the gate")

    with at("gate.start", fail), transaction.atomic():
        Counter.objects.create(name="a")
        transaction.on_commit(lambda: ran.append(1))
    assert ran == [1]
    assert Event.objects.get().processed_at is None
    assert "ZeroDivisionError: in the gate" in caplog.text


def test_one_pass_a_transaction(transactional_db: None) -> None:
    with at("gate.start", lambda: None) as reached, transaction.atomic():
        for n in range(700):
            Counter.objects.create(name=f"c{n}")
            if n % 100 == 0:
                with transaction.atomic():
                    Counter.objects.create(name=f"inner{n}")
    assert reached.count("gate.start") == 1
    assert Event.objects.count() == 707
    assert not Event.objects.filter(processed_at=None).exists()
    assert len(marked("counter")) == 707


def test_a_long_import_keeps_its_events_in_their_rows(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from visibility.events import commit

    monkeypatch.setattr(commit, "IN_MEMORY", 40)
    monkeypatch.setattr(commit, "HELD_BACK", 10)
    watch("counter:c3", "counter:c150")
    with transaction.atomic():
        for n in range(205):
            Counter.objects.create(name=f"c{n}")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            for n in range(205, 300):
                Counter.objects.create(name=f"c{n}")
            raise ZeroDivisionError
        hooks = [hook[1].__self__ for hook in connection.run_on_commit]
        assert max(len(getattr(hook, "items", ())) for hook in hooks) < 60
    assert Event.objects.filter(outcome="done").count() == 205
    assert waiting("counter") == {"c3", "c150"}
    assert marked("counter") == {f"c{n}": 1 for n in range(205) if n not in (3, 150)}


def test_hooks_stay_as_few_as_open_savepoints(transactional_db: None) -> None:
    with transaction.atomic():
        for n in range(50):
            with transaction.atomic():
                Counter.objects.create(name=f"c{n}")
        assert len(connection.run_on_commit) <= 3
    assert len(marked("counter")) == 50


def test_a_hook_that_saves_gets_a_pass_of_its_own(transactional_db: None) -> None:
    with transaction.atomic():
        Counter.objects.create(name="a")
        transaction.on_commit(lambda: Counter.objects.create(name="b"))
    assert marked("counter") == {"a": 1, "b": 1}


def test_manual_transactions_are_taken_in_when_autocommit_is_back(transactional_db: None) -> None:
    transaction.set_autocommit(False)
    try:
        Counter.objects.create(name="a")
        transaction.commit()
        Counter.objects.create(name="b")
        transaction.rollback()
        Counter.objects.create(name="c")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert "c" in marked("counter")
    assert "b" not in marked("counter")
    assert set(Event.objects.values_list("body__audience__counter__0__keys__0", flat=True)) == {"a", "c"}


async def test_S5_asave_and_save_in_a_thread_both_work(transactional_db: None) -> None:
    counter = Counter(name="a")
    await counter.asave()
    assert await DirtyFlag.objects.filter(key="a").aexists()


class InTestCase(TestCase):
    """Inside Django's `TestCase` nothing commits; the hooks are where `captureOnCommitCallbacks` looks."""

    def test_hooks_can_be_captured_and_run(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            Counter.objects.create(name="a")
            Counter.objects.create(name="b")
        assert len(callbacks) == 2
        assert marked("counter") == {"a": 1, "b": 1}
        assert Event.objects.filter(outcome="done").count() == 2

    def test_the_row_is_there_without_a_commit(self) -> None:
        Counter.objects.create(name="a")
        assert Event.objects.get().processed_at is None
        assert not marked("counter")

    def test_a_rollback_inside_takes_it_away(self) -> None:
        capture = self.captureOnCommitCallbacks(execute=True)
        with capture as callbacks, pytest.raises(ZeroDivisionError), transaction.atomic():
            Counter.objects.create(name="a")
            raise ZeroDivisionError
        assert not callbacks
        assert not Event.objects.exists()


# --- The row ---


def test_the_row_stands_in_the_changes_own_transaction(ann: User) -> None:
    Event.objects.all().delete()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Post.objects.create(author=ann, text="x")
        assert Event.objects.count() == 1
        raise ZeroDivisionError
    assert not Event.objects.exists()
    with transaction.atomic():
        post = Post.objects.create(author=ann, text="x")
    event = Event.objects.get()
    assert (event.source, event.model, event.object_pk, event.action) == ("model", "testapp.Post", str(post.pk), "created")
    assert (event.data_type, event.using, event.outcome) == ("feed", "default", "done")
    assert event.decision == {"feed": {"hot": 0, "cold": 1, "reasons": {"scope": 1}}}
    assert event.took_ms is not None
    assert event.took_ms > 0
    assert "x" not in str(event.body), "no text of the host's is kept"


def test_rows_seen_early_survive_the_rollback_of_an_inner_savepoint(transactional_db: None) -> None:
    with transaction.atomic():
        Counter.objects.create(name="outer")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Counter.objects.create(name="inner")
            assert Event.objects.count() == 2
            raise ZeroDivisionError
        assert Event.objects.count() == 1
    assert Event.objects.count() == 1
    assert marked("counter") == {"outer": 1}


def test_rows_written_in_a_savepoint_made_by_hand_do_not_go_with_it(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django's hooks do not hang on such a savepoint, and what was changed before it stays."""
    from visibility.events import commit

    monkeypatch.setattr(commit, "IN_MEMORY", 7)
    monkeypatch.setattr(commit, "HELD_BACK", 5)
    with transaction.atomic():
        for n in range(9):
            Counter.objects.create(name=f"c{n}")
        # Django 6.1 has it under a new name.
        create = getattr(transaction, "savepoint_create", None) or transaction.savepoint
        by_hand = create()
        assert Event.objects.count() == 9
        Counter.objects.create(name="undone")
        transaction.savepoint_rollback(by_hand)
        transaction.savepoint_commit(by_hand)
        Counter.objects.create(name="after")
    # A mark too many does no harm.
    assert set(marked("counter")) >= {"after", *(f"c{n}" for n in range(9))}
    assert Event.objects.filter(outcome="done").count() == 11


@pytest.mark.parametrize("text", ["\ud800", "a\x00b"], ids=["surrogate", "nul"])
def test_text_that_no_database_takes_costs_nobody_his_change(transactional_db: None, text: str) -> None:
    class Odd(DataType):
        name = "odd"

        def build(self, key: str) -> int:
            return 1

        @on(Counter)
        def named(self, change: Change) -> Audience:
            return Audience(["a"], kind=text)

        @on(Counter)
        def broken(self, change: Change) -> Audience:
            raise ValueError(text)

    with declared(Odd), transaction.atomic():
        Counter.objects.create(name="a")
    assert marked("counter") == {"a": 1}
    assert Event.objects.count() == 1


def test_rows_that_cannot_be_made_leave_the_gate_its_pass(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from visibility.events import outbox

    def refuse(*_: Any) -> int:
        raise RuntimeError

    monkeypatch.setattr(outbox, "_insert", refuse)
    with transaction.atomic():
        Counter.objects.create(name="a")
    assert marked("counter") == {"a": 1}


def test_best_effort_types_pay_no_row(transactional_db: None) -> None:
    class Cheap(DataType):
        name = "cheap"
        must_deliver = False

        @on(Counter)
        def counters(self, change: Change) -> list[str]:
            return [change.instance.name]  # type: ignore[attr-defined]

        def build(self, key: str) -> Any:
            return key

    with declared(Cheap), alone("cheap"):
        Counter.objects.create(name="a")
        assert marked("cheap") == {"a": 1}
        assert not Event.objects.exists()
        with configured(GATE="worker"):
            Counter.objects.create(name="b")
        assert Event.objects.count() == 1, "another process needs it"


def test_one_row_for_several_types(ann: User) -> None:
    Event.objects.all().delete()
    room = Room.objects.create(name="r")
    Message.objects.create(room=room, author=ann, text="hi")
    event = Event.objects.get(model="testapp.Message")
    assert set(event.data_type.split(",")) == {"room", "unread"}


def test_a_database_without_the_table_costs_the_host_nothing(transactional_db: None, caplog: pytest.LogCaptureFixture) -> None:
    from visibility.events import outbox

    outbox.forget()
    with connection.schema_editor() as editor:
        editor.alter_db_table(Event, "visibility_event", "visibility_event_gone")
    try:
        with transaction.atomic():
            Counter.objects.create(name="a")
        assert Counter.objects.filter(name="a").exists()
        assert "no event can be written" in caplog.text
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Event, "visibility_event_gone", "visibility_event")
        outbox.forget()
    assert marked("counter") == {"a": 1}


# --- What is heard ---


def test_created_saved_and_deleted(ann: User, heard: list[Change]) -> None:
    post = Post.objects.create(author=ann, text="x")
    post.text = "y"
    post.save()
    pk = post.pk
    post.delete()
    assert [(c.action, c.instance.pk or pk) for c in heard] == [("created", pk), ("saved", pk), ("deleted", pk)]
    assert all(c.using == "default" and c.event_id for c in heard)


def test_update_fields_are_filtered_under_either_name(ann: User) -> None:
    class Picky(DataType):
        name = "picky"

        @on(Post, fields=["author"])
        def posts(self, change: Change) -> list[int]:
            return [change.instance.pk]

        def build(self, key: str) -> Any:
            return key

    with declared(Picky):
        post = Post.objects.create(author=ann, text="x")
        assert marked("picky") == {str(post.pk): 1}
        post.save(update_fields=["text"])
        assert marked("picky") == {str(post.pk): 1}
        post.save(update_fields=["author"])
        post.save(update_fields=["author_id"])
        post.save()
        assert marked("picky") == {str(post.pk): 4}


def test_actions_are_filtered(ann: User) -> None:
    class OnlyDeletes(DataType):
        name = "only_deletes"

        @on(Post, actions=["deleted"])
        def posts(self, change: Change) -> list[int]:
            return [change.instance.pk]

        def build(self, key: str) -> Any:
            return key

    with declared(OnlyDeletes):
        post = Post.objects.create(author=ann, text="x")
        pk = post.pk
        assert not marked("only_deletes")
        post.delete()
        assert marked("only_deletes") == {str(pk): 1}


def test_many_to_many_from_both_sides(ann: User, heard: list[Change]) -> None:
    post = Post.objects.create(author=ann, text="x")
    heard.clear()
    post.likes.add(ann)
    post.likes.add(ann)
    post.likes.remove(ann)
    ann.liked.add(post)
    ann.liked.clear()
    post.likes.set([ann])
    post.likes.clear()
    assert {c.action for c in heard} == {"m2m"}
    assert {c.instance.pk for c in heard} == {post.pk}
    # An add that adds nothing tells nothing; removals are asked before and after.
    assert Event.objects.filter(action="m2m").count() == 6


def test_whoever_leaves_a_relation_is_in_its_audience(ann: User, make_user: Callable[..., User]) -> None:
    class Members(DataType):
        name = "members"

        @on(Room)
        def rooms(self, change: Change) -> Audience:
            return Audience(change.instance.members.values_list("pk"))  # type: ignore[attr-defined]

        def build(self, key: str) -> Any:
            return key

    bob = make_user("bob")
    with declared(Members):
        room = Room.objects.create(name="r")
        room.members.set([ann, bob])
        DirtyFlag.objects.all().delete()
        room.members.remove(bob)
        assert marked("members") == {str(ann.pk): 1, str(bob.pk): 1}
        DirtyFlag.objects.all().delete()
        bob.rooms.add(room)
        assert marked("members") == {str(ann.pk): 1, str(bob.pk): 1}
        DirtyFlag.objects.all().delete()
        room.members.clear()
        assert marked("members") == {str(ann.pk): 1, str(bob.pk): 1}


def test_an_audience_that_goes_with_the_row_is_asked_before(ann: User, make_user: Callable[..., User]) -> None:
    class Members(DataType):
        name = "members"

        @on(Room)
        def rooms(self, change: Change) -> Audience:
            return Audience(User.objects.filter(rooms=change.instance.pk).values_list("pk"))

        def build(self, key: str) -> Any:
            return key

    with declared(Members):
        room = Room.objects.create(name="r")
        room.members.add(ann)
        DirtyFlag.objects.all().delete()
        room.delete()
        assert marked("members") == {str(ann.pk): 1}
        event = Event.objects.get(action="deleted")
        assert event.body["audience"] == {"members": [{"keys": [str(ann.pk)]}]}


def test_E5_a_deferred_field_costs_a_delete_no_query(ann: User, django_assert_num_queries: Any) -> None:
    class Rooms(DataType):
        name = "rooms"

        @on(Message)
        def messages(self, change: Change) -> list[int]:
            return [change.instance.room_id]  # type: ignore[attr-defined]

        def build(self, key: str) -> Any:
            return key

    room = Room.objects.create(name="r")
    with declared(Rooms), alone("rooms"):
        plain = Message.objects.create(room=room, author=ann, text="hi")
        sparse = Message.objects.only("pk", "room_id").get(pk=Message.objects.create(room=room, author=ann, text="ho").pk)
        with at("gate.start", lambda: None) as _, connection.execute_wrapper(_Count()) as _:
            pass
        counts = []
        for one in (plain, sparse):
            count = _Count()
            with connection.execute_wrapper(count):
                one.delete()
            counts.append(count.n)
        assert counts[0] == counts[1]
    assert "text" not in Event.objects.filter(action="deleted").first().body.get("fields", {})  # type: ignore[union-attr]


class _Count:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.n += 1
        return execute(sql, params, many, context)


def test_E5_fixtures_are_asked_after_the_commit(ann: User, tmp_path: Any, heard: list[Change]) -> None:
    bob = User.objects.create_user("bob")
    follow = Follow(pk=7, author=ann, follower=bob)
    post = Post(pk=8, author=ann, text="x")
    file = tmp_path / "rows.json"
    # The post comes first: what its audience is read from is not there yet.
    file.write_text(serializers.serialize("json", [post, follow]))
    watch(f"feed:{bob.pk}")
    call_command("loaddata", str(file), verbosity=0)
    assert [type(c.instance).__name__ for c in heard] == ["Post"]
    assert scopes_marked("feed") == {f"author:{ann.pk}": 1}
    assert waiting("feed") == {str(bob.pk)}
    assert not Event.objects.filter(processed_at=None).exists()


def test_proxies_and_instances_of_children_are_heard(ann: User) -> None:
    class PostProxy(Post):
        class Meta:
            proxy = True
            app_label = "testapp"

    heard: list[str] = []

    class Ear(DataType):
        name = "ear"

        @on("testapp.Post")
        def posts(self, change: Change) -> None:
            heard.append(f"{type(change.instance).__name__} {change.action}")

        def build(self, key: str) -> Any:
            return key

    try:
        with declared(Ear):
            post = PostProxy.objects.create(author=ann, text="x")
            post.delete()
            assert heard == ["PostProxy created", "PostProxy deleted"]
    finally:
        from django.apps import apps

        apps.all_models["testapp"].pop("postproxy", None)
        apps.clear_cache()


# --- Handlers ---


def test_every_form_of_an_answer(ann: User) -> None:
    answers: list[Any] = []

    class Every(DataType):
        name = "any"

        @on(Counter)
        def counters(self, change: Change) -> Any:
            return answers.pop()

        def build(self, key: str) -> Any:
            return key

    with declared(Every), alone("any"):
        for answer, keys in (
            (None, set()),
            ([], set()),
            (["a", 1, "a"], {"a", "1"}),
            ((n for n in "xy"), {"x", "y"}),
            ({ann}, {str(ann.pk)}),
            (User.objects.values_list("pk"), {str(ann.pk)}),
            (User.objects.filter(pk=ann.pk), {str(ann.pk)}),
            (User.objects.filter(pk=ann.pk).values("username"), {"ann"}),
            ([Audience(["p"]), Audience(["q"])], {"p", "q"}),
        ):
            DirtyFlag.objects.all().delete()
            answers.append(answer)
            Counter.objects.create(name=str(Counter.objects.count()))
            assert set(marked("any")) == keys


def test_a_bad_key_costs_only_itself(transactional_db: None, caplog: pytest.LogCaptureFixture) -> None:
    class Sloppy(DataType):
        name = "sloppy"

        @on(Counter)
        def counters(self, change: Change) -> list[str]:
            return ["good", "not a key", "", "x" * 201]

        def build(self, key: str) -> Any:
            return key

    with declared(Sloppy), alone("sloppy"):
        Counter.objects.create(name="a")
        assert marked("sloppy") == {"good": 1}
        assert "not a key" in Event.objects.get().error
        assert Event.objects.get().outcome == "done"


def test_a_failing_handler_fails_alone_and_is_asked_again(transactional_db: None, caplog: pytest.LogCaptureFixture) -> None:
    broken = [True]

    class Broken(DataType):
        name = "broken"

        @on(Counter)
        def counters(self, change: Change) -> list[str]:
            if broken:
                raise ZeroDivisionError("no audience")
            return [change.instance.name]  # type: ignore[attr-defined]

        def build(self, key: str) -> Any:
            return key

    from visibility import gate

    with declared(Broken):
        with transaction.atomic():
            Counter.objects.create(name="a")
        assert marked("counter") == {"a": 1}
        event = Event.objects.get()
        assert event.processed_at is None
        assert "ZeroDivisionError: no audience" in event.error
        assert event.decision["broken"]["left"] == "all"
        assert "left" not in event.decision["counter"]
        assert gate.redrive(older_than=0) == 0, "it backs off"
        Event.objects.update(retry_at=None)
        broken.clear()
        assert gate.redrive(older_than=0) == 1
        assert marked("broken") == {"a": 1}
        assert marked("counter") == {"a": 1}, "what was done is not done twice"
        event.refresh_from_db()
        assert event.outcome == "done"


def test_a_failing_query_in_a_handler_does_not_break_the_hosts_transaction(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(DataType):
        name = "broken"

        @on(Counter)
        def counters(self, change: Change) -> list[str]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT nothing FROM nowhere")
            return []

        @on(Notice)
        def notices(self, change: Change) -> list[str]:
            Counter.objects.create(name="a")
            return []

        def build(self, key: str) -> Any:
            return key

    ann = User.objects.create_user("ann")
    with declared(Broken):
        with transaction.atomic():
            Counter.objects.create(name="a")
            Notice.objects.create(user=ann)
            Counter.objects.create(name="b")
        assert set(Counter.objects.values_list("name", flat=True)) == {"a", "b"}
        assert set(marked("counter")) == {"a", "b"}


def test_a_scope_without_scopes_is_marked_key_by_key(ann: User, caplog: pytest.LogCaptureFixture) -> None:
    class NoScopes(DataType):
        name = "no_scopes"

        @on(Counter)
        def counters(self, change: Change) -> Audience:
            return Audience([ann.pk], scope="x:1")

        def build(self, key: str) -> Any:
            return key

    with declared(NoScopes), alone("no_scopes"):
        Counter.objects.create(name="a")
        assert marked("no_scopes") == {str(ann.pk): 1}
        assert not ScopeMark.objects.exists()
        assert "without no_scopes.scopes()" in Event.objects.get().error


def test_types_registered_late_are_heard_and_unregistered_ones_are_not(transactional_db: None) -> None:
    class Late(DataType):
        name = "late"

        @on(Counter)
        def counters(self, change: Change) -> list[str]:
            return ["k"]

        def build(self, key: str) -> Any:
            return key

    with declared(Late):
        Counter.objects.create(name="a")
        assert marked("late") == {"k": 1}
    Counter.objects.create(name="b")
    assert marked("late") == {"k": 1}
    assert registry.find("late") is None


def test_follow_and_unfollow_make_the_readers_own_feed_stale(ann: User, make_user: Callable[..., User]) -> None:
    bob = make_user("bob")
    follow = Follow.objects.create(author=ann, follower=bob)
    assert marked("feed") == {str(bob.pk): 1}
    follow.delete()
    assert marked("feed") == {str(bob.pk): 2}


def test_receivers_never_raise_into_a_save(transactional_db: None, caplog: pytest.LogCaptureFixture) -> None:
    from visibility.events import sources

    routes = sources._routes[Counter]
    sources._routes[Counter] = None  # type: ignore[assignment]
    try:
        with caplog.at_level(logging.ERROR, "visibility"):
            counter = Counter.objects.create(name="a")
            counter.delete()
    finally:
        sources._routes[Counter] = routes
    assert "could not be taken in" in caplog.text


def test_the_hosts_own_receivers_are_left_alone(transactional_db: None) -> None:
    got: list[str] = []

    def receiver(sender: Any, instance: Counter, **_: Any) -> None:
        got.append(instance.name)
        if instance.name == "bad":
            raise DatabaseError("the host's own")

    post_save.connect(receiver, sender=Counter)
    try:
        Counter.objects.create(name="a")
        with pytest.raises(DatabaseError), transaction.atomic():
            Counter.objects.create(name="bad")
    finally:
        post_save.disconnect(receiver, sender=Counter)
    assert got == ["a", "bad"]
    assert set(marked("counter")) == {"a"}
