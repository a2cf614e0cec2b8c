"""The model itself: with all rules nothing breaks, and without any of them something does. All scenarios: by hand."""

from __future__ import annotations

import pytest

from tests.model.protocol import QUICK, RULES, SCENARIOS, explore

# Where a rule's absence is found soonest; the last two need no read for it.
WHERE = {
    "relook": "two owners, and a read",
    "lease_first": "two owners, and a read",
    "trust_reset": "watch, leave, watch, and a read",
    "gen_compare": "shed, watch, leave, watch",
    "mark_compare": "shed, and a read",
    "mark_first": "crash or stall, watch, leave, watch",
    "stamp": "watch, leave, watch, and a read",
    "distrust": "shed, and a read",
    "trust_compare": "shed, and a read",
    "store_owner": "flush, and a read",
    "fence": "two owners, and a read",
}


@pytest.mark.parametrize("scenario", QUICK)
def test_with_every_rule_no_history_breaks_an_invariant(scenario: str) -> None:
    history, why, states = explore(RULES, SCENARIOS[scenario])
    assert (history, why) == (None, None)
    assert states > 10_000


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_a_rule_a_history_breaks_one(rule: str) -> None:
    scenario = SCENARIOS[WHERE[rule]]
    if rule in ("store_owner", "fence"):
        scenario = {**scenario, "reads": 0}
    history, why, _ = explore(RULES - {rule}, scenario)
    assert history
    assert why
