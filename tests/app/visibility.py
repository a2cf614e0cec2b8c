"""The data types of the test project; between them they use every way to be hidden and every kind of audience."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib.auth.models import User

from tests.app.models import Counter, Follow, Message, Notice, Post, Price, Read, Room
from visibility.datatypes import Audience, Change, DataType, Freshness, Hidden, ScopesFrom, on, register


@register
class Feed(DataType):
    """The last posts of everybody that user KEY follows. Hidden feeds cost one scope mark per post."""

    name = "feed"
    freshness = Freshness(seconds=3)
    hidden = Hidden.DEFER

    @on(Post)
    def posts(self, change: Change) -> Audience:
        author = change.instance.author_id  # type: ignore[attr-defined]
        return Audience(Follow.objects.filter(author=author).values_list("follower"), scope=f"author:{author}")

    @on(Follow)
    def follows(self, change: Change) -> list[int]:
        return [change.instance.follower_id]  # type: ignore[attr-defined]

    def scopes(self, key: str) -> ScopesFrom:
        return ScopesFrom("author:", Follow.objects.filter(follower=key).values_list("author"))

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        authors: dict[str, set[int]] = {key: set() for key in keys}
        for follower, author in Follow.objects.filter(follower__in=keys).values_list("follower", "author"):
            authors[str(follower)].add(author)
        posts: dict[int, list[tuple[int, str]]] = defaultdict(list)
        wanted = set().union(*authors.values())
        for pk, author, text in Post.objects.filter(author__in=wanted).order_by("-pk").values_list("pk", "author", "text"):
            if len(posts[author]) < 20:
                posts[author].append((pk, text))
        return {
            key: {"posts": [text for _pk, text in sorted((p for a in own for p in posts[a]), reverse=True)[:20]]}
            for key, own in authors.items()
        }

    def can_watch(self, user: Any, key: str) -> bool:
        return str(user.pk) == key


@register
class RoomMessages(DataType):
    """The last messages of room KEY, for its members."""

    name = "room"
    freshness = Freshness(seconds=1)

    @on(Message)
    def messages(self, change: Change) -> list[int]:
        return [change.instance.room_id]  # type: ignore[attr-defined]

    def build(self, key: str) -> Any:
        texts = Message.objects.filter(room=key).order_by("-pk").values_list("text", flat=True)[:20]
        return {"messages": list(texts)[::-1]}

    def can_watch(self, user: Any, key: str) -> bool:
        return key.isdecimal() and Room.objects.filter(pk=key, members=user.pk).exists()


@register
class Unread(DataType):
    """Unread messages by room of user KEY; recomputed at most every 5 s while the tab is hidden."""

    name = "unread"
    freshness = Freshness(seconds=5)
    background = 5
    lane = "cold"

    @on(Message, actions=["created", "deleted"])
    def messages(self, change: Change) -> Audience:
        return Audience(Room.members.through.objects.filter(room=change.instance.room_id).values_list("user"))  # type: ignore[attr-defined]

    @on(Read)
    def reads(self, change: Change) -> list[int]:
        return [change.instance.user_id]  # type: ignore[attr-defined]

    def build(self, key: str) -> Any:
        last = dict(Read.objects.filter(user=key).values_list("room", "last"))
        counts: dict[str, int] = {}
        for room in Room.objects.filter(members=key):
            new = Message.objects.filter(room=room, pk__gt=last.get(room.pk, 0)).exclude(author=key).count()
            if new:
                counts[str(room.pk)] = new
        return counts

    def can_watch(self, user: Any, key: str) -> bool:
        return str(user.pk) == key


@register
class Badge(DataType):
    """How many notices user KEY has. Hidden changes are counted by kind: "15 comments"."""

    name = "badge"
    freshness = Freshness(seconds=3, objective=0.999)
    hidden = Hidden.SUMMARISE
    active_window = 300

    @on(Notice)
    def notices(self, change: Change) -> Audience:
        notice = change.instance
        return Audience([notice.user_id], kind=notice.kind)  # type: ignore[attr-defined]

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        counts: dict[str, int] = dict.fromkeys(keys, 0)
        for user in Notice.objects.filter(user__in=keys).values_list("user", flat=True):
            counts[str(user)] += 1
        return counts

    def can_watch(self, user: Any, key: str) -> bool:
        return str(user.pk) == key


@register
class Ticker(DataType):
    """A price, known by external events only; nobody minds when a change that nobody sees is forgotten."""

    name = "price"
    freshness = Freshness(seconds=1, objective=0.9)
    hidden = Hidden.DROP
    must_deliver = False
    anonymous = True
    coalesce = 0.05

    def apply(self, key: str, version: int | None, payload: Any) -> None:
        Price.objects.update_or_create(symbol=key, defaults={"cents": payload["cents"]})

    def build(self, key: str) -> Any:
        return {"cents": Price.objects.filter(symbol=key).values_list("cents", flat=True).first()}

    def can_watch(self, user: Any, key: str) -> bool:
        return True


@register
class CounterValue(DataType):
    """The value of a counter: the type that chaos and race tests use. Anybody who is logged in may watch."""

    name = "counter"
    freshness = Freshness(seconds=2)
    coalesce = 0.05

    @on(Counter)
    def counters(self, change: Change) -> Iterable[str]:
        return [change.instance.name]  # type: ignore[attr-defined]

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        values = dict(Counter.objects.filter(name__in=keys).values_list("name", "value"))
        return {key: {"value": values.get(key)} for key in keys}

    def can_watch(self, user: Any, key: str) -> bool:
        return isinstance(user, User) and user.is_active


if "PROBE_DIR" in os.environ:
    # A worker or server that a test with the fixture `probes` started.
    from tests.support import probe

    for _probe in probe.TYPES:
        register(_probe)
