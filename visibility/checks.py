"""System checks: they prove the relations between settings, data types, queues and channel layers before anything runs.

No check asks Redis or a database; what can only be seen at run time is the doctor's (`manage.py visibility_doctor`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Warning as Caution
from django.db import models, router

from visibility.conf import DEFAULTS, Lane, settings
from visibility.datatypes import DataType, Hidden, is_number, registry
from visibility.events.sources import resolve
from visibility.models import Event

_RATE = re.compile(r"(?=[\d.]*[1-9])\d+(\.\d+)?(/[smh])?\Z")
_SCHEMES = ("redis", "rediss", "unix", "sentinel", "cluster")
_ABOVE_ZERO = ("HEARTBEAT", "TTL", "RECHECK", "SHARDS", "EVENT_TTL", "BUILD_LEASE", "BUILD_TIMEOUT")
_JOB_SLACK = 60


def register_all() -> None:
    """Make the checks known; harmless when repeated."""
    for check in (check_keys, check_values, check_lanes, check_types, check_layer, check_hosts, check_databases):
        checks.register(check, "visibility")


def _own() -> Mapping[str, Any]:
    own = getattr(django_settings, "VISIBILITY", None) or {}
    return own if isinstance(own, Mapping) else {}


def _near(name: object, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, 1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(names)}."


def check_keys(**_: Any) -> Iterator[CheckMessage]:
    """E001 not a dict · E002 unknown keys, nested ones too."""
    own = getattr(django_settings, "VISIBILITY", None)
    if own is not None and not isinstance(own, Mapping):
        yield Error("VISIBILITY is not a dict.", hint="Write VISIBILITY = {…} in your settings.", id="visibility.E001")
    for name, value in _own().items():
        if name not in DEFAULTS:
            yield Error(f"VISIBILITY has no setting {name!r}.", hint=_near(name, DEFAULTS), id="visibility.E002")
        elif name in ("RATE_LIMITS", "LIMITS"):
            if not isinstance(value, Mapping):
                yield Error(
                    f"VISIBILITY[{name!r}] is not a dict.", hint=f"Its default is {DEFAULTS[name]!r}.", id="visibility.E001"
                )
                continue
            for key in value:
                if key not in DEFAULTS[name]:
                    where = f"VISIBILITY[{name!r}]"
                    yield Error(f"{where} has no key {key!r}.", hint=_near(key, DEFAULTS[name]), id="visibility.E002")


def check_values(**_: Any) -> Iterator[CheckMessage]:
    """E003 to E009, W001: values, and the relations between them."""
    url = str(settings.REDIS_URL)
    if url.partition("://")[0] not in _SCHEMES or "://" not in url:
        hint = "redis://host:6379/0, rediss://…, unix://…, sentinel://a:26379,b:26379/service/0 or cluster://a:6379,b:6379"
        yield Error("VISIBILITY['REDIS_URL'] is no address of a Redis.", hint=hint, id="visibility.E003")
    elif url.startswith("sentinel:") and not url.partition("://")[2].partition("/")[2].strip("/"):
        hint = "sentinel://a:26379,b:26379/service/0"
        yield Error("VISIBILITY['REDIS_URL'] names no service of its Sentinels.", hint=hint, id="visibility.E003")
    bad = [name for name in _ABOVE_ZERO if not is_number(settings.__getattr__(name)) or settings.__getattr__(name) <= 0]
    bad += [
        name for name in ("LINGER", "OUTBOX_GRACE") if not is_number(settings.__getattr__(name)) or settings.__getattr__(name) < 0
    ]
    for name in bad:
        yield Error(
            f"VISIBILITY[{name!r}] must be a number above 0.", hint=f"Its default is {DEFAULTS[name]!r}.", id="visibility.E004"
        )
    if "TTL" not in bad and "HEARTBEAT" not in bad:
        if settings.TTL < 2.5 * settings.HEARTBEAT:
            hint = f"One lost heartbeat would end a lease. Set TTL to {2.5 * settings.HEARTBEAT:g} or more, or beat faster."
            yield Error("VISIBILITY['TTL'] is below 2.5 × HEARTBEAT.", hint=hint, id="visibility.E005")
        if settings.HEARTBEAT > 30:
            hint = "Proxies cut connections that are silent for 60 s, some for 30 s."
            yield Caution("VISIBILITY['HEARTBEAT'] is above 30 s.", hint=hint, id="visibility.W001")
    if not {"BUILD_LEASE", "BUILD_TIMEOUT"} & set(bad) and settings.BUILD_LEASE > settings.BUILD_TIMEOUT:
        hint = "A job killed at its timeout would keep its claims beyond it. Lower BUILD_LEASE; it is renewed while a build runs."
        yield Error("VISIBILITY['BUILD_LEASE'] is above BUILD_TIMEOUT.", hint=hint, id="visibility.E006")
    if settings.GATE not in ("inline", "worker"):
        yield Error(f"VISIBILITY['GATE'] is {settings.GATE!r}.", hint="Choose 'inline' or 'worker'.", id="visibility.E007")
    if not re.fullmatch(r"[\w.-]+", str(settings.PREFIX)):
        hint = "Letters, digits, '_', '.' and '-': it stands in the hash tag of every key."
        yield Error(f"VISIBILITY['PREFIX'] is {settings.PREFIX!r}.", hint=hint, id="visibility.E008")
    rates = settings.RATE_LIMITS
    for name, value in rates.items() if isinstance(rates, Mapping) else ():
        if value is not None and not (is_number(value) and value > 0) and not (isinstance(value, str) and _RATE.match(value)):
            where = f"VISIBILITY['RATE_LIMITS'][{name!r}] is {value!r}."
            yield Error(where, hint="Write '100/s', '600/m', '5000/h', a number per second, or None.", id="visibility.E009")
    yield from _check_limits()
    yield from _check_shadow()


def _check_limits() -> Iterator[CheckMessage]:
    """E004: SHARDS and LIMITS."""
    if is_number(settings.SHARDS) and type(settings.SHARDS) is not int:
        yield Error("VISIBILITY['SHARDS'] must be a whole number.", hint="Its default is 1.", id="visibility.E004")
    limits = settings.LIMITS
    for name, value in limits.items() if isinstance(limits, Mapping) else ():
        if name in DEFAULTS["LIMITS"] and not (is_number(value) and value >= 1):
            where = f"VISIBILITY['LIMITS'][{name!r}] must be a number of at least 1."
            yield Error(where, hint=f"Its default is {DEFAULTS['LIMITS'][name]!r}.", id="visibility.E004")


def _check_shadow() -> Iterator[CheckMessage]:
    """E010: SHADOW."""
    shadow = settings.SHADOW
    if isinstance(shadow, bool):
        return
    if not isinstance(shadow, (list, tuple, set, frozenset)):
        hint = "True, False, or a list of names of data types."
        yield Error(f"VISIBILITY['SHADOW'] is {shadow!r}.", hint=hint, id="visibility.E010")
        return
    names = [data_type.name for data_type in registry]
    for name in shadow:
        if name not in names:
            yield Error(f"VISIBILITY['SHADOW'] names no data type with {name!r}.", hint=_near(name, names), id="visibility.E010")


def check_lanes(**_: Any) -> Iterator[CheckMessage]:
    """E011 options of lanes · E012 queues that RQ does not know · W002 two lanes on one queue."""
    lanes = settings.LANES
    if not isinstance(lanes, Mapping) or not lanes:
        yield Error("VISIBILITY['LANES'] names no lane.", hint=f"Its default is {DEFAULTS['LANES']!r}.", id="visibility.E011")
        return
    known = {one.name for one in fields(Lane)} - {"name"}
    queues = getattr(django_settings, "RQ_QUEUES", None) or {}
    users: dict[Any, list[str]] = {}
    for name, options in lanes.items():
        where = f"VISIBILITY['LANES'][{name!r}]"
        if not isinstance(options, Mapping) or not options.get("queue") or not isinstance(options["queue"], str):
            yield Error(f"{where} names no RQ queue.", hint='Write {"queue": "visibility-hot"}.', id="visibility.E011")
            continue
        for key in set(options) - known:
            yield Error(f"{where} has no option {key!r}.", hint=_near(key, known), id="visibility.E011")
        for key in ("bound", "batch", "workers"):
            if key in options and not (type(options[key]) is int and options[key] > 0):
                yield Error(
                    f"{where}[{key!r}] must be a whole number above 0.", hint="See the table of settings.", id="visibility.E011"
                )
        budget = options.get("budget", 10.0)
        if not is_number(budget) or not 0 < budget <= _JOB_SLACK:
            hint = f"A drain's RQ timeout is BUILD_TIMEOUT + {_JOB_SLACK} s: a budget above that would be cut off."
            yield Error(f"{where}['budget'] must be above 0 and at most {_JOB_SLACK} s.", hint=hint, id="visibility.E011")
            budget = _JOB_SLACK
        for key, most in (("share", 1.0), ("idle", budget), ("gather", budget)):
            value = options.get(key, 0 if key == "idle" else most)
            if not (is_number(value) and 0 <= value <= most) or (key == "share" and not value):
                hint = "A share is above 0 and at most 1; idle and gather are seconds within the budget."
                yield Error(f"{where}[{key!r}] is {value!r}.", hint=hint, id="visibility.E011")
        if options["queue"] not in queues:
            hint = f"Add it to RQ_QUEUES. {_near(options['queue'], queues)}" if queues else "Set RQ_QUEUES, as django-rq asks."
            yield Error(
                f"{where} names the queue {options['queue']!r}, which is not in RQ_QUEUES.", hint=hint, id="visibility.E012"
            )
        users.setdefault(options["queue"], []).append(str(name))
    for queue, names in users.items():
        if len(names) > 1:
            hint = "A lane that shares its queue waits behind the other. Give each one of its own."
            yield Caution(f"The lanes {', '.join(names)} share the queue {queue!r}.", hint=hint, id="visibility.W002")


def check_types(**_: Any) -> Iterator[CheckMessage]:
    """E013 to E016, W003, W009: data types against settings and models."""
    for data_type in registry:
        yield from _check_type(data_type)


def _check_type(data_type: DataType) -> Iterator[CheckMessage]:
    cls, name = type(data_type), data_type.name
    if data_type.lane not in (settings.LANES or ()):
        hint = f"Add it to VISIBILITY['LANES']. {_near(data_type.lane, map(str, settings.LANES or ()))}"
        yield Error(
            f"Data type {name!r} uses the lane {data_type.lane!r}, which does not exist.",
            hint=hint,
            obj=cls,
            id="visibility.E013",
        )
    for source in data_type.sources:
        if resolve(source.model) is None:
            hint = "Write a model class or 'app_label.Model'; its app must be in INSTALLED_APPS."
            text = f"Data type {name!r}: @on({source.model!r}) of {source.method}() names no model."
            yield Error(text, hint=hint, obj=cls, id="visibility.E014")
        method = getattr(data_type, source.method)
        if not data_type.has_scopes and _passes(method, "scope"):
            hint = "Define scopes(key); without it every resource of such an audience is marked one by one."
            text = f"Data type {name!r}: {source.method}() gives its audience a scope, and the type has no scopes()."
            yield Error(text, hint=hint, obj=cls, id="visibility.E015")
        if data_type.hidden is Hidden.SUMMARISE and _passes(method, "scope", "kind"):
            hint = "The changes are counted in `missed`, not in `summary`. Name keys and no scope, or leave the kind out."
            text = f"Data type {name!r}: {source.method}() gives its audience a scope and a kind; a scope's mark counts no kinds."
            yield Caution(text, hint=hint, obj=cls, id="visibility.W009")
    keep = 2 * data_type.ttl * (1 + data_type.jitter)
    if not 0 <= data_type.jitter < 1 or data_type.coalesce < 0 or keep > 366 * 86_400:
        hint = "0 ≤ jitter < 1, coalesce ≥ 0, and a ttl of at most half a year: marks outlive the snapshots they speak of."
        yield Error(f"Data type {name!r}: its times make no sense together.", hint=hint, obj=cls, id="visibility.E016")
    if data_type.coalesce > data_type.freshness.seconds:
        hint = "Changes would be shown later than promised. Lower coalesce, or promise less."
        text = f"Data type {name!r} coalesces for {data_type.coalesce:g} s and promises {data_type.freshness.seconds:g} s."
        yield Caution(text, hint=hint, obj=cls, id="visibility.W003")


def _passes(method: Callable[..., Any], *names: str) -> bool:
    """Whether one call in the method's code has these keyword arguments: their names stand in a tuple of its constants."""
    code = getattr(method, "__code__", None)
    return code is not None and any(isinstance(const, tuple) and {*names} <= {*const} for const in code.co_consts)


def check_layer(**_: Any) -> Iterator[CheckMessage]:
    """E017 no channel layer · W004 in memory · W005 redis-py 8 with the core layer · W006 group_expiry."""
    layers = getattr(django_settings, "CHANNEL_LAYERS", None) or {}
    name = settings.CHANNEL_LAYER
    if name not in layers:
        hint = "Set CHANNEL_LAYERS, as Channels asks; without one, updates reach a browser with its next heartbeat only."
        yield Error(f"VISIBILITY['CHANNEL_LAYER'] names no channel layer: {name!r}.", hint=hint, id="visibility.E017")
        return
    backend, config = str(layers[name].get("BACKEND", "")), layers[name].get("CONFIG") or {}
    if backend.endswith("InMemoryChannelLayer"):
        hint = "Workers are other processes: their updates would not reach a socket. Use channels_redis."
        yield Caution(f"The channel layer {name!r} lives in one process' memory.", hint=hint, id="visibility.W004")
    if backend == "channels_redis.core.RedisChannelLayer":
        hosts = config.get("hosts") or [None]
        if _redis_py() >= 8 and not all(isinstance(h, Mapping) and h.get("socket_timeout", 5) is None for h in hosts):
            hint = 'Write "hosts": [{"address": "redis://…", "socket_timeout": None}] in its CONFIG.'
            text = f"redis-py 8 gives the channel layer {name!r} a socket timeout of 5 s, which ends idle consumers."
            yield Caution(text, hint=hint, id="visibility.W005")
    if "group_expiry" in config and config["group_expiry"] < settings.TTL:
        hint = f"A socket would drop out of its groups while its leases live. Set it to {settings.TTL} or more."
        yield Caution(f"group_expiry of the channel layer {name!r} is below VISIBILITY['TTL'].", hint=hint, id="visibility.W006")


def _redis_py() -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return int(version("redis").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return 0


def check_hosts(**_: Any) -> Iterator[CheckMessage]:
    """W007: any origin may open a socket."""
    if "*" in (django_settings.ALLOWED_HOSTS or ()):
        hint = "Browsers send the cookies of your users with sockets that foreign pages open. Name your hosts."
        yield Caution('ALLOWED_HOSTS = ["*"] lets pages of any site open a socket.', hint=hint, id="visibility.W007")


def check_databases(**_: Any) -> Iterator[CheckMessage]:
    """W008: source models on a database that has no table of events."""
    told: set[str] = set()
    for data_type in registry:
        for source in data_type.sources:
            model = resolve(source.model)
            if not data_type.must_deliver or model is None or model._meta.abstract:
                continue
            alias = router.db_for_write(model)
            if alias not in told and not _may_hold(alias):
                told.add(alias)
                hint = (
                    "A change and its event cannot be one transaction there: it is best effort between commit and gate. "
                    f"Let your routers allow the app's migrations on {alias!r}, and run migrate --database={alias}."
                )
                text = f"{model._meta.label} is written to the database {alias!r}, which has no events."
                yield Caution(text, hint=hint, obj=type(data_type), id="visibility.W008")


def _may_hold(alias: str) -> bool:
    event: type[models.Model] = Event
    return bool(router.allow_migrate_model(alias, event))
