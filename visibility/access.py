"""Who may watch what: asked when a watch starts, on a timer, and at once when something about a user changes.

Deny by default. What is taken away is written to the access log in Redis before it is told over the layer: a process that
missed the hint reads the log, by number, together with the next snapshot that it fetches.

Memberships of your own kind: call `recheck(user)` where they change, for example::

    @receiver(post_delete, sender=Membership)
    def left(sender, instance, **kwargs):
        visibility.access.recheck(instance.user)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import router, transaction

from visibility import push
from visibility.datatypes import DataType, parse_resource, registry
from visibility.soft import sessions
from visibility.soft.sessions import NOBODY
from visibility.sql import DATABASE_AWAY
from visibility.users import user_key, users_by_pk, users_of

logger = logging.getLogger("visibility")


class Asking(NamedTuple):
    """One session that asks. `session_key`: of the login; without one the user is looked up by key. `account`: a user that no
    database knows, kept as it came."""

    user: str
    session_key: str | None
    account: Any
    resources: Sequence[str]


class Answer(NamedTuple):
    """`over`: the login, or the user, is no more. `allowed`: what may be watched."""

    over: bool
    allowed: set[str]


def digest(session_key: str) -> str:
    """How the access log names a login session; the key itself is a secret."""
    return sha256(f"visibility|{session_key}".encode()).hexdigest()[:32]


def judge(askings: Sequence[Asking]) -> list[Answer]:
    """Ask `can_watch_many` once a user and data type, with users as the database has them now. An error in one is a no.

    Raises:
        OperationalError, InterfaceError: the database is away; nothing was decided.
    """
    by_login = users_of([a.session_key for a in askings if a.session_key])
    pk = get_user_model()._meta.pk
    plain = [a.user for a in askings if not a.session_key and a.account is None and a.user != NOBODY]
    by_pk = {str(found): user for found, user in users_by_pk([pk.to_python(one) for one in dict.fromkeys(plain)]).items()}
    users = [_user(asking, by_login, by_pk) for asking in askings]
    wanted: dict[str, tuple[Any, dict[str, None]]] = {}
    for asking, user in zip(askings, users, strict=True):
        if user is not None:
            wanted.setdefault(asking.user, (user, {}))[1].update(dict.fromkeys(asking.resources))
    may = {name: may_watch_many(user, resources) for name, (user, resources) in wanted.items()}
    return [
        Answer(True, set()) if user is None else Answer(False, may[asking.user].intersection(asking.resources))
        for asking, user in zip(askings, users, strict=True)
    ]


def _user(asking: Asking, by_login: dict[str, Any], by_pk: dict[str, Any]) -> Any:
    if asking.account is not None:
        return asking.account
    if asking.user == NOBODY:
        return AnonymousUser()
    found = by_login.get(asking.session_key) if asking.session_key else by_pk.get(asking.user)
    return found if found is not None and user_key(found) == asking.user else None


def may_watch(user: Any, resource: str) -> bool:
    """`may_watch_many` for one resource."""
    return bool(may_watch_many(user, [resource]))


def may_watch_many(user: Any, resources: Iterable[str]) -> set[str]:
    """Which of these the data types let this user watch now; none of unknown types, and none whose rule fails.

    Raises:
        OperationalError, InterfaceError: the database is away.
    """
    nobody = user_key(user) == NOBODY
    by_type: dict[DataType, list[str]] = {}
    for name in resources:
        kind, _, key = name.partition(":")
        data_type = registry.find(kind)
        if data_type is not None and (data_type.anonymous or not nobody):
            by_type.setdefault(data_type, []).append(key)
    return {f"{data_type.name}:{key}" for data_type, keys in by_type.items() for key in _allowed(data_type, user, keys)}


def _allowed(data_type: DataType, user: Any, keys: Sequence[str]) -> set[str]:
    try:
        found = data_type.can_watch_many(user, keys)
        if isinstance(found, (str, Mapping)):
            # Its keys would be taken for a yes, whatever stands behind them.
            raise TypeError(f"{data_type.name}.can_watch_many answers the keys that may be watched, not a {type(found).__name__}")
        return set(keys).intersection(map(str, found))
    except DATABASE_AWAY:
        raise
    except Exception:
        if len(keys) > 1:
            # One by one, so that a key that the rule cannot bear refuses no other.
            return set().union(*(_allowed(data_type, user, [key]) for key in keys))
        logger.exception("may user %s watch %s:%s? The rule failed; refused", user_key(user), data_type.name, keys[0])
        return set()


def revoke(user: Any, resource: str | None = None, reason: str = "revoked") -> None:
    """End a user's watches now: one resource, or all. `user` None: everybody's watches of that resource.

    Inside a transaction the user is also asked again after its commit, so that a client that watches again at once is not let in
    by what stood before. A client may ask again at any time; `can_watch` decides.

    Raises:
        RedisAway: nobody was told; watches end at the next re-check (`RECHECK` seconds).
    """
    name = None if resource is None else str(parse_resource(resource))
    if user is None and name is None:
        raise ValueError("revoke() of everybody needs a resource")
    who = None if user is None else user_key(user)
    _tell({"kind": "revoke", "user": who, "resource": name, "reason": str(reason)[:200]})
    if transaction.get_connection().in_atomic_block:
        recheck(user)


async def arevoke(user: Any, resource: str | None = None, reason: str = "revoked") -> None:
    """The asynchronous twin of `revoke`."""
    await push.in_thread(revoke)(user, resource, reason)


def recheck(user: Any = None, using: str | None = None) -> None:
    """Ask `can_watch` again for all watches of a user (None: of everybody), once the open transaction has committed.

    Until it is answered, their sockets get no data. Call it where a membership of your own changes.
    """
    who = None if user is None else user_key(user)
    _after_commit({"kind": "recheck", "user": who}, using)


async def arecheck(user: Any = None, using: str | None = None) -> None:
    """The asynchronous twin of `recheck`."""
    await push.in_thread(recheck)(user, using)


def logged_out(session_key: str, user: Any = None) -> None:
    """End the sockets of one login.

    Raises:
        RedisAway: nobody was told.
    """
    _tell({"kind": "logout", "session": digest(session_key), "user": None if user is None else user_key(user)})


def _tell(entry: dict[str, Any]) -> None:
    push.publish_access(sessions.tell(entry))


def _after_commit(entry: dict[str, Any], using: str | None = None) -> None:
    # robust: the host's commit must not fail for it; the timer re-check is the safety net.
    transaction.on_commit(lambda: _tell(entry), using=using or router.db_for_write(get_user_model()), robust=True)
