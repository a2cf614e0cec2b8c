"""System checks: each id has a project that earns it, and every message a hint."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import checks as django_checks
from django.test import override_settings

from tests.app.models import Counter
from tests.support.declared import declared
from visibility import checks
from visibility.datatypes import Audience, Change, DataType, Freshness, Hidden, on

LANES = {"hot": {"queue": "visibility-hot"}, "cold": {"queue": "visibility-cold"}}


def found(**settings: Any) -> list[str]:
    """Ids of what the checks say about these settings."""
    with override_settings(**settings):
        messages = django_checks.run_checks(tags=["visibility"])
    assert all(message.hint for message in messages), messages
    return sorted(str(message.id).removeprefix("visibility.") for message in messages)


def own(**settings: Any) -> list[str]:
    return found(VISIBILITY={**django_settings.VISIBILITY, **settings})


def test_the_test_project_is_sound() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ({"TTTL": 5}, ["E002"]),
        ({"LIMITS": {"wathces": 5}}, ["E002"]),
        ({"LIMITS": 5}, ["E001"]),
        ({"RATE_LIMITS": {"tennant": None}}, ["E002"]),
        ({"REDIS_URL": "localhost:6379"}, ["E003"]),
        ({"REDIS_URL": ""}, ["E003"]),
        ({"REDIS_URL": "sentinel://a:1,b:2/main/0"}, []),
        ({"REDIS_URL": "cluster://a:1,b:2"}, []),
        ({"TTL": 0}, ["E004"]),
        ({"HEARTBEAT": "20"}, ["E004"]),
        ({"LINGER": -1}, ["E004"]),
        ({"LINGER": 0}, []),
        ({"SHARDS": 0}, ["E004"]),
        ({"SHARDS": 1.5}, ["E004"]),
        ({"TTL": float("inf")}, ["E004"]),
        ({"LINGER": float("nan")}, ["E004"]),
        ({"LIMITS": {"frame_bytes": 0}}, ["E004"]),
        ({"LIMITS": {"queue": "many"}}, ["E004"]),
        ({"LIMITS": {"sockets_per_user": None}}, ["E004"]),
        ({"REDIS_URL": "sentinel://a:26379"}, ["E003"]),
        ({"REDIS_URL": "sentinel://a:26379/main/0"}, []),
        ({"TTL": 49, "HEARTBEAT": 20}, ["E005"]),
        ({"TTL": 50, "HEARTBEAT": 20}, []),
        ({"TTL": 100, "HEARTBEAT": 40}, ["W001"]),
        ({"BUILD_LEASE": 130}, ["E006"]),
        ({"GATE": "sometimes"}, ["E007"]),
        ({"GATE": "worker"}, []),
        ({"PREFIX": "a{b}"}, ["E008"]),
        ({"RATE_LIMITS": {"tenant": "100/s", "resource": "5000/h"}}, []),
        ({"RATE_LIMITS": {"tenant": 100, "resource": None}}, []),
        ({"RATE_LIMITS": {"tenant": "100 per second"}}, ["E009"]),
        ({"RATE_LIMITS": {"tenant": "0"}}, ["E009"]),
        ({"RATE_LIMITS": {"tenant": 0}}, ["E009"]),
        ({"SHADOW": True}, []),
        ({"SHADOW": ["feed"]}, []),
        ({"SHADOW": ["fed"]}, ["E010"]),
        ({"SHADOW": "feed"}, ["E010"]),
        ({"LANES": {}}, ["E011"] + ["E013"] * 6),
        ({"LANES": {**LANES, "x": {}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": "default", "bond": 5}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": "default", "bound": 0}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": "default", "budget": 90}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": "default", "share": 0}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": "default", "idle": "1"}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": "default", "gather": 99}}}, ["E011"]),
        ({"LANES": {**LANES, "x": {"queue": ["default"]}}}, ["E011"]),
        ({"LANES": None}, ["E011"] + ["E013"] * 6),
        ({"LANES": {**LANES, "x": {"queue": "visibility-hott"}}}, ["E012"]),
        ({"LANES": {**LANES, "x": {"queue": "visibility-hot"}}}, ["W002"]),
        ({"LANES": {"hot": {"queue": "visibility-hot"}}}, ["E013"]),
        ({"CHANNEL_LAYER": "other"}, ["E017"]),
    ],
)
def test_settings(settings: dict[str, Any], ids: list[str]) -> None:
    assert own(**settings) == ids


def test_a_visibility_that_is_no_dict() -> None:
    with override_settings(VISIBILITY=["TTL"]):
        assert [one.id for one in checks.check_keys()] == ["visibility.E001"]


def test_hints_name_what_was_meant() -> None:
    with override_settings(VISIBILITY={"HEARTBEET": 5}):
        (message,) = checks.check_keys()
    assert message.msg == "VISIBILITY has no setting 'HEARTBEET'."
    assert message.hint == "Did you mean 'HEARTBEAT'?"


def _core(**config: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": config}}


@pytest.mark.parametrize(
    ("layers", "ids"),
    [
        ({}, ["E017"]),
        ({"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}, ["W004"]),
        (_core(), ["W005"]),
        (_core(hosts=["redis://localhost"]), ["W005"]),
        (_core(hosts=[("localhost", 6379)]), ["W005"]),
        (_core(hosts=[{"address": "redis://localhost", "socket_timeout": 30}]), ["W005"]),
        (_core(hosts=[{"address": "redis://localhost", "socket_timeout": None}]), []),
        (_core(hosts=[{"address": "redis://localhost", "socket_timeout": None}], group_expiry=30), ["W006"]),
        ({"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": ["redis://x"]}}}, []),
    ],
)
def test_S3_channel_layers(layers: dict[str, Any], ids: list[str]) -> None:
    assert found(CHANNEL_LAYERS=layers) == ids


def test_S3_redis_py_7_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "7.1.0")
    assert found(CHANNEL_LAYERS=_core(hosts=["redis://localhost"])) == []


def test_any_host() -> None:
    assert found(ALLOWED_HOSTS=["*"]) == ["W007"]


def _built(key: str) -> Any:
    return key


class Sound(DataType):
    """A type without fault; the tests change one thing."""

    name = "sound"

    def build(self, key: str) -> Any:
        return key


class NoLane(Sound):
    lane = "lukewarm"


class NoModel(Sound):
    @on("testapp.Cuonter", "nodots")
    def counters(self, change: Change) -> list[str]:
        return []


class NoScopes(Sound):
    @on(Counter)
    def counters(self, change: Change) -> Audience:
        return Audience(["a"], scope="x:1")


class Scoped(NoScopes):
    def scopes(self, key: str) -> list[str]:
        return []


class NoScopeNamed(Sound):
    @on(Counter)
    def counters(self, change: Change) -> Audience:
        scope = "not an argument"
        return Audience([scope.replace(" ", "")])


class Kinds(Scoped):
    hidden = Hidden.SUMMARISE

    @on(Counter)
    def others(self, change: Change) -> Audience:
        return Audience(["a"], kind="price")


class KindsByScope(Scoped):
    hidden = Hidden.SUMMARISE

    @on(Counter)
    def counters(self, change: Change) -> Audience:
        return Audience(["a"], scope="x:1", kind="price")


class Jittery(Sound):
    jitter = 1.5


class Slow(Sound):
    freshness = Freshness(seconds=1)
    coalesce = 5


@pytest.mark.parametrize(
    ("cls", "ids"),
    [
        (Sound, []),
        (NoLane, ["E013"]),
        (NoModel, ["E014", "E014"]),
        (NoScopes, ["E015"]),
        (Scoped, []),
        (NoScopeNamed, []),
        (Kinds, []),
        (KindsByScope, ["W009"]),
        (Jittery, ["E016"]),
        (Slow, ["W003"]),
    ],
)
def test_data_types(cls: type[DataType], ids: list[str]) -> None:
    with declared(cls):
        assert found() == ids


@pytest.fixture
def apart() -> Iterator[None]:
    """Routers that keep counters on a database without this app."""

    class Router:
        def db_for_write(self, model: Any, **hints: Any) -> str | None:
            return "apart" if model is Counter else None

        def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
            return False if db == "apart" and app_label == "visibility" else None

    with override_settings(DATABASE_ROUTERS=[Router()]):
        yield


def test_sources_on_a_database_without_events(apart: None) -> None:
    assert found() == ["W008"]


def test_ids_are_unique_and_documented() -> None:
    """Each check's docstring says which ids it gives."""
    import re
    from pathlib import Path

    source = Path(checks.__file__).read_text()
    used = set(re.findall(r'id="visibility\.([EW]\d{3})"', source))
    told = set()
    for docstring in re.findall(r'"""(.*?)"""', source, re.DOTALL):
        told |= set(re.findall(r"[EW]\d{3}", docstring))
        for first, last in re.findall(r"([EW]\d{3}) to ([EW]\d{3})", docstring):
            told |= {f"{first[0]}{n:03}" for n in range(int(first[1:]), int(last[1:]) + 1)}
    assert used == told


def test_no_check_asks_redis_or_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    from visibility.soft import client

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(client, "client", refuse)
    monkeypatch.setattr(connections["default"], "cursor", refuse)
    assert found() == []


def test_importing_the_package_is_cheap() -> None:
    """No Django, no Redis, no RQ: it may stand in settings."""
    code = (
        "import sys; before = set(sys.modules); import visibility; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "assert not new & {'django', 'redis', 'rq', 'channels', 'asgiref'}, new; "
        "assert [n for n in dir(visibility) if not n.startswith('__')] == visibility.__all__; "
        "assert not hasattr(visibility, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names() -> None:
    import visibility

    for name in visibility.__all__:
        assert getattr(visibility, name) is not None
    for name in ("read", "presence", "explain", "once"):
        assert callable(getattr(visibility, name)), "the function, not the module of that name"
        assert not isinstance(getattr(visibility, name), type(sys))
    twins = "emit touch read read_many watchers is_visible visible hold release presence revoke explain once"
    assert all(f"a{name}" in visibility.__all__ for name in twins.split())
