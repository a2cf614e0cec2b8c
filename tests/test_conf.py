"""Settings are read live, with defaults; nested ones merge one level deep."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from visibility.conf import DEFAULTS, Lane, settings as visibility


def with_settings(**values: Any) -> override_settings:
    return override_settings(VISIBILITY=values)


def test_the_defaults_hold_without_a_dict(settings: Any) -> None:
    del settings.VISIBILITY
    assert {name: getattr(visibility, name) for name in DEFAULTS} == DEFAULTS


def test_none_is_as_good_as_no_dict() -> None:
    with override_settings(VISIBILITY=None):
        assert visibility.HEARTBEAT == 20


def test_a_value_is_read_each_time() -> None:
    before = visibility.TTL
    with with_settings(TTL=7):
        assert visibility.TTL == 7
    assert before == visibility.TTL


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="VISIBILITY has no setting 'HEARTBEET'"):
        _ = visibility.HEARTBEET


def test_an_unknown_key_in_the_dict_is_not_readable_either() -> None:
    with with_settings(HEARTBEET=1), pytest.raises(AttributeError):
        _ = visibility.HEARTBEET


@pytest.mark.parametrize(("name", "key"), [("LIMITS", "queue"), ("RATE_LIMITS", "tenant")])
def test_limits_merge_with_the_defaults(name: str, key: str) -> None:
    with with_settings(**{name: {key: 3}}):
        assert getattr(visibility, name) == {**DEFAULTS[name], key: 3}
    assert DEFAULTS[name][key] != 3


def test_own_lanes_replace_the_default_ones() -> None:
    with with_settings(LANES={"only": {"queue": "q"}}):
        assert visibility.LANES == {"only": {"queue": "q"}}


def test_what_is_returned_may_be_changed_without_harm() -> None:
    with with_settings(LIMITS={"queue": 3}):
        visibility.LIMITS["queue"] = 4
        assert visibility.LIMITS["queue"] == 3
    visibility.LANES["more"] = {}
    assert "more" not in visibility.LANES


def test_a_lane_has_its_options_and_defaults_for_the_rest() -> None:
    with with_settings(LANES={"slow": {"queue": "q", "bound": 5, "budget": 1.5}}):
        assert visibility.lane("slow") == Lane(name="slow", queue="q", bound=5, budget=1.5)
        assert visibility.lane("slow").batch == 50


def test_an_unknown_lane_names_those_there_are() -> None:
    with pytest.raises(LookupError, match=r"no lane 'hott'; it has \['cold', 'hot'\]"):
        visibility.lane("hott")


def test_a_misspelt_lane_option_is_an_error() -> None:
    with with_settings(LANES={"slow": {"queue": "q", "bund": 5}}), pytest.raises(TypeError, match="bund"):
        visibility.lane("slow")


def test_the_default_lanes_are_whole() -> None:
    for name in DEFAULTS["LANES"]:
        lane = visibility.lane(name)
        assert lane.queue == f"visibility-{name}"
        assert lane.bound >= lane.batch > 0
