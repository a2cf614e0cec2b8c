"""Data types: what an app declares in its `visibility.py`, and the registry that finds it again."""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from django.db import models

from visibility.conf import settings
from visibility.exceptions import BadDeclaration, BadResource, UnknownDataType

_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}\Z")
_SYNCHRONOUS = ("build", "build_many", "can_watch", "can_watch_many", "scopes", "scopes_many", "apply")
_BAD_KEY = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Resource(NamedTuple):
    """One item of a data type; `str()` gives its wire name, `feed:42`."""

    type: str
    key: str

    def __str__(self) -> str:
        return f"{self.type}:{self.key}"


def legible(text: str) -> str:
    """Text of the host's, without what a database or Redis refuses: NUL, and halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "?")


def check_key(data_type: str, key: object) -> str:
    """The key as text, or `BadResource`: 1 to 200 characters, no spaces, no control characters."""
    text = key if isinstance(key, str) else str(key)
    if not 1 <= len(text) <= 200 or _BAD_KEY.search(text):
        raise BadResource(
            f"{data_type!r} has no resource with the key {text[:60]!r}: a key is 1 to 200 characters without spaces "
            "and control characters"
        )
    return text


def parse_resource(name: str) -> Resource:
    """Split `feed:42` at its first colon.

    Raises:
        BadResource: not text, no colon, or a key that is not allowed.
        UnknownDataType: no data type of that name is registered.
    """
    if isinstance(name, Resource):
        return name
    if not isinstance(name, str):
        raise BadResource(f"a resource is text like 'feed:42', not {type(name).__name__}")
    kind, colon, key = name.partition(":")
    if not colon:
        raise BadResource(f"{name[:60]!r} is not a resource: write 'type:key', for example 'feed:42'")
    registry.get(kind)
    return Resource(kind, check_key(kind, key))


def is_number(value: object) -> bool:
    """Whether this is a finite number, which a flag is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Hidden(enum.Enum):
    """What a change does to a resource that nobody watches."""

    DEFER = "defer"
    SUMMARISE = "summarise"
    DROP = "drop"


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """A promise: the share `objective` of changes is shown within `seconds`, judged over `window` seconds."""

    seconds: float
    objective: float = 0.99
    window: int = 86_400

    def __post_init__(self) -> None:
        for name in ("seconds", "objective", "window"):
            if not is_number(getattr(self, name)):
                raise BadDeclaration(f"Freshness({name}={getattr(self, name)!r}): must be a number")
        if self.seconds <= 0:
            raise BadDeclaration(f"Freshness(seconds={self.seconds!r}): must be above 0")
        if not 0 < self.objective < 1:
            raise BadDeclaration(f"Freshness(objective={self.objective!r}): must be between 0 and 1")
        if self.window <= 0:
            raise BadDeclaration(f"Freshness(window={self.window!r}): must be above 0")


class Audience:
    """The resources an event makes stale.

    Args:
        keys: an iterable of keys, or a QuerySet of one column of keys. A QuerySet stays unevaluated: the gate
            narrows it to what is visible. Or a function that answers one of these: with a scope and nobody watching
            it is never called, and a save does not even pay for making the QuerySet. It is called after the commit.
        scope: the name of a source that all of them depend on. With it, the hidden ones cost one row together;
            the data type must then answer `scopes(key)`.
        kind: a word for summaries ("comment", "like") of a type with `Hidden.SUMMARISE`. What a scope marks is counted, but not
            by kind: `missed` grows, `summary` does not.
    """

    __slots__ = ("keys", "kind", "scope")

    def __init__(
        self,
        keys: Iterable[Any] | models.QuerySet[Any] | Callable[[], Iterable[Any] | models.QuerySet[Any]] = (),
        *,
        scope: str | None = None,
        kind: str = "",
    ) -> None:
        if isinstance(keys, (str, bytes)):
            raise BadDeclaration(f"Audience({keys!r}): give an iterable of keys, e.g. [{keys!r}]")
        self.keys: Any = keys if isinstance(keys, models.QuerySet) or callable(keys) else list(keys)
        self.scope = scope
        self.kind = kind

    def __repr__(self) -> str:
        return f"Audience(scope={self.scope!r}, kind={self.kind!r})"


class ScopesFrom(NamedTuple):
    """Scopes as a query: `prefix:` before each value of a one-column QuerySet, so that marks are read in one statement."""

    prefix: str
    queryset: models.QuerySet[Any]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an `@on` method sees: the row as it is now, without its old values.

    `action` is created, saved (an existing row), deleted or m2m; `update_fields` those of `save(update_fields=…)`, else None;
    `using` the database's alias.
    """

    instance: models.Model
    action: str
    event_id: str
    using: str
    update_fields: frozenset[str] | None = None


Handler = Callable[..., "Audience | Iterable[Any] | None"]
ACTIONS = ("created", "saved", "deleted", "m2m")


@dataclass(frozen=True)
class Source:
    """One `@on` declaration: which model, which actions, which fields, which method."""

    model: Any
    actions: tuple[str, ...]
    fields: frozenset[str] | None
    method: str


def on(
    *senders: type[models.Model] | str, actions: Sequence[str] = ACTIONS, fields: Iterable[str] | None = None
) -> Callable[[Handler], Handler]:
    """Declare that changes of these models make resources of this type stale.

    Args:
        senders: model classes or "app.Model". A many-to-many's `through` model is watched by its owner.
        actions: any of created, saved (an existing row), deleted, m2m.
        fields: with `save(update_fields=…)`, act only if one of these is among them. A `save()` without it always counts.
    """
    if not senders:
        raise BadDeclaration("@on() needs at least one model")
    if unknown := set(actions) - set(ACTIONS):
        raise BadDeclaration(f"@on(actions={sorted(unknown)}): choose from {ACTIONS}")

    def mark(method: Handler) -> Handler:
        own = tuple(Source(s, tuple(actions), frozenset(fields) if fields else None, method.__name__) for s in senders)
        method.visibility_sources = (*getattr(method, "visibility_sources", ()), *own)  # type: ignore[attr-defined]
        return method

    return mark


class DataType:
    """A kind of derived data. Subclass it in `<app>/visibility.py`, decorate it with `@register`.

    Override `build_many` (or `build`) and `can_watch` (or `can_watch_many`); declare sources with `@on`. Times are seconds.
    """

    name: ClassVar[str] = ""
    freshness: ClassVar[Freshness] = Freshness(seconds=3)
    hidden: ClassVar[Hidden] = Hidden.DEFER
    background: ClassVar[float | None] = None
    lane: ClassVar[str] = "hot"
    must_deliver: ClassVar[bool] = True
    coalesce: ClassVar[float] = 0.25
    ttl: ClassVar[float] = 300
    soft_ttl: ClassVar[float] = 60
    jitter: ClassVar[float] = 0.1
    active_window: ClassVar[float | None] = None
    anonymous: ClassVar[bool] = False
    schema: ClassVar[int] = 1

    sources: ClassVar[tuple[Source, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found: dict[str, tuple[Source, ...]] = {}
        for klass in reversed(cls.__mro__):
            for attribute, value in vars(klass).items():
                if own := getattr(value, "visibility_sources", None):
                    found[attribute] = own
        cls.sources = tuple(source for group in found.values() for source in group)

    def build(self, key: str) -> Any:
        """The data of one resource, as JSON. Called by the default `build_many`."""
        raise LookupError(f"data type {self.name!r} has neither build nor build_many")

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """{key: JSON-able data} for every key. A key whose value is an exception instance failed alone."""
        out: dict[str, Any] = {}
        for key in keys:
            try:
                out[key] = self.build(key)
            except Exception as error:
                out[key] = error
        return out

    def can_watch(self, user: Any, key: str) -> bool:
        """May this user watch this resource? Asked at watch, on a timer and when permissions change."""
        return False

    def can_watch_many(self, user: Any, keys: Sequence[str]) -> Iterable[Any]:
        """Those of these keys that this user may watch; override it where one query serves all. Asked in place of `can_watch`."""
        out = []
        for key in keys:
            may: object = self.can_watch(user, key)
            if isinstance(may, Awaitable):
                # It would be taken for a yes, whatever it comes to.
                raise TypeError(f"{self.name}.can_watch answers something to await, not yes or no")
            if may:
                out.append(key)
        return out

    def scopes(self, key: str) -> Iterable[str] | ScopesFrom:
        """The scopes this resource depends on; needed where an audience names one."""
        return ()

    def scopes_many(self, keys: Sequence[str]) -> Mapping[str, Iterable[str] | ScopesFrom]:
        """`scopes` for several keys; override it where one query serves all."""
        return {key: self.scopes(key) for key in keys}

    def apply(self, key: str, version: int | None, payload: Any) -> None:
        """Write an external event's payload to the source, in one transaction with its processed record."""

    @property
    def has_scopes(self) -> bool:
        return type(self).scopes is not DataType.scopes or type(self).scopes_many is not DataType.scopes_many

    @property
    def has_build(self) -> bool:
        return type(self).build is not DataType.build or type(self).build_many is not DataType.build_many

    @property
    def has_apply(self) -> bool:
        return type(self).apply is not DataType.apply


def _check_times(cls: type[DataType], where: str) -> None:
    for name in ("ttl", "soft_ttl", "coalesce", "jitter"):
        if not is_number(getattr(cls, name)):
            raise BadDeclaration(f"{where}: {name} = {getattr(cls, name)!r} must be a number")
    if cls.background is not None and not (is_number(cls.background) and cls.background >= 0):
        raise BadDeclaration(f"{where}: background = {cls.background!r} must be None or a number of seconds")
    window = cls.active_window
    if window is not None and not (is_number(window) and 0 < window <= 366 * 86_400):
        raise BadDeclaration(f"{where}: active_window = {window!r} must be None, or above 0 and at most a year of seconds")
    if not isinstance(cls.freshness, Freshness):
        raise BadDeclaration(f"{where}: freshness = {cls.freshness!r}; write Freshness(seconds=…)")
    if not isinstance(cls.lane, str):
        raise BadDeclaration(f"{where}: lane = {cls.lane!r} must be the name of a lane")
    if not 0 < cls.soft_ttl <= cls.ttl:
        raise BadDeclaration(f"{where}: soft_ttl = {cls.soft_ttl!r} must be above 0 and at most ttl = {cls.ttl!r}")


T = TypeVar("T", bound=type[DataType])


@dataclass
class Registry:
    """The registered data types, by name."""

    # Grows with every change, so that what was made of the types is made anew.
    revision: int = 0
    _types: dict[str, DataType] = field(default_factory=dict)
    _listeners: list[Callable[[DataType], None]] = field(default_factory=list)

    def register(self, cls: T) -> T:
        """Class decorator: make a data type known.

        Raises:
            BadDeclaration: no legal name, a name already taken, no build, or times that make no sense.
        """
        if not (isinstance(cls, type) and issubclass(cls, DataType)):
            raise BadDeclaration(f"@register is for subclasses of DataType, not {cls!r}")
        where = f"{cls.__module__}.{cls.__qualname__}"
        if not _NAME.match(cls.name or ""):
            raise BadDeclaration(f"{where}: name = {cls.name!r}; give it a lower-case name of letters, digits and underscores")
        if cls.name in self._types:
            other = type(self._types[cls.name])
            raise BadDeclaration(f"{where}: the name {cls.name!r} is taken by {other.__module__}.{other.__qualname__}")
        for method in _SYNCHRONOUS:
            if inspect.iscoroutinefunction(getattr(cls, method)):
                raise BadDeclaration(f"{where}: {method} is async; it is called in a thread: write a plain def")
        instance = cls()
        if not instance.has_build:
            raise BadDeclaration(f"{where}: data type {cls.name!r} defines neither build(key) nor build_many(keys)")
        if not isinstance(cls.hidden, Hidden):
            raise BadDeclaration(f"{where}: hidden = {cls.hidden!r}; choose Hidden.DEFER, Hidden.SUMMARISE or Hidden.DROP")
        _check_times(cls, where)
        self._types[cls.name] = instance
        self.revision += 1
        for listener in self._listeners:
            listener(instance)
        return cls

    def unregister(self, name: str) -> None:
        """Forget a data type; for tests."""
        self._types.pop(name, None)
        self.revision += 1

    def get(self, name: str) -> DataType:
        try:
            return self._types[name]
        except (KeyError, TypeError):
            known = ", ".join(sorted(self._types)) or "none"
            raise UnknownDataType(f"no data type {str(name)[:60]!r} is registered (known: {known})") from None

    def find(self, name: str) -> DataType | None:
        return self._types.get(name)

    def __iter__(self) -> Iterator[DataType]:
        return iter(list(self._types.values()))

    def subscribe(self, listener: Callable[[DataType], None]) -> None:
        """Call `listener` for every type registered so far and from now on."""
        self._listeners.append(listener)
        for instance in self:
            listener(instance)


registry = Registry()
register = registry.register


def data_type_of(value: str | type[DataType] | DataType) -> DataType:
    """The registered data type named by text, class or instance."""
    if isinstance(value, str):
        return registry.get(value)
    return registry.get(value.name)


def is_shadow(data_type: str) -> bool:
    """Whether the gate only decides and counts for this type (`VISIBILITY["SHADOW"]`)."""
    shadow = settings.SHADOW
    return bool(shadow) if isinstance(shadow, bool) else data_type in shadow
