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
    from visibility.access import arevoke as arevoke
    from visibility.access import revoke as revoke
    from visibility.datatypes import (
        Audience as Audience,
    )
    from visibility.datatypes import (
        Change as Change,
    )
    from visibility.datatypes import (
        DataType as DataType,
    )
    from visibility.datatypes import (
        Freshness as Freshness,
    )
    from visibility.datatypes import (
        Hidden as Hidden,
    )
    from visibility.datatypes import (
        Resource as Resource,
    )
    from visibility.datatypes import (
        ScopesFrom as ScopesFrom,
    )
    from visibility.datatypes import (
        on as on,
    )
    from visibility.datatypes import (
        register as register,
    )
    from visibility.exceptions import (
        BadDeclaration as BadDeclaration,
    )
    from visibility.exceptions import (
        BadResource as BadResource,
    )
    from visibility.exceptions import (
        BadSnapshot as BadSnapshot,
    )
    from visibility.exceptions import (
        BuildFailed as BuildFailed,
    )
    from visibility.exceptions import (
        LockLost as LockLost,
    )
    from visibility.exceptions import (
        PayloadTooLarge as PayloadTooLarge,
    )
    from visibility.exceptions import (
        RedisAway as RedisAway,
    )
    from visibility.exceptions import (
        UnknownDataType as UnknownDataType,
    )
    from visibility.exceptions import (
        VisibilityError as VisibilityError,
    )
    from visibility.explain import aexplain as aexplain
    from visibility.explain import explain as explain
    from visibility.external import Emitted as Emitted
    from visibility.external import aemit as aemit
    from visibility.external import emit as emit
    from visibility.once import aonce as aonce
    from visibility.once import once as once
    from visibility.presence import (
        ahold as ahold,
    )
    from visibility.presence import (
        ainterests as ainterests,
    )
    from visibility.presence import (
        ais_visible as ais_visible,
    )
    from visibility.presence import (
        apresence as apresence,
    )
    from visibility.presence import (
        arelease as arelease,
    )
    from visibility.presence import (
        avisible as avisible,
    )
    from visibility.presence import (
        awatchers as awatchers,
    )
    from visibility.presence import (
        hold as hold,
    )
    from visibility.presence import (
        interests as interests,
    )
    from visibility.presence import (
        is_visible as is_visible,
    )
    from visibility.presence import (
        presence as presence,
    )
    from visibility.presence import (
        release as release,
    )
    from visibility.presence import (
        visible as visible,
    )
    from visibility.presence import (
        watchers as watchers,
    )
    from visibility.queryset import (
        VisibilityManager as VisibilityManager,
    )
    from visibility.queryset import (
        VisibilityModel as VisibilityModel,
    )
    from visibility.queryset import (
        VisibilityQuerySet as VisibilityQuerySet,
    )
    from visibility.queryset import (
        atouch as atouch,
    )
    from visibility.queryset import (
        touch as touch,
    )
    from visibility.read import aread as aread
    from visibility.read import aread_many as aread_many
    from visibility.read import read as read
    from visibility.read import read_many as read_many
    from visibility.signals import (
        became_hidden as became_hidden,
    )
    from visibility.signals import (
        became_visible as became_visible,
    )
    from visibility.signals import (
        event_processed as event_processed,
    )
    from visibility.signals import (
        pressure_changed as pressure_changed,
    )
    from visibility.signals import (
        slo_alert as slo_alert,
    )
    from visibility.signals import (
        snapshot_built as snapshot_built,
    )
    from visibility.signals import (
        user_offline as user_offline,
    )
    from visibility.signals import (
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
    "external": ("Emitted", "emit", "aemit"),
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
    return sorted({*globals(), *_HOME})


class _Package(ModuleType):
    """Some names stand for a function and for the module that holds it (`visibility.read`): on the package the function wins.

    The import system sets a module on its package as soon as it was imported, by whomever.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
