"""Changes that no signal tells: `touch`, and the QuerySet, manager and model that tell by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, models, transaction

import visibility
from tests.app.models import Counter, Follow, Notice, Post, Price
from tests.support.declared import at, declared, marked, scopes_marked, waiting, watch
from visibility import gate
from visibility.datatypes import Change, DataType, on
from visibility.models import DirtyFlag, Event
from visibility.queryset import VisibilityManager, VisibilityModel, VisibilityQuerySet

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


class Own(VisibilityModel):
    """A source that tells by itself, on the table of counters."""

    name = models.CharField(max_length=50, unique=True)
    value = models.IntegerField(default=0)

    class Meta:
        app_label = "testapp"
        db_table = "testapp_counter"
        managed = False

    def __str__(self) -> str:
        return self.name


class OwnType(DataType):
    name = "own"
    heard: list[str] = []

    @on(Own)
    def own(self, change: Change) -> list[str]:
        self.heard.append(change.action)
        return [change.instance.name]  # type: ignore[attr-defined]

    @on(Own, fields=["value"], actions=["saved"])
    def values(self, change: Change) -> list[str]:
        return ["value"]

    def build(self, key: str) -> Any:
        return key


@pytest.fixture
def own(transactional_db: None) -> Iterator[DataType]:
    OwnType.heard = []
    with declared(OwnType) as found:
        yield found[0]


@pytest.fixture
def ann(make_user: Callable[..., User], transactional_db: None) -> User:
    return make_user("ann")


# --- touch ---


def test_E4_bulk_changes_and_raw_sql_are_told_by_touch(transactional_db: None) -> None:
    made = Counter.objects.bulk_create([Counter(name=f"c{n}") for n in range(3)])
    assert not marked("counter"), "Django tells nobody"
    watch("counter:c0")
    assert visibility.touch(made, action="created") == 3
    assert waiting("counter") == {"c0"}
    assert marked("counter") == {"c1": 1, "c2": 1}
    Counter.objects.filter(name="c1").update(value=5)
    assert visibility.touch(Counter.objects.filter(value=5)) == 1
    assert marked("counter") == {"c1": 2, "c2": 1}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE testapp_counter SET value = 7 WHERE name = 'c2'")
    assert visibility.touch(Counter.objects.get(name="c2")) == 1
    assert marked("counter") == {"c1": 2, "c2": 2}
    assert set(Event.objects.values_list("source", flat=True)) == {"touch"}
    assert not Event.objects.filter(processed_at=None).exists()


def test_touch_in_a_transaction_belongs_to_it(transactional_db: None) -> None:
    Counter.objects.bulk_create([Counter(name="a")])
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        visibility.touch(Counter.objects.all())
        visibility.touch(Counter.objects.get())
        raise ZeroDivisionError
    assert not marked("counter")
    assert not Event.objects.exists()
    with transaction.atomic():
        visibility.touch(Counter.objects.all())
        assert not marked("counter")
    assert marked("counter") == {"a": 1}


def test_touch_of_a_queryset_is_chunked(transactional_db: None) -> None:
    Counter.objects.bulk_create([Counter(name=f"c{n}") for n in range(1100)])
    assert visibility.touch(Counter.objects.order_by("pk")) == 1100
    assert Event.objects.count() == 3
    assert len(marked("counter")) == 1100


def test_touch_of_many_models_at_once(ann: User) -> None:
    post = Post.objects.bulk_create([Post(author=ann, text="x")])[0]
    notice = Notice.objects.bulk_create([Notice(user=ann)])[0]
    assert visibility.touch([post, notice]) == 2
    assert scopes_marked("feed") == {f"author:{ann.pk}": 1}
    assert marked("badge") == {str(ann.pk): 1}


def test_touch_of_what_nobody_watches(transactional_db: None) -> None:
    price = Price.objects.create(symbol="A", cents=1)
    assert visibility.touch(price) == 1
    assert visibility.touch(Price.objects.none()) == 0
    assert visibility.touch([]) == 0
    assert not Event.objects.exists()


def test_touch_of_a_deleted_instance(transactional_db: None) -> None:
    Counter.objects.bulk_create([Counter(name="a")])
    gone = Counter.objects.get()
    Counter.objects.all()._raw_delete("default")  # type: ignore[attr-defined]
    visibility.touch(gone, action="deleted")
    assert marked("counter") == {"a": 1}


def test_touch_takes_instances(transactional_db: None) -> None:
    with pytest.raises(TypeError, match="instances or a QuerySet, not str"):
        visibility.touch(["counter:a"])  # type: ignore[list-item]


def test_an_orphan_of_touch_is_taken_over(transactional_db: None) -> None:
    made = Counter.objects.bulk_create([Counter(name=f"c{n}") for n in range(3)])

    def die() -> None:
        raise ZeroDivisionError

    with at("gate.start", die):
        visibility.touch(made)
    with at("gate.start", die):
        visibility.touch(Counter.objects.filter(name="c1"))
    assert gate.redrive(older_than=0) == 2
    assert marked("counter") == {"c0": 1, "c1": 2, "c2": 1}


async def test_atouch(transactional_db: None) -> None:
    counter = Counter(name="a")
    await Counter.objects.abulk_create([counter])
    assert await visibility.atouch(Counter.objects.all()) == 1
    assert await DirtyFlag.objects.filter(key="a").aexists()


# --- VisibilityQuerySet, VisibilityModel ---


def test_E4_the_queryset_tells_by_itself(own: DataType) -> None:
    rows = Own.objects.bulk_create([Own(name=f"o{n}") for n in range(3)])
    assert marked("own") == {"o0": 1, "o1": 1, "o2": 1}
    assert set(OwnType.heard) == {"created"}
    DirtyFlag.objects.all().delete()
    rows = list(Own.objects.order_by("name"))
    for row in rows:
        row.value = 3
    assert Own.objects.bulk_update(rows, ["value"]) == 3
    assert marked("own") == {"o0": 1, "o1": 1, "o2": 1, "value": 1}
    DirtyFlag.objects.all().delete()
    assert Own.objects.filter(name__in=["o0", "o1"]).update(value=4) == 2
    assert marked("own") == {"o0": 1, "o1": 1, "value": 1}
    DirtyFlag.objects.all().delete()
    assert Own.objects.filter(value=4).update(value=5) == 2, "also when they no longer match afterwards"
    assert marked("own") == {"o0": 1, "o1": 1, "value": 1}
    DirtyFlag.objects.all().delete()
    assert Own.objects.filter(name="o0").delete()[0] == 1
    assert marked("own") == {"o0": 1}


def test_update_respects_fields(own: DataType) -> None:
    Own.objects.create(name="a")
    DirtyFlag.objects.all().delete()
    Own.objects.filter(name="a").update(name="b")
    assert marked("own") == {"b": 1}


def test_bulk_methods_and_their_events_are_one_transaction(own: DataType) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Own.objects.bulk_create([Own(name="a")])
        Own.objects.update(value=1)
        raise ZeroDivisionError
    assert not Event.objects.exists()
    assert not marked("own")


def test_a_saved_row_and_its_event_are_one_transaction_in_autocommit(own: DataType) -> None:
    """With Django's own `save`, `post_save` comes after the commit: between the two a process may die."""

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    with at("gate.start", die), pytest.raises(Died):
        Own(name="b").save()
    assert Own.objects.get().name == "b"
    assert Event.objects.get().processed_at is None
    assert gate.redrive(older_than=0) == 1
    assert marked("own") == {"b": 1}


async def test_async_methods_of_the_queryset(own: DataType) -> None:
    await Own.objects.abulk_create([Own(name="a")])
    await Own.objects.filter(name="a").aupdate(value=2)
    one = await Own.objects.aget(name="a")
    one.value = 3
    await one.asave()
    await Own.objects.filter(name="a").adelete()
    assert OwnType.heard == ["created", "saved", "saved", "deleted"]


def test_an_unwatched_model_pays_nothing(transactional_db: None, django_assert_num_queries: Any) -> None:
    rows = VisibilityQuerySet(Price)
    with django_assert_num_queries(1):
        rows.update(cents=3)
    assert rows.bulk_create([Price(symbol="A", cents=1)])
    assert rows.bulk_update(list(rows.all()), ["cents"]) == 1


def test_the_manager_is_usable_in_any_model(own: DataType) -> None:
    manager: Any = VisibilityManager()
    manager.model = Counter
    manager.bulk_create([Counter(name="x")])
    assert marked("counter") == {"x": 1}
    assert isinstance(manager.all(), VisibilityQuerySet)


def test_related_managers_tell_too(ann: User) -> None:
    class Loud(VisibilityQuerySet[Follow]):
        pass

    follow = Follow.objects.create(author=ann, follower=ann)
    DirtyFlag.objects.all().delete()
    assert Loud(Follow).filter(pk=follow.pk).update(author=ann) == 1
    assert marked("feed") == {str(ann.pk): 1}
