"""Histories of nested transactions on two databases, rollbacks of savepoints, and crashes on the way through the gate, against a
model that knows only what was committed: afterwards exactly that is marked or pending, and every event is processed.

`VISIBILITY_HISTORIES=5000 pytest tests/events/test_events_model.py` for a long run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from hypothesis import HealthCheck, example, given, settings, strategies as st

import visibility
from tests.app.models import Counter
from tests.support.declared import declared, marked, waiting, watch
from visibility import gate, points
from visibility.datatypes import Change, DataType, on
from visibility.events import outbox
from visibility.models import DirtyFlag, Event
from visibility.soft import client

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.database,
    pytest.mark.timeout(3600),
]
ALIASES = ("default", "other")
POINTS = ("gate.start", "gate.looked", "gate.pended", "gate.marked", "gate.relooked", "gate.finish", "gate.done")
EXAMPLES = int(os.environ.get("VISIBILITY_HISTORIES", "60"))


class Died(BaseException):
    """The process ends here."""


class Undo(Exception):
    """Rolls back the block that it is raised in."""


@dataclass(frozen=True)
class Save:
    """A new row; seen or unseen; told by a signal, by `touch`, or emitted."""

    alias: str
    watched: bool
    how: str = "save"


@dataclass(frozen=True)
class Die:
    """The next gate pass that reaches this point is the process' last act."""

    point: str


@dataclass(frozen=True)
class Block:
    """`atomic()` on a database."""

    alias: str
    steps: tuple[Any, ...]
    undo: bool = False


saves = st.builds(Save, st.sampled_from(ALIASES), st.booleans(), st.sampled_from(["save", "save", "touch", "emit"]))
leaves = st.one_of(saves, saves, saves, st.builds(Die, st.sampled_from(POINTS)))
steps = st.recursive(
    leaves,
    lambda inner: st.builds(Block, st.sampled_from(ALIASES), st.lists(inner, min_size=1, max_size=4).map(tuple), st.booleans()),
    max_leaves=14,
)
histories = st.lists(steps, min_size=1, max_size=5)


@pytest.fixture(scope="module", autouse=True)
def other(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A second database of the same kind, with everything in it."""
    with django_db_blocker.unblock():
        connections.settings["other"] = {
            **connections.settings["default"],
            "NAME": f"{connections.settings['default']['NAME']}_other",
            "TEST": {**connections.settings["default"]["TEST"], "NAME": None, "MIRROR": None},
        }
        name = connections["other"].settings_dict["NAME"]
        connections["other"].creation.create_test_db(verbosity=0, autoclobber=True)
    yield
    with django_db_blocker.unblock():
        connections["other"].creation.destroy_test_db(name, verbosity=0)
        connections["other"].close()
        del connections["other"]
        del connections.settings["other"]


class World:
    """Runs a history, and keeps the model: names by what became of them."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.committed: set[str] = set()
        self.watched: set[str] = set()
        self.frames: list[tuple[str, set[str]]] = []
        self.dying = ""

    def reach(self, point: str) -> None:
        if point == self.dying:
            raise Died

    def run(self, history: list[Any]) -> None:
        points.hook = self.reach
        try:
            for step in history:
                try:
                    self.step(step)
                except Died:
                    # Another process goes on; what this one had in memory is gone.
                    self.dying = ""
                    self.frames.clear()
        finally:
            points.hook = None

    def step(self, step: Any) -> None:
        if isinstance(step, Die):
            self.dying = step.point
        elif isinstance(step, Save):
            self.save(step)
        else:
            self.block(step)

    def save(self, step: Save) -> None:
        name = f"n{next(self.numbers)}"
        if step.watched:
            watch(f"counter:{name}")
            self.watched.add(name)
        alias = "default" if step.how == "emit" else step.alias
        home = next((names for at, names in reversed(self.frames) if at == alias), self.committed)
        home.add(name)
        if step.how == "emit":
            visibility.emit("counter", [name], id=name)
        elif step.how == "touch":
            made = Counter.objects.using(alias).bulk_create([Counter(name=name)])
            visibility.touch(made)
        else:
            Counter(name=name).save(using=alias)

    def block(self, step: Block) -> None:
        outer = next((names for at, names in reversed(self.frames) if at == step.alias), None)
        own: set[str] = set()
        inside = True
        try:
            with transaction.atomic(using=step.alias):
                self.frames.append((step.alias, own))
                for one in step.steps:
                    self.step(one)
                self.frames.pop()
                if step.undo:
                    raise Undo
                inside = False
        except Undo:
            return
        except Died:
            if not inside and outer is None:
                self.committed |= own
            raise
        if outer is None:
            self.committed |= own
        else:
            outer |= own


def clean() -> None:
    client.client().flushdb()
    for alias in ALIASES:
        Event.objects.using(alias).all().delete()
        Counter.objects.using(alias).all()._raw_delete(alias)  # type: ignore[attr-defined]
    DirtyFlag.objects.all().delete()


def test_a_second_database_has_its_own_events() -> None:
    clean()
    heard: list[str] = []

    class Ear(DataType):
        name = "ear"

        @on(Counter)
        def counters(self, change: Change) -> list[str]:
            heard.append(f"{change.action} {change.using} {change.instance._state.db}")
            return [change.instance.name]  # type: ignore[attr-defined]

        def build(self, key: str) -> Any:
            return key

    with declared(Ear):
        counter = Counter(name="a")
        counter.save(using="other")
        visibility.touch(Counter.objects.using("other"))
        visibility.touch(counter)
        counter.delete(using="other")
    assert heard == [f"{action} other other" for action in ("created", "saved", "saved", "deleted")]
    assert not Event.objects.exists()
    assert set(Event.objects.using("other").values_list("using", "outcome")) == {("other", "done")}
    assert marked("ear") == {"a": 4}


class NoEventsOnOther:
    """A router that keeps this app off the second database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "other" and app_label == "visibility" else None


def test_a_database_without_events_has_them_written_after_the_fact() -> None:
    clean()
    with override_settings(DATABASE_ROUTERS=[NoEventsOnOther()]):
        with transaction.atomic(using="other"):
            Counter(name="a").save(using="other")
        assert Event.objects.get().using == "other"
        assert Event.objects.get().outcome == "done"
        with pytest.raises(Undo), transaction.atomic(using="other"):
            Counter(name="b").save(using="other")
            raise Undo
    outbox.forget()
    assert Event.objects.count() == 1
    assert not Event.objects.using("other").exists()
    assert marked("counter") == {"a": 1}


W, U = True, False


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@example([Block("default", (Save("other", U), Block("other", (Save("other", U), Save("default", U)))), undo=True)])
@example([Block("other", (Save("other", W), Block("default", (Save("default", U),), undo=True)))])
@example([Die("gate.marked"), Block("default", (Save("default", U), Save("default", W)))])
@example([Block("default", (Block("default", (Save("default", U),), undo=True), Block("default", (Save("default", U),))))])
@example([Block("default", (Die("gate.start"), Block("other", (Save("other", W, "touch"),)), Save("default", U, "emit")))])
@given(histories)
def test_what_is_marked_or_pending_is_what_was_committed(history: list[Any]) -> None:
    clean()
    world = World()
    world.run(history)
    for alias in ALIASES:
        assert not connections[alias].in_atomic_block
    Event.objects.update(retry_at=None)
    Event.objects.using("other").update(retry_at=None)
    while gate.redrive(older_than=0):
        pass
    hot, cold = waiting("counter"), set(marked("counter"))
    assert hot | cold == world.committed
    assert hot >= world.committed & world.watched
    rows = [Event.objects.using(alias).order_by().values_list("data_type", "outcome", "action") for alias in ALIASES]
    assert sum(len(one) for one in rows) == len(world.committed)
    assert {outcome for one in rows for _, outcome, _ in one} <= {"done"}
