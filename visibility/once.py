"""Natural keys: one record per combination and interval, for the host's own jobs."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256

from asgiref.sync import sync_to_async
from django.db import IntegrityError, router, transaction
from django.utils import timezone

from visibility.models import NaturalKey

LONGEST = 255


def natural_key(parts: tuple[object, ...]) -> str:
    """The parts as one name, each told apart from its neighbours; too long a name is replaced by its digest.

    Raises:
        ValueError: no parts.
    """
    if not parts:
        raise ValueError("a natural key needs at least one part")
    name = "/".join(str(part).replace("\\", "\\\\").replace("/", "\\/") for part in parts)
    return name if len(name) <= LONGEST else f"sha256:{sha256(name.encode()).hexdigest()}"


def once(*parts: object, interval: float, using: str | None = None) -> bool:
    """True for the first caller with these parts, False for all others until `interval` seconds later.

    The record is a row in the caller's own transaction: rolled back, it did not happen. Two callers at once wait for each other
    in the database. Parts are compared as text, upper and lower case as the database does.

    Example::

        if visibility.once("comment", actor.pk, post.pk, interval=3600):
            notify(...)

    Raises:
        ValueError: no parts, or an interval that is not above 0.
    """
    if interval <= 0:
        raise ValueError(f"once(interval={interval!r}): give seconds above 0")
    name, now = natural_key(parts), timezone.now()
    alias = using or router.db_for_write(NaturalKey)
    rows, ends = NaturalKey.objects.using(alias).filter(name=name), now + timedelta(seconds=interval)
    # Asked first, so that a repetition leaves no error in the database's log.
    if rows.filter(expires_at__gt=now).exists():
        return False
    if rows.filter(expires_at__lte=now).update(expires_at=ends):
        return True
    try:
        with transaction.atomic(using=alias):
            NaturalKey.objects.using(alias).create(name=name, expires_at=ends)
    except IntegrityError:
        return False
    return True


async def aonce(*parts: object, interval: float, using: str | None = None) -> bool:
    """The asynchronous twin of `once`."""
    return await sync_to_async(once)(*parts, interval=interval, using=using)
