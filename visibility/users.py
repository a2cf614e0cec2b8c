"""Who a session belongs to, many at once, as `django.contrib.auth.get_user` decides it; nothing is ever flushed or written.

Session hashes made with an older secret key (`SECRET_KEY_FALLBACKS`) are accepted, as HTTP does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model, load_backend
from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.backends.db import SessionStore as DatabaseSession
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from visibility.datatypes import legible
from visibility.soft.sessions import NOBODY


def user_key(user: Any) -> str:
    """A user as Redis keys and leases name them: the primary key as text, `-` for nobody."""
    if user is None or getattr(user, "is_anonymous", False):
        return NOBODY
    return str(getattr(user, "pk", user))


@cache
def _store_class(engine: str) -> type[SessionBase]:
    found: type[SessionBase] = import_module(engine).SessionStore
    return found


def session_store(key: str | None) -> SessionBase:
    """A session of the project's engine; nothing is loaded before it is used."""
    return _store_class(settings.SESSION_ENGINE)(key)


def session_data(keys: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """What live sessions hold, by key; ended and unknown ones are absent. One query for the engines that use the database."""
    # A cookie can say anything: what no database takes is nobody's key, and must not fail the others of a batch.
    wanted = [key for key in dict.fromkeys(keys) if legible(key) == key]
    store = session_store(None)
    if not isinstance(store, DatabaseSession):
        return {key: data for key in wanted if (data := session_store(key).load())}
    out: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(wanted), 500):
        rows = store.model.objects.filter(session_key__in=wanted[start : start + 500], expire_date__gt=timezone.now())
        out.update((row.session_key, store.decode(row.session_data)) for row in rows)
    return out


def users_of(keys: Sequence[str]) -> dict[str, Any]:
    """The user logged into each session, by session key; absent where nobody is (any more)."""
    claims: dict[str, tuple[Any, str]] = {}
    found = session_data(keys)
    for key, data in found.items():
        path = data.get(BACKEND_SESSION_KEY)
        if SESSION_KEY in data and path in settings.AUTHENTICATION_BACKENDS:
            # A login of before the user model was changed is nobody's.
            with suppress(ValidationError):
                claims[key] = get_user_model()._meta.pk.to_python(data[SESSION_KEY]), str(path)
    users = _users(set(claims.values()))
    return {key: user for key, claim in claims.items() if (user := users.get(claim)) is not None and _signed(user, found[key])}


def _users(claims: set[tuple[Any, str]]) -> dict[tuple[Any, str], Any]:
    out: dict[tuple[Any, str], Any] = {}
    for path in {path for _, path in claims}:
        ids = [pk for pk, other in claims if other == path]
        backend = load_backend(path)
        if type(backend).get_user is ModelBackend.get_user:
            many = users_by_pk(ids)
            out.update(((pk, path), user) for pk in ids if (user := many.get(pk)) is not None)
        else:
            out.update(((pk, path), user) for pk in ids if (user := backend.get_user(pk)) is not None)
    return out


def users_by_pk(ids: Sequence[Any]) -> dict[Any, Any]:
    """Active users by primary key, without what they cached of their permissions."""
    manager = get_user_model()._default_manager
    many = {pk: user for start in range(0, len(ids), 500) for pk, user in manager.in_bulk(ids[start : start + 500]).items()}
    return {pk: user for pk, user in many.items() if getattr(user, "is_active", True)}


def _signed(user: Any, data: Mapping[str, Any]) -> bool:
    if not hasattr(user, "get_session_auth_hash"):
        return True
    given = data.get(HASH_SESSION_KEY)
    if not given:
        return False
    fallbacks = getattr(user, "get_session_auth_fallback_hash", lambda: ())
    return any(constant_time_compare(given, known) for known in (user.get_session_auth_hash(), *fallbacks()))
