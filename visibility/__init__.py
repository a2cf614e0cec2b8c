"""Occlusion culling for servers: compute, cache and push only what somebody is looking at.

The public names, nothing else. Each is imported when it is first used, so that `import visibility` costs next to nothing and
may stand anywhere, in settings and in models too.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from visibility.access import arevoke as arevoke, revoke as revoke
    from visibility.datatypes import (
        Audience as Audience,
        Change as Change,
        DataType as DataType,
        Freshness as Freshness,
        Hidden as Hidden,
        Resource as Resource,
        ScopesFrom as ScopesFrom,
        on as on,
        register as register,
    )
    from visibility.events.external import Emitted as Emitted, aemit as aemit, emit as emit
    from visibility.exceptions import (
        BadDeclaration as BadDeclaration,
        BadResource as BadResource,
        BadSnapshot as BadSnapshot,
        BuildFailed as BuildFailed,
        LockLost as LockLost,
        PayloadTooLarge as PayloadTooLarge,
        RedisAway as RedisAway,
        UnknownDataType as UnknownDataType,
        VisibilityError as VisibilityError,
    )
    from visibility.explain import aexplain as aexplain, explain as explain
    from visibility.once import aonce as aonce, once as once
    from visibility.presence import (
        ahold as ahold,
        ainterests as ainterests,
        ais_visible as ais_visible,
        apresence as apresence,
        arelease as arelease,
        avisible as avisible,
        awatchers as awatchers,
        hold as hold,
        interests as interests,
        is_visible as is_visible,
        presence as presence,
        release as release,
        visible as visible,
        watchers as watchers,
    )
    from visibility.queryset import (
        VisibilityManager as VisibilityManager,
        VisibilityModel as VisibilityModel,
        VisibilityQuerySet as VisibilityQuerySet,
        atouch as atouch,
        touch as touch,
    )
    from visibility.read import aread as aread, aread_many as aread_many, read as read, read_many as read_many
    from visibility.signals import (
        became_hidden as became_hidden,
        became_visible as became_visible,
        event_processed as event_processed,
        pressure_changed as pressure_changed,
        slo_alert as slo_alert,
        snapshot_built as snapshot_built,
        user_offline as user_offline,
        user_online as user_online,
    )
    from visibility.soft.locks import lock as lock
    from visibility.soft.snapshots import Snapshot as Snapshot

__version__ = "0.1.0"

_HOMES = {
    "access": ("revoke", "arevoke"),
    "datatypes": ("Audience", "Change", "DataType", "Freshness", "Hidden", "Resource", "ScopesFrom", "on", "register"),
    "exceptions": (
        "BadDeclaration", "BadResource", "BadSnapshot", "BuildFailed", "LockLost", "PayloadTooLarge", "RedisAway",
        "UnknownDataType", "VisibilityError",
    ),
    "explain": ("explain", "aexplain"),
    "events.external": ("Emitted", "emit", "aemit"),
    "once": ("once", "aonce"),
    "presence": (
        "presence", "apresence", "watchers", "awatchers", "is_visible", "ais_visible", "visible", "avisible", "interests",
        "ainterests", "hold", "ahold", "release", "arelease",
    ),
    "queryset": ("touch", "atouch", "VisibilityManager", "VisibilityModel", "VisibilityQuerySet"),
    "read": ("read", "aread", "read_many", "aread_many"),
    "signals": (
        "became_visible", "became_hidden", "user_online", "user_offline", "snapshot_built", "event_processed",
        "pressure_changed", "slo_alert",
    ),
    "soft.locks": ("lock",),
    "soft.snapshots": ("Snapshot",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'visibility' has no attribute {name!r}")
    value = getattr(import_module(f"visibility.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_HOME, *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """Some names stand for a function and for the module that holds it (`visibility.read`): on the package the function wins.

    The import system sets a module on its package as soon as it was imported, by whomever.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
