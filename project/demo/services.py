"""What people do in the demo. Every call is one transaction; visibility sees the saves by itself."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.utils import timezone

import visibility
from project.demo import receivers
from project.demo.models import Follow, Membership, Message, Notification, Post, Room, Tile
from visibility.exceptions import RedisAway

INTERVAL = 3_600


def post(author: User, text: str) -> Post:
    return Post.objects.create(author=author, text=text)


@transaction.atomic
def say(author: User, room: Room, text: str) -> Message:
    """Store a message and tell the members who do not have the room open."""
    message = Message.objects.create(room=room, author=author, text=text)
    looking = lookers(room)
    for member in room.members.exclude(pk=author.pk):
        if member.pk not in looking:
            notify(member.pk, Notification.Kind.MESSAGE, subject=f"room:{room.pk}", label=room.name, actor=author)
    return message


def lookers(room: Room) -> set[int]:
    """Who has this room open; nobody while Redis is away, so that everybody is told."""
    try:
        return {int(user) for user in visibility.watchers(f"room:{room.pk}").users if str(user).isdecimal()}
    except RedisAway:
        return set()


def notify(recipient: int, kind: str, *, subject: str, label: str, actor: User) -> Notification:
    """Tell somebody, once per natural key: recipient, kind, subject and hour. The same again raises the count."""
    now = timezone.now()
    own = {"recipient_id": recipient, "kind": kind, "subject": subject, "interval": int(time.time() // INTERVAL)}
    row, created = Notification.objects.get_or_create(**own, defaults={"label": label[:120], "actor": actor})
    if not created:
        row.count = F("count") + 1 if row.seen_at is None else 1
        row.actor, row.last_at, row.seen_at = actor, now, None
        row.save(update_fields=["count", "actor", "last_at", "seen_at"])
    return row


@transaction.atomic
def follow(follower: User, author: User, *, on: bool = True) -> None:
    if follower.pk == author.pk:
        return
    if not on:
        for row in Follow.objects.filter(follower=follower, author=author):
            row.delete()
        return
    _row, created = Follow.objects.get_or_create(follower=follower, author=author)
    if created:
        notify(author.pk, Notification.Kind.FOLLOW, subject="follow", label="", actor=follower)


@transaction.atomic
def open_room(user: User, room: Room) -> int:
    """Everything in the room is read; told only if that changes anything. Answers how many notifications that settled."""
    newest = room.messages.order_by("-id").values_list("id", flat=True).first() or 0
    for membership in Membership.objects.filter(room=room, user=user, read_up_to__lt=newest):
        membership.read_up_to = newest
        membership.save(update_fields=["read_up_to"])
    return see(user, Notification.objects.filter(subject=f"room:{room.pk}"))


@transaction.atomic
def see(user: User, rows: Iterable[Notification] | None = None) -> int:
    """The user has seen these notifications, or all; answers how many there were."""
    chosen = Notification.objects.all() if rows is None else Notification.objects.filter(pk__in=[row.pk for row in rows])
    unseen = list(chosen.filter(recipient=user, seen_at=None))
    if unseen:
        Notification.objects.filter(pk__in=[row.pk for row in unseen]).update(seen_at=timezone.now())
        visibility.touch(unseen[:1])
    return len(unseen)


def set_tile(tile: Tile, value: str) -> None:
    """What a price feed, an order system or a sensor does: an event from outside, with an id and a version."""
    visibility.emit(
        "tile", keys=[tile.pk], id=str(uuid.uuid4()), version=time.time_ns() // 1_000, tenant=tile.kind, payload={"value": value}
    )
    receivers.tell({"everybody|tile": 1})
