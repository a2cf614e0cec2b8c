"""`manage.py life`: the demo's people post, write and chat, and prices move, so that there is something to see."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from django.db import close_old_connections

import visibility
from project.demo import seed, services, soft
from project.demo.models import Room, Tile
from project.demo.views import next_value


class Command(BaseCommand):
    help = "Let the demo's people live: posts, messages, typing, and tiles that change. Ends with SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pace", type=float, default=1.0, help="how fast: 2 is twice as busy (default: 1)")

    def handle(self, *args: Any, **options: Any) -> None:
        # Everybody but the first two, who are left for whoever tries the demo.
        people = list(User.objects.filter(groups__name=seed.GROUP).exclude(username__in=("ada", "bo")).order_by("id"))
        acts = (self.tile, self.tile, self.tile, self.message, self.post)
        while people:
            try:
                random.choice(acts)(random.choice(people))
            except Exception as error:  # decoration must not end the demo: whatever it was, the next act may work
                self.stderr.write(f"{type(error).__name__}: {error}")
                close_old_connections()
            time.sleep(random.uniform(0.6, 2.0) / max(0.05, options["pace"]))

    def tile(self, _user: User) -> None:
        tile = random.choice(Tile.objects.exclude(kind=Tile.Kind.ORDER, value="delivered") or Tile.objects.all())
        services.set_tile(tile, next_value(tile))

    def message(self, user: User) -> None:
        room = Room.objects.filter(members=user).order_by("?").first()
        if room is None:
            return
        if visibility.is_visible(f"typing:{room.pk}"):
            soft.type_in(room.pk, user.pk)
            visibility.emit("typing", keys=[room.pk])
            time.sleep(random.uniform(1.0, 2.5))
        services.say(user, room, random.choice(seed.WORDS))
        soft.type_in(room.pk, user.pk, still=False)
        visibility.emit("typing", keys=[room.pk])

    def post(self, user: User) -> None:
        services.post(user, random.choice(seed.POSTS))
