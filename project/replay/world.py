"""The people, rooms and follows of a trace in the database, and what each of them would have to see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from project.demo.models import Follow, Membership, Room
from project.demo.visibility import Metered
from project.replay.trace import Line, pair
from visibility.datatypes import registry

BATCH = 500
OWN = ("feed", "badge", "unread")


class World:
    """Made once, in bulk; the names of the trace are its keys."""

    def __init__(self, lines: Sequence[Line], followers: Mapping[str, set[str]]) -> None:
        self.followers = followers
        active = list(dict.fromkeys(name for line in lines for name in line[:2]))
        silent = sorted(set(followers) - set(active))
        self.users: dict[str, User] = {}
        self.rooms: dict[tuple[str, str], Room] = {}
        self.cookies: dict[str, str] = {}
        with transaction.atomic():
            self._people(active + silent)
            self._rooms(dict.fromkeys(pair(line.source, line.target) for line in lines))
            self._sessions(dict.fromkeys(line.source for line in lines))
        self.names = {user.pk: name for name, user in self.users.items()}

    def _people(self, names: Sequence[str]) -> None:
        run = get_random_string(6)
        made = [User(username=f"replay-{run}-{name}", first_name=name, password="!") for name in names]
        self.users = dict(zip(names, User.objects.bulk_create(made, batch_size=BATCH), strict=True))
        rows = [Follow(follower=user, author=user) for user in self.users.values()]
        for author, readers in self.followers.items():
            rows += [Follow(follower=self.users[reader], author=self.users[author]) for reader in readers if reader != author]
        Follow.objects.bulk_create(rows, batch_size=BATCH)

    def _rooms(self, pairs: Iterable[tuple[str, str]]) -> None:
        pairs = list(pairs)
        made = Room.objects.bulk_create((Room(name=f"{a} and {b}"[:80]) for a, b in pairs), batch_size=BATCH)
        self.rooms = dict(zip(pairs, made, strict=True))
        Membership.objects.bulk_create(
            (Membership(room=room, user=self.users[name]) for names, room in self.rooms.items() for name in set(names)),
            batch_size=BATCH,
        )

    def _sessions(self, names: Iterable[str]) -> None:
        """Logged-in sessions, one each, as the login view would make them."""
        store, until = SessionStore(), timezone.now() + timedelta(days=1)
        rows = []
        for name in names:
            user, key = self.users[name], get_random_string(32, "abcdefghijklmnopqrstuvwxyz0123456789")
            data = {
                SESSION_KEY: str(user.pk),
                BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
                HASH_SESSION_KEY: user.get_session_auth_hash(),
            }
            rows.append(Session(session_key=key, session_data=store.encode(data), expire_date=until))
            self.cookies[name] = f"{settings.SESSION_COOKIE_NAME}={key}"
        Session.objects.bulk_create(rows, batch_size=BATCH)

    def watches(self, person: str, rooms: Iterable[tuple[str, str]]) -> list[str]:
        """What a person has on the screen: feed, badge, unread counts, and the rooms they have open."""
        pk = self.users[person].pk
        return [f"{data_type}:{pk}" for data_type in OWN] + [f"room:{self.rooms[room].pk}" for room in rooms]

    def readers(self, author: str) -> list[str]:
        """The feeds that a post of this author belongs into."""
        return [f"feed:{self.users[name].pk}" for name in {author, *self.followers.get(author, ())}]


def truth(resources: Iterable[str]) -> dict[str, Any]:
    """What the source says of these resources now, as JSON reads it; built past every cache and not counted as work."""
    by_type: dict[str, list[str]] = {}
    for resource in resources:
        data_type, _, key = resource.partition(":")
        by_type.setdefault(data_type, []).append(key)
    out: dict[str, Any] = {}
    for name, keys in by_type.items():
        found = registry.get(name)
        if not isinstance(found, Metered):
            raise TypeError(f"{name} is not a data type of the demo")
        for start in range(0, len(keys), BATCH):
            built = found.build_all(keys[start : start + BATCH])
            out |= {f"{name}:{key}": json.loads(json.dumps(data)) for key, data in built.items()}
    return out
