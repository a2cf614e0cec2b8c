"""The replay itself: one thread writes what the trace says and reads samples, sockets watch, and the meter counts."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import django_rq
from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_save
from rq import Worker

import visibility
from project.demo import receivers, services, soft
from project.demo.models import Membership, Notification
from project.replay.report import Outcome
from project.replay.trace import Step, pair
from project.replay.watching import Watchers
from project.replay.world import OWN, World, truth

SAMPLE_EVERY = 10
SETTLE = 45.0


class Driver:
    """Runs a plan. Everything that writes, and the reads that are compared with the source, happen in the calling thread."""

    def __init__(self, world: World, watchers: Watchers, tick: Callable[[int, str], None], kill: bool = False) -> None:
        self.world, self.watchers, self.tick, self.to_kill = world, watchers, tick, kill
        self.outcome = Outcome()
        self.random = random.Random(11)
        # What this process would tell the meter, one Redis call a change, it keeps until the end.
        self.told: Counter[str] = Counter()
        receivers.tell = self.told.update
        self.saved: list[str] = []
        for model in (Notification, Membership):
            post_save.connect(self.row_saved, sender=model)

    def run(self, steps: Sequence[Step], messages: int) -> Outcome:
        """Carry out every step at its time (later, if the machine cannot keep up; then everything after it is later too)."""
        begun = time.monotonic() - (steps[0].at if steps else 0.0)
        for step in steps:
            wait = begun + step.at - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            elif wait < -0.1:
                begun -= wait
                self.outcome.late -= wait
            self.take(step)
            if self.to_kill and self.outcome.messages >= messages // 2:
                self.kill()
        self.settle()
        found = soft.meter()
        for field_, n in self.told.items():
            side, _, data_type = field_.partition("|")
            found[side][data_type] = found[side].get(data_type, 0) + n
        self.outcome.work = found
        return self.outcome

    def take(self, step: Step) -> None:
        if step.what == "goes":
            self.watchers.go(step.person)
        elif step.what == "comes":
            self.watchers.come(step.person, self.world.cookies[step.person], self.world.watches(step.person, step.rooms))
            for room in step.rooms:
                self.open(step.person, room)
        else:
            self.message(step.person, step.other)
            self.outcome.messages += 1
            if self.outcome.messages % SAMPLE_EVERY == 0:
                self.sample()
            self.tick(self.outcome.messages, f"{len(self.watchers.online)} watching")

    def changing(self, resources: list[str]) -> None:
        """At the begin of a transaction: note the moment of its commit, before the gate sees it, for these resources and for
        those of the rows that are saved until then."""
        self.saved = resources
        transaction.on_commit(lambda: self.watchers.changed(resources, time.time()))

    def row_saved(self, instance: Notification | Membership, **_kwargs: Any) -> None:
        if isinstance(instance, Notification):
            self.saved.append(f"badge:{instance.recipient_id}")
        else:
            self.saved.append(f"unread:{instance.user_id}")

    def message(self, source: str, target: str) -> None:
        """One line of the trace: a message in the room of the two, and a post to the followers of its author."""
        users, room = self.world.users, self.world.rooms[pair(source, target)]
        members = {source, target}
        with transaction.atomic():
            self.changing([f"room:{room.pk}", *(f"unread:{users[name].pk}" for name in members)])
            services.say(users[source], room, f"to {target}, message {self.outcome.messages}")
        with transaction.atomic():
            self.changing(self.world.readers(source))
            services.post(users[source], f"post {self.outcome.messages} by {source}")

    def open(self, person: str, room: tuple[str, str]) -> None:
        """Somebody opens a room: what is in it is read."""
        user = self.world.users[person]
        with transaction.atomic():
            self.changing([])
            if services.open_room(user, self.world.rooms[room]):
                self.saved.append(f"badge:{user.pk}")

    def sample(self) -> None:
        """Read resources that are watched and that are not. Nothing is being written meanwhile: what calls itself fresh must
        equal the source."""
        names = list(self.world.cookies)
        chosen = [(self.random.choice(OWN), self.random.choice(names))]
        if self.watchers.online:
            chosen.append((self.random.choice(OWN), self.random.choice(list(self.watchers.online))))
        if self.random.random() < 0.25:
            room = self.random.choice(list(self.world.rooms.values()))
            self.compare("room", room.pk)
        for data_type, person in chosen:
            self.compare(data_type, self.world.users[person].pk)

    def compare(self, data_type: str, key: Any) -> None:
        found = visibility.read(data_type, key)
        self.outcome.reads += 1
        if found.state not in ("fresh", "rebuilt"):
            return
        resource = f"{data_type}:{key}"
        if found.data != truth([resource])[resource]:
            self.outcome.stale_reads += 1
            self.outcome.stale.append(f"{resource} {found.state} version {found.version} after message {self.outcome.messages}")

    def kill(self) -> None:
        """SIGKILL to a worker of the first lane; whoever started it starts another."""
        self.to_kill = False
        lane = next(iter(settings.VISIBILITY["LANES"].values()))
        for worker in Worker.all(queue=django_rq.get_queue(lane["queue"])):
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)
                self.outcome.killed = worker.pid
                sys.stderr.write(f"\nkilled worker process {worker.pid}\n")
                return

    def settle(self) -> None:
        """Wait until every tab shows the source, or the longest promise and then some is over."""
        begun = time.monotonic()
        wanted = {resource for _person, resource in self.watchers.shown()}
        right = truth(wanted)
        while True:
            shown = self.watchers.shown()
            wrong = [f"{resource} at {person}" for (person, resource), data in shown.items() if data != right[resource]]
            if not wrong or time.monotonic() - begun > SETTLE:
                break
            time.sleep(0.1)
        self.outcome.settled = time.monotonic() - begun
        self.outcome.unequal, self.outcome.compared = wrong, len(shown)


class Progress:
    """A bar on standard error; where that is no terminal, a line at each tenth."""

    WIDTH = 28

    def __init__(self, total: int, quiet: bool = False) -> None:
        self.total, self.quiet = total, quiet
        self.begun = self.drawn = time.monotonic()
        self.tenth = 0
        self.live = sys.stderr.isatty()

    def __call__(self, done: int, more: str = "") -> None:
        now = time.monotonic()
        tenth = 10 * done // self.total
        if self.quiet or (self.live and now - self.drawn < 0.1 and done < self.total) or (not self.live and tenth == self.tenth):
            return
        self.drawn, self.tenth = now, tenth
        full = self.WIDTH * done // self.total
        bar = "█" * full + "░" * (self.WIDTH - full)
        line = f"{bar} {done:,}/{self.total:,}  {done / max(0.001, now - self.begun):.0f}/s  {more}"
        sys.stderr.write(f"\r\x1b[K{line}" if self.live else f"{line}\n")
        if self.live and done == self.total:
            sys.stderr.write("\n")
        sys.stderr.flush()
