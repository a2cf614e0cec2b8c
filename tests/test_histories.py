"""Histories against a trivial model (`tests.histories`): in CI some, by hand as many as you like.

VISIBILITY_HISTORIES=10000 python -m pytest tests/test_histories.py -q -s      the long run; prints its report
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import redis as redis_py
from hypothesis import HealthCheck, Phase, settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from tests.histories import Clock, Histories, tally

HISTORIES = int(os.environ.get("VISIBILITY_HISTORIES", "60"))
pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def machine(redis: redis_py.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch) -> type[Histories]:
    settings.VISIBILITY = {**settings.VISIBILITY, "LINGER": 0}
    monkeypatch.setattr(Histories, "redis", redis, raising=False)
    monkeypatch.setattr(Histories, "clock", Clock(monkeypatch), raising=False)
    return Histories


# Histories that were found once, by this machine or by the model: name → steps, as hypothesis prints them.
FOUND: dict[str, list[tuple[str, tuple[Any, ...]]]] = {
    "what the last round promotes is built, too": [("watch", ("a", "1/one")), ("shed", ("a",)), ("flush", ())],
    "a watcher comes between the gate's look and its mark": [
        ("look", ("a",)), ("change_interrupted", ("a", "gate.looked", ("watch", "a"))), ("look", ("a",)),
    ],
    "a read has looked when another one builds and clears the mark": [
        ("look", ("a",)), ("change", ("a",)), ("look_interrupted", ("a", "read.looked", ("look", "a"))),
    ],
    "a change comes while the build has read the source": [
        ("watch", ("a", "1/one")), ("change", ("a",)), ("drain_interrupted", ("build.read", ("change", "a"))),
    ],
    "a late build stores after a newer one": [
        ("watch", ("a", "1/one")), ("change", ("a",)), ("drain_interrupted", ("build.store", ("expire_claims", "a"))),
        ("drain", ()),
    ],
    "a mark comes between the store and the clearing": [
        ("change", ("a",)), ("look_interrupted", ("a", "build.stored", ("change", "a"))), ("look", ("a",)),
    ],
    "everybody leaves while it waits in the lane": [
        ("watch", ("a", "1/one")), ("change", ("a",)), ("leave", ("a", "1/one")), ("drain", ()), ("look", ("a",)),
    ],
    "Redis is emptied in the middle of a build, with a second job": [
        ("watch", ("a", "1/one")), ("change", ("a",)), ("drain_interrupted", ("build.read", ("flush", "a"))),
        ("drain_interrupted", ("build.store", ("drain", "a"))), ("beat", ()),
    ],
    "the clock goes back between two marks": [
        ("look", ("a",)), ("change", ("a",)), ("step_clock", (-7200.0,)), ("look", ("a",)), ("change", ("a",)), ("look", ("a",)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_a_history_that_was_found_stays_right(machine: type[Histories], name: str) -> None:
    state = machine()
    state.begin()
    for step, arguments in FOUND[name]:
        getattr(state, step)(*arguments)
        state.bounded_and_mortal()
    state.teardown()


@pytest.mark.timeout(max(180, HISTORIES))
def test_histories_keep_the_invariants(machine: type[Histories]) -> None:
    started = time.monotonic()
    tally.clear()
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(
            max_examples=HISTORIES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )
    print(f"\n{dict(tally)} in {time.monotonic() - started:.0f} s, losses: 0")  # noqa: T201
