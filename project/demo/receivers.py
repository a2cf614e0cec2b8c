"""What the demo does when its models change.

Everybody follows themselves, and the meter learns what a fan-out to everybody would have cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from project.demo import meter
from project.demo.models import Follow, Membership, Message, Notification, Post, Tile


def affected(instance: Any) -> dict[str, int]:
    """How many resources of each data type a change of this row makes stale: the work of a fan-out to everybody."""
    if isinstance(instance, Post):
        return {"feed": Follow.objects.filter(author=instance.author_id).count()}
    if isinstance(instance, Message):
        return {"room": 1, "unread": Membership.objects.filter(room=instance.room_id).count()}
    if isinstance(instance, Membership):
        return {"unread": 1}
    if isinstance(instance, Notification):
        return {"badge": 1}
    if isinstance(instance, Follow):
        return {"feed": 1}
    return {"tile": 1} if isinstance(instance, Tile) else {}


# Where counts go; the replay keeps its own, so that a change costs it no Redis call.
tell: Callable[[Mapping[str, int]], Any] = meter.tell


def changed(sender: type, instance: Any, using: str, raw: bool = False, **_kwargs: Any) -> None:
    if raw:
        return
    fields = {f"everybody|{data_type}": n for data_type, n in affected(instance).items()}
    transaction.on_commit(lambda: tell(fields), using=using, robust=True)


def joined(sender: type, instance: Any, created: bool, raw: bool = False, using: str | None = None, **_kwargs: Any) -> None:
    if created and not raw:
        Follow.objects.using(using).get_or_create(follower=instance, author=instance)


def connect() -> None:
    for model in (Post, Message, Membership, Notification, Follow, Tile):
        post_save.connect(changed, sender=model, dispatch_uid=f"demo-saved-{model.__name__}")
        post_delete.connect(changed, sender=model, dispatch_uid=f"demo-deleted-{model.__name__}")
    post_save.connect(joined, sender=User, dispatch_uid="demo-joined")
