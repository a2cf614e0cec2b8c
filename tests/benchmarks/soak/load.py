"""The load, a process a kind: `python -m tests.benchmarks.soak.load write|read|sockets …`. Ends at SIGTERM with a line of counts.

Sources are a fixed set of rows that change, so that what grows is not the load's: posts and notices are deleted as new ones come.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.crowd import Crowd, Member

KEYS, PEOPLE, SYMBOLS = 400, 100, 50
stop = threading.Event()


def paced(rate: float, work: Callable[[], object]) -> dict[str, int]:
    """Do this so many times a second until told to stop; what is late is not caught up with. Counts, and errors by name."""
    counts: dict[str, int] = {"done": 0}
    due = time.monotonic()
    while not stop.is_set():
        try:
            work()
            counts["done"] += 1
        except Exception as error:
            counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
        due = max(due + 1 / rate, time.monotonic() - 1)
        stop.wait(max(0.0, due - time.monotonic()))
    return counts


def write(rate: float) -> dict[str, int]:
    """Changes of every kind: watched and hidden counters, posts with scopes, notices that add up, prices from outside."""
    from django.contrib.auth.models import User
    from django.db import transaction

    from tests.app.models import Counter, Notice, Post
    from visibility import emit

    people = list(User.objects.order_by("pk")[:PEOPLE])
    versions = iter(range(1, 1 << 62))

    def count() -> None:
        one = Counter.objects.get(name=f"c{random.randrange(KEYS)}")
        one.value += 1
        one.save()

    def post() -> None:
        author = random.choice(people)
        with transaction.atomic():
            Post.objects.create(author=author, text="x" * 80)
            old = Post.objects.filter(author=author).order_by("-pk").values_list("pk", flat=True)[5:]
            Post.objects.filter(pk__in=list(old)).delete()

    def notice() -> None:
        user = random.choice(people)
        with transaction.atomic():
            Notice.objects.create(user=user)
            old = Notice.objects.filter(user=user).order_by("-pk").values_list("pk", flat=True)[5:]
            Notice.objects.filter(pk__in=list(old)).delete()

    def price() -> None:
        n = next(versions)
        emit("price", [f"s{n % SYMBOLS}"], id=f"soak-{n}", version=n, payload={"cents": n % 10_000})

    kinds = [count, count, count, post, notice, price]
    return paced(rate, lambda: random.choice(kinds)())


def read(rate: float) -> dict[str, int]:
    """Reads of watched and of hidden resources."""
    from visibility import read as read_one, read_many

    def some() -> None:
        read_one("counter", f"c{random.randrange(KEYS)}")
        read_many("counter", [f"c{random.randrange(KEYS)}" for _ in range(5)])

    return paced(rate, some)


class Coming(Crowd):
    """Clients that leave, and of whom one that the server closes is counted and left out."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(port, path)
        self.lost = 0

    def leave(self, member: Member, *, politely: bool) -> None:
        """With a close frame, or without a word as a tab does whose network is gone."""
        number = member.sock.fileno()
        if self.members.pop(number, None) is None:
            return
        with contextlib.suppress(OSError):
            self._epoll.unregister(number)
            if politely:
                member.sock.sendall(bytes([0x88, 0x82]) + bytes(4) + (1000).to_bytes(2, "big"))
        member.sock.close()

    def _read(self, number: int) -> list[bytes]:
        try:
            return super()._read(number)
        except (AssertionError, OSError):
            self.lost += 1
            self.leave(self.members[number], politely=False)
            return []


def sockets(file: str, rate: float) -> dict[str, int]:
    """Sockets that watch three resources each, ping, and of which some leave and come back all the time, half without a word."""
    told: dict[str, Any] = json.loads(Path(file).read_text())
    chance, counts = random.Random(5), {"opened": 0, "left": 0, "pinged": 0, "refused": 0}
    crowds = [Coming(port, "/ws/visibility/") for port in told["ports"]]
    everybody: list[tuple[Coming, Member]] = []

    def come(number: int) -> None:
        for _ in range(number):
            crowd = chance.choice(crowds)
            try:
                (member,) = crowd.open(1, [chance.choice(told["cookies"])])
            except (AssertionError, OSError):
                counts["refused"] += 1
                return
            names = [f"counter:c{chance.randrange(KEYS // 2)}" for _ in range(2)] + [f"price:s{chance.randrange(SYMBOLS)}"]
            crowd.say({"op": "watch", "id": 1, "resources": sorted(set(names))}, [member])
            everybody.append((crowd, member))
            counts["opened"] += 1

    def ping(part: list[tuple[Coming, Member]]) -> None:
        for crowd, member in part:
            try:
                crowd.say({"op": "ping", "have": {}}, [member])
                counts["pinged"] += 1
            except OSError:
                crowd.leave(member, politely=False)

    # A part of all pings each quarter of a second, so that each does once a heartbeat.
    parts = max(1, int(told["heartbeat"] * 4))
    turn, owed, due = 0, 0.0, time.monotonic()
    while not stop.is_set():
        everybody = [(crowd, member) for crowd, member in everybody if member.sock.fileno() >= 0]
        come(min(10, int(told["sockets"]) - len(everybody)))
        if time.monotonic() >= due:
            ping(everybody[turn % parts :: parts])
            turn, due, owed = turn + 1, max(due + 0.25, time.monotonic() - 1), owed + rate / 4
            while owed >= 1 and everybody:
                crowd, member = everybody.pop(chance.randrange(len(everybody)))
                crowd.leave(member, politely=chance.random() < 0.5)
                counts["left"], owed = counts["left"] + 1, owed - 1
        for crowd in crowds:
            crowd.idle(0.02)
    counts["closed by the server"] = sum(crowd.lost for crowd in crowds)
    for crowd in crowds:
        crowd.__exit__()
    return counts


def main(kind: str, *args: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    import django

    django.setup()
    does: dict[str, Callable[..., dict[str, int]]] = {"write": write, "read": read, "sockets": sockets}
    numbers = [float(arg) if arg.replace(".", "", 1).isdecimal() else arg for arg in args]
    counts = does[kind](*numbers)
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
