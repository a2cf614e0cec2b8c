"""What Django's own signals tell of people's rights: logout, deactivation, password, group and permission changes.

Connected when the apps are ready, so it imports no more than that takes; `access` and what it needs come with the first signal
that concerns it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.auth.signals import user_logged_out
from django.db.models.signals import m2m_changed, post_delete, post_save

logger = logging.getLogger("visibility")
# Fields of a user that decide about access; a save of others alone (last_login) asks nothing.
TELLING = {"is_active", "is_staff", "is_superuser", "password"}


def _recheck(user: Any, using: str) -> None:
    from visibility.access import recheck

    recheck(user, using)


def _logged_out(sender: Any, request: Any = None, user: Any = None, **kwargs: Any) -> None:
    from visibility.access import logged_out, recheck

    key = getattr(getattr(request, "session", None), "session_key", None)
    try:
        if key:
            logged_out(key, user)
        elif user is not None:
            recheck(user)
    except Exception:
        # Logging out must work while Redis is away; the sockets end at the next re-check.
        logger.exception("a logout was not told; its sockets end at the next re-check")


def _user_saved(
    sender: Any, instance: Any, created: bool, raw: bool, using: str, update_fields: Iterable[str] | None, **kwargs: Any
) -> None:
    if not raw and not created and (update_fields is None or TELLING & set(update_fields)):
        _recheck(instance, using)


def _user_deleted(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    _recheck(instance, using)


def _rights_changed(
    sender: Any, instance: Any, action: str, reverse: bool, using: str, pk_set: set[Any] | None = None, **kwargs: Any
) -> None:
    if not action.startswith("post_"):
        return
    if isinstance(instance, get_user_model()):
        _recheck(instance, using)
    elif reverse and pk_set and issubclass(kwargs["model"], get_user_model()):
        for pk in pk_set:
            _recheck(pk, using)
    else:
        # A group's rights, or who was in it, changed: whom it concerns is not known here.
        _recheck(None, using)


def _rights_gone(sender: Any, using: str, **kwargs: Any) -> None:
    _recheck(None, using)


def connect() -> None:
    """Listen; harmless when repeated."""
    user = get_user_model()
    uid = "visibility.access"
    user_logged_out.connect(_logged_out, dispatch_uid=uid)
    post_save.connect(_user_saved, sender=user, dispatch_uid=uid)
    post_delete.connect(_user_deleted, sender=user, dispatch_uid=uid)
    for owner, name in ((user, "groups"), (user, "user_permissions"), (Group, "permissions")):
        if hasattr(owner, name):
            m2m_changed.connect(_rights_changed, sender=getattr(owner, name).through, dispatch_uid=uid)
    for sender in (Group, Permission):
        post_delete.connect(_rights_gone, sender=sender, dispatch_uid=uid)
