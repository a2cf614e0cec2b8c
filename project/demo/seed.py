"""The demo's people, rooms and first words. Running it again adds nothing."""

from __future__ import annotations

import datetime as dt
import random
import secrets
from pathlib import Path

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils import timezone

from project.demo.models import Follow, Membership, Message, Post, Room, Tile

GROUP = "Demo people"
NEWS = "evening"
PEOPLE = {
    "ada": "Ada Lind",
    "bo": "Bo Nakamura",
    "carmen": "Carmen Ortiz",
    "dele": "Dele Okafor",
    "elif": "Elif Demir",
    "finn": "Finn Larsen",
    "grace": "Grace Mwangi",
    "hana": "Hana Sato",
    "ivo": "Ivo Petrov",
    "juno": "Juno Park",
    "kofi": "Kofi Mensah",
    NEWS: "Evening Post",
}
ROOMS = {
    "Kitchen": ("ada", "bo", "carmen", "dele", "elif", "finn"),
    "Release": ("ada", "bo", "grace", "hana"),
    "Bicycles": ("carmen", "finn", "ivo", "juno", "ada"),
    "Book club": ("dele", "elif", "grace", "juno", "kofi"),
    "Ada and Bo": ("ada", "bo"),
}
TILES = (
    ("copper", "price", "Copper", "9214.50", "USD/t"),
    ("cocoa", "price", "Cocoa", "5832.00", "USD/t"),
    ("order-1048", "order", "Order 1048", "packed", ""),
    ("order-1049", "order", "Order 1049", "paid", ""),
    ("greenhouse", "sensor", "Greenhouse", "21.4", "°C"),
    ("cellar", "sensor", "Cellar", "61", "% humidity"),
)
ORDER = ("paid", "packed", "on its way", "delivered")
POSTS = (
    "The heron is back at the lock. Third morning in a row.",
    "Finally sharpened every knife in the house. Bread never stood a chance.",
    "If anyone finds a grey glove near the tram stop, its twin misses it.",
    "Rewrote the import job over lunch: from forty minutes to ninety seconds.",
    "The library has a seed exchange now. I left beans and took chard.",
    "First frost on the windowsill. Time to bring the lemon tree in.",
    "Small victory: the printer and I have reached an understanding.",
    "Cycled the long way round by the canal. Worth every minute of headwind.",
    "Tonight: soup, a blanket, and the second half of that novel.",
    "The bakery on the corner is trying rye and walnut. Go early.",
    "Learned today that otters hold hands so they do not drift apart.",
    "Swapped two meetings for one page of notes. Nobody missed them.",
)
WORDS = (
    "Has anybody seen the blue folder?",
    "I can take that one.",
    "Running five minutes late, start without me.",
    "Agreed. Let us try it on Monday.",
    "The kettle is on.",
    "That looks much better now.",
    "Could you send me the address again?",
    "Done, and it works on the old phones too.",
    "I have a spare ticket for Thursday.",
    "Let us keep it simple.",
    "Good catch, thank you.",
    "See you at six.",
)


@transaction.atomic
def load(crowd: int = 2_000) -> bool:
    """Make everything there is to see; `crowd` silent readers follow the Evening Post. False if it is there already."""
    group, fresh = Group.objects.get_or_create(name=GROUP)
    if not fresh:
        return False
    rng = random.Random(7)
    now = timezone.now()
    users: dict[str, User] = {}
    for username, name in PEOPLE.items():
        first, _, last = name.partition(" ")
        user = User(username=username, first_name=first, last_name=last)
        user.set_unusable_password()
        user.save()
        users[username] = user
    group.user_set.set(users.values())

    readers = User.objects.bulk_create(
        User(username=f"reader{n:05}", first_name="Reader", last_name=str(n), password="!") for n in range(1, crowd + 1)
    )
    follows = [Follow(follower=reader, author=users[NEWS]) for reader in readers]
    for name, user in users.items():
        others = [other for other in users if other not in (name, NEWS, "ada")]
        always = [NEWS] if name == "ada" else [NEWS, "ada"]
        chosen = [*always, *rng.sample(others, 5)] if name != NEWS else []
        follows += [Follow(follower=user, author=users[other]) for other in chosen]
    Follow.objects.bulk_create(follows, batch_size=1_000)

    authors = [name for name in PEOPLE if name != NEWS]
    Post.objects.bulk_create(
        Post(author=users[authors[n % len(authors)]], text=text, created_at=now - dt.timedelta(minutes=17 * (len(POSTS) - n) + 3))
        for n, text in enumerate(POSTS)
    )
    for place, (title, members) in enumerate(ROOMS.items()):
        room = Room.objects.create(name=title)
        lines = Message.objects.bulk_create(
            Message(
                room=room,
                author=users[members[n % len(members)]],
                text=WORDS[(n + 2 * place) % len(WORDS)],
                created_at=now - dt.timedelta(minutes=6 * (8 - n) + place),
            )
            for n in range(8)
        )
        Membership.objects.bulk_create(
            Membership(room=room, user=users[name], read_up_to=lines[rng.randrange(3, 8)].pk) for name in members
        )
    Tile.objects.bulk_create(
        Tile(key=key, kind=kind, label=label, value=value, unit=unit, updated_at=now) for key, kind, label, value, unit in TILES
    )
    return True


def superuser(kept: Path) -> tuple[str, str]:
    """The administrator's name and password; the password is made once and kept in a file that only its owner can read.

    The password is empty where somebody has changed it since.
    """
    if kept.is_file():
        password = kept.read_text().strip()
    else:
        password = secrets.token_urlsafe(9)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch(mode=0o600)
        kept.write_text(password)
    admin, created = User.objects.get_or_create(username="admin", defaults={"is_staff": True, "is_superuser": True})
    if created:
        admin.set_password(password)
        admin.save()
    return "admin", password if admin.check_password(password) else ""
