"""The demo's data types, found by autodiscovery: three kinds of promise, and what goes with them.

badge: shown within 1 to 3 s while it is watched, summarised ("15 new") while it is not. feed: may be stale until the next
request. unread: eventual, but right when its room is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce

import visibility
from project.demo import soft
from project.demo.models import Follow, Membership, Message, Notification, Post, Room, Tile
from visibility import Audience, DataType, Freshness, Hidden, ScopesFrom, on, register

FEED_LENGTH = 20
ROOM_LENGTH = 50
BADGE_LENGTH = 30
NAMED = ("username", "first_name", "last_name")
# What `said` needs of a post or a message; columns, because models cost more than the query.
SAID = ("pk", "author_id", "author__first_name", "author__last_name", "author__username", "text", "created_at")


def numbers(keys: Sequence[str]) -> list[int]:
    """The keys that are primary keys as this app writes them; others ("007", "abc") name nothing that exists."""
    return [int(key) for key in keys if key.isascii() and key.isdecimal() and str(int(key)) == key]


def name_of(user: User) -> str:
    return user.get_full_name() or user.get_username()


def said(row: tuple[Any, ...]) -> dict[str, Any]:
    """A post or a message, from its columns `SAID`, as it is shown."""
    pk, author, first, last, username, text, at = row
    return {"id": pk, "author": author, "name": f"{first} {last}".strip() or username, "text": text, "at": at.isoformat()}


def names(users: Collection[int]) -> dict[int, str]:
    return {user.pk: name_of(user) for user in get_user_model().objects.filter(pk__in=users)}


class Metered(DataType):
    """A data type that tells the demo's meter how many resources it builds."""

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        soft.count({f"done|{self.name}": len(keys)})
        return self.build_all(keys)

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        raise NotImplementedError


@register
class Feed(Metered):
    """The newest posts of everybody whom this person follows."""

    name = "feed"
    freshness = Freshness(seconds=3, objective=0.99)
    hidden = Hidden.DEFER
    background = 30

    @on(Post)
    def posts(self, change: visibility.Change) -> Audience:
        return self.followers(cast("Post", change.instance).author_id)

    @on(User, actions=("saved",), fields=NAMED)
    def renamed(self, change: visibility.Change) -> Audience:
        return self.followers(change.instance.pk)

    @on(Follow)
    def follows(self, change: visibility.Change) -> Audience:
        return Audience([cast("Follow", change.instance).follower_id])

    def followers(self, author: int) -> Audience:
        return Audience(Follow.objects.filter(author=author).values_list("follower_id", flat=True), scope=f"author:{author}")

    def scopes(self, key: str) -> ScopesFrom:
        return ScopesFrom("author", Follow.objects.filter(follower_id=int(key)).values_list("author_id", flat=True))

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {key: {"posts": []} for key in keys}
        for key in numbers(keys):
            followed = Follow.objects.filter(follower=key).values("author_id")
            posts = Post.objects.filter(author__in=followed).order_by("-id")
            out[str(key)] = {"posts": [said(row) for row in posts.values_list(*SAID)[:FEED_LENGTH]]}
        return out

    def can_watch(self, user: Any, key: str) -> bool:
        return str(user.pk) == key


@register
class Badge(Metered):
    """How many notifications a person has not seen, grouped: "15 new messages in Kitchen"."""

    name = "badge"
    freshness = Freshness(seconds=3, objective=0.99)
    hidden = Hidden.SUMMARISE
    background = 15
    coalesce = 0.5

    @on(Notification)
    def notified(self, change: visibility.Change) -> Audience:
        row = cast("Notification", change.instance)
        return Audience([row.recipient_id], kind=row.kind)

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {key: {"unseen": 0, "groups": []} for key in keys}
        rows = Notification.objects.filter(recipient__in=numbers(keys), seen_at=None).select_related("actor")
        for row in rows.order_by("recipient_id", "-last_at", "-id"):
            data = out[str(row.recipient_id)]
            data["unseen"] += row.count
            if len(data["groups"]) < BADGE_LENGTH:
                data["groups"].append(
                    {
                        "id": row.pk,
                        "kind": row.kind,
                        "text": row.text(),
                        "subject": row.subject,
                        "actor": name_of(row.actor) if row.actor else "",
                        "count": row.count,
                        "at": row.last_at.isoformat(),
                    }
                )
        return out

    def can_watch(self, user: Any, key: str) -> bool:
        return str(user.pk) == key


@register
class Unread(Metered):
    """Unread messages of one person, in all and by room."""

    name = "unread"
    freshness = Freshness(seconds=30, objective=0.95)
    hidden = Hidden.DEFER
    lane = "cold"
    coalesce = 1.0

    @on(Message)
    def messages(self, change: visibility.Change) -> Audience:
        room = cast("Message", change.instance).room_id
        return Audience(Membership.objects.filter(room=room).values_list("user_id", flat=True), scope=f"room:{room}")

    @on(Membership)
    def reading(self, change: visibility.Change) -> Audience:
        return Audience([cast("Membership", change.instance).user_id])

    def scopes(self, key: str) -> ScopesFrom:
        return ScopesFrom("room", Membership.objects.filter(user_id=int(key)).values_list("room_id", flat=True))

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {key: {"total": 0, "rooms": {}} for key in keys}
        new = (
            Message.objects.filter(room=OuterRef("room"), pk__gt=OuterRef("read_up_to"))
            .exclude(author=OuterRef("user"))
            .order_by()
            .values("room")
            .annotate(n=Count("pk"))
            .values("n")
        )
        rows = Membership.objects.filter(user__in=numbers(keys)).annotate(new=Coalesce(Subquery(new), 0))
        for user, room, count in rows.values_list("user_id", "room_id", "new"):
            if count:
                out[str(user)]["rooms"][str(room)] = count
                out[str(user)]["total"] += count
        return out

    def can_watch(self, user: Any, key: str) -> bool:
        return str(user.pk) == key


class OfRoom(Metered):
    """What only the members of a room may watch."""

    def can_watch_many(self, user: Any, keys: Sequence[str]) -> Iterable[int]:
        return Membership.objects.filter(room__in=numbers(keys), user_id=user.pk).values_list("room", flat=True)


@register
class RoomMessages(OfRoom):
    """The newest messages of a room."""

    name = "room"
    freshness = Freshness(seconds=1, objective=0.99)
    hidden = Hidden.DEFER
    coalesce = 0.1

    @on(Message)
    def messages(self, change: visibility.Change) -> Audience:
        return Audience([cast("Message", change.instance).room_id])

    @on(Room, actions=("saved", "deleted"))
    def rooms(self, change: visibility.Change) -> Audience:
        return Audience([change.instance.pk])

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {key: {"name": "", "messages": []} for key in keys}
        for pk, name in Room.objects.filter(pk__in=numbers(keys)).values_list("pk", "name"):
            newest = Message.objects.filter(room=pk).order_by("-id").values_list(*SAID)[:ROOM_LENGTH]
            out[str(pk)] = {"name": name, "messages": [said(row) for row in reversed(newest)]}
        return out


@register
class Typing(OfRoom):
    """Who is typing in a room: worth nothing a few seconds later, so nothing is kept while nobody looks."""

    name = "typing"
    freshness = Freshness(seconds=1, objective=0.9)
    hidden = Hidden.DROP
    must_deliver = False
    ttl, soft_ttl = 10, 1

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {key: {"people": []} for key in keys}
        found = soft.typing_in(numbers(keys))
        known = names({user for people in found.values() for user in people})
        for room, people in found.items():
            out[str(room)] = {
                "people": [
                    {"id": user, "name": known[user], "seconds": round(left, 1)} for user, left in people.items() if user in known
                ]
            }
        return out


@register
class Here(OfRoom):
    """Who has a room open now, read off its watchers' leases."""

    name = "here"
    freshness = Freshness(seconds=3, objective=0.9)
    hidden = Hidden.DROP
    must_deliver = False
    coalesce = 0.5
    ttl, soft_ttl = 30, 2

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {}
        for key in keys:
            watchers = visibility.watchers(f"room:{key}")
            known = names({int(user) for user in watchers.users if str(user).isdecimal()})
            people = [{"id": pk, "name": name} for pk, name in sorted(known.items(), key=lambda item: item[1])]
            out[key] = {"people": people, "sessions": watchers.count}
        return out


@register
class Dashboard(Metered):
    """A tile: a price, an order's status, a sensor. Its changes come from outside, through `visibility.emit`."""

    name = "tile"
    freshness = Freshness(seconds=1, objective=0.99)
    hidden = Hidden.DEFER

    def apply(self, key: str, version: int | None, payload: Any) -> None:
        from django.utils import timezone

        Tile.objects.filter(pk=key).update(
            value=str(payload["value"])[:40], version=version or F("version") + 1, updated_at=timezone.now()
        )

    @on(Tile)
    def edited(self, change: visibility.Change) -> Audience:
        return Audience([change.instance.pk])

    def build_all(self, keys: Sequence[str]) -> Mapping[str, Any]:
        out: dict[str, Any] = {key: {"value": None} for key in keys}
        for tile in Tile.objects.filter(pk__in=keys):
            out[tile.pk] = {
                "label": tile.label,
                "kind": tile.kind,
                "value": tile.value,
                "unit": tile.unit,
                "at": tile.updated_at.isoformat() if tile.updated_at else None,
            }
        return out

    def can_watch(self, user: Any, key: str) -> bool:
        return bool(user.is_authenticated)


@register
class Work(DataType):
    """The meter itself: resources built against resources that a fan-out to everybody would have built.

    It does not count itself. It has no `@on`: asking the gate on every change of anything would cost more than most changes do;
    `project.demo.meter` emits at most once a second instead.
    """

    name = "work"
    freshness = Freshness(seconds=3, objective=0.9)
    hidden = Hidden.DROP
    must_deliver = False
    lane = "cold"
    coalesce = 1.0
    ttl, soft_ttl = 10, 1

    def build(self, key: str) -> Any:
        found = soft.meter()
        done, everybody = found["done"], found["everybody"]
        shown = ("feed", "badge", "unread", "room", "tile")
        types = [{"type": name, "done": done.get(name, 0), "everybody": everybody.get(name, 0)} for name in shown]
        total, all_of_it = sum(done.get(name, 0) for name in shown), sum(everybody.get(name, 0) for name in shown)
        return {"done": total, "everybody": all_of_it, "saved": max(0, all_of_it - total), "types": types}

    def can_watch(self, user: Any, key: str) -> bool:
        return bool(user.is_authenticated) and key == "all"
