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
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import InterfaceError, OperationalError, router, transaction

from visibility import push
from visibility.datatypes import parse_resource, registry
from visibility.soft import sessions
from visibility.soft.sessions import NOBODY
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
    """Ask `can_watch` for many sessions at once, with users as the database has them now. An error in one is a no.

    Raises:
        OperationalError, InterfaceError: the database is away; nothing was decided.
    """
    by_login = users_of([a.session_key for a in askings if a.session_key])
    pk = get_user_model()._meta.pk
    plain = [a.user for a in askings if not a.session_key and a.account is None and a.user != NOBODY]
    by_pk = {str(found): user for found, user in users_by_pk([pk.to_python(one) for one in dict.fromkeys(plain)]).items()}
    memo: dict[tuple[str, str], bool] = {}
    out: list[Answer] = []
    for asking in askings:
        user = _user(asking, by_login, by_pk)
        if user is None:
            out.append(Answer(True, set()))
            continue
        allowed = set()
        for name in asking.resources:
            slot = (asking.user, name)
            if slot not in memo:
                memo[slot] = may_watch(user, name)
            if memo[slot]:
                allowed.add(name)
        out.append(Answer(False, allowed))
    return out


def _user(asking: Asking, by_login: dict[str, Any], by_pk: dict[str, Any]) -> Any:
    if asking.account is not None:
        return asking.account
    if asking.user == NOBODY:
        return AnonymousUser()
    found = by_login.get(asking.session_key) if asking.session_key else by_pk.get(asking.user)
    return found if found is not None and user_key(found) == asking.user else None


def may_watch(user: Any, resource: str) -> bool:
    """Whether the data type lets this user watch this resource now; no for unknown types, and if `can_watch` fails.

    Raises:
        OperationalError, InterfaceError: the database is away.
    """
    kind, _, key = resource.partition(":")
    data_type = registry.find(kind)
    if data_type is None or (user_key(user) == NOBODY and not data_type.anonymous):
        return False
    try:
        return bool(data_type.can_watch(user, key))
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        logger.exception("%s.can_watch failed for user %s on %s; refused", kind, user_key(user), resource)
        return False


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
