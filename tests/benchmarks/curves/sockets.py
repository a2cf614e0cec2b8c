"""Sockets in one ASGI process, 100 to 10k: memory, the processor time of heartbeats, and one update to all of them.

Each socket is logged in and watches two resources: one of its own (as a badge is) and one that all share (as a room is).
HEARTBEAT is 10 s here instead of 20; what is told is per heartbeat of a socket, ticks of the hub included, so it carries over.
The clients live in this process and cost the server nothing; Redis and the database are on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from statistics import median
from unittest.mock import patch

from django.conf import settings as django_settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils import timezone

from tests.app.models import Counter
from tests.benchmarks import live
from tests.benchmarks.crowd import Crowd, Member
from tests.benchmarks.curves.core import Curve, Point, Series, rise
from tests.benchmarks.curves.memory import private
from tests.benchmarks.harness import say
from tests.benchmarks.stage import Stage, cpu_of
from tests.support.servers import Site
from visibility import push, recompute
from visibility.conf import settings
from visibility.soft import pending
from visibility.soft.pending import Item

POPULATIONS = [100, 300, 1_000, 3_000, 10_000]
SHARED = "counter:shared"
STEP = 200


def population(stage: Stage) -> Iterator[Curve]:
    """Both servers, one after the other."""
    sizes = sorted({stage.size.n(size, 10) for size in POPULATIONS})
    cookies = _logins(sizes[-1])
    Counter.objects.bulk_create([Counter(name=f"own{n}") for n in range(sizes[-1])] + [Counter(name="shared")])
    found: dict[str, dict[str, list[Point]]] = {}
    for kind in live.KINDS:
        with live.asgi(kind) as site, Crowd(site.port, "/ws/visibility/") as crowd:
            found[kind] = _grow(stage, site, crowd, sizes, cookies, kind)
    each = ", ".join(f"{rise(found[kind]['memory']) / 1024:.1f} KiB ({kind})" for kind in found)
    yield Curve(
        name="sockets-memory", title=f"Memory of an ASGI process: {each} a socket with two watches",
        x="sockets in one process", y="private memory, MiB", how="private pages of the server process",
        series=[Series(name=kind, points=[(n, y / 2**20) for n, y in rows["memory"]]) for kind, rows in found.items()],
    )  # fmt: skip
    yield Curve(
        name="sockets-heartbeat", title="A heartbeat of one socket with two watches, over the sockets of the process",
        x="sockets in one process", y="per heartbeat, µs of processor time",
        how="processor time over one HEARTBEAT in which each socket pings once, divided by the sockets",
        series=[
            Series(name=f"{kind}, {who}", points=rows[who]) for kind, rows in found.items() for who in ("the process", "Redis")
        ],
    )  # fmt: skip
    yield Curve(
        name="sockets-fanout", title="One update of a resource that all sockets of a process watch",
        x="sockets in one process", y="ms from the push to the last client",
        how="median of five updates: from when a worker pushes the hint until the last client has its frame",
        series=[Series(name=kind, points=rows["fanout"]) for kind, rows in found.items()],
    )  # fmt: skip
    yield Curve(
        name="sockets-fanout-cpu", title="The same update: processor time of the server for one of the sockets",
        x="sockets in one process", y="per socket, µs of processor time", how="processor time of the server, by the sockets",
        series=[Series(name=kind, points=rows["fanout cpu"]) for kind, rows in found.items()],
    )  # fmt: skip


def _logins(number: int) -> list[str]:
    """Cookies of so many new users, each with a session."""
    users = User.objects.bulk_create([User(username=f"reader{n}", password="x") for n in range(number)])
    store, ends = SessionStore(), timezone.now() + timedelta(days=1)
    rows = []
    for n, user in enumerate(users):
        data = {
            SESSION_KEY: str(user.pk), BACKEND_SESSION_KEY: django_settings.AUTHENTICATION_BACKENDS[0],
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }  # fmt: skip
        rows.append(Session(session_key=f"reader{n:026d}", session_data=store.encode(data), expire_date=ends))
    Session.objects.bulk_create(rows, batch_size=500)
    return [f"{django_settings.SESSION_COOKIE_NAME}={row.session_key}" for row in rows]


def _grow(stage: Stage, site: Site, crowd: Crowd, sizes: list[int], cookies: list[str], kind: str) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {name: [] for name in ("memory", "the process", "Redis", "fanout", "fanout cpu")}
    everybody: list[Member] = []
    heard = time.monotonic()
    for size in sizes:
        while len(everybody) < size:
            start = len(everybody)
            new = crowd.open(min(STEP, size - start), cookies[start:size])
            for n, member in enumerate(new, start):
                crowd.say({"op": "watch", "id": 1, "resources": [SHARED, f"counter:own{n}"]}, [member])
            crowd.expect(b'"watched"', 60, new)
            everybody += new
            # Nobody falls silent for TTL while the others come.
            if time.monotonic() > heard + settings.HEARTBEAT:
                crowd.say({"op": "ping", "have": {}}, everybody)
                heard = time.monotonic()
        _beat(crowd, everybody, 2.0)
        found["memory"].append((float(size), float(private(site.process.pid))))
        before = cpu_of(site.process.pid), cpu_of(stage.pids[0])
        _beat(crowd, everybody, settings.HEARTBEAT)
        after = cpu_of(site.process.pid), cpu_of(stage.pids[0])
        found["the process"].append((float(size), (after[0] - before[0]) * 1e6 / size))
        found["Redis"].append((float(size), (after[1] - before[1]) * 1e6 / size))
        rows = [_update(crowd, site) for _ in range(stage.size.times(5))]
        found["fanout"].append((float(size), median(took for took, _ in rows) * 1000))
        found["fanout cpu"].append((float(size), median(used for _, used in rows) * 1e6 / size))
        say(f"  {kind}, {size} sockets: " + ", ".join(f"{name} {points[-1][1]:.4g}" for name, points in found.items()))
    return found


def _beat(crowd: Crowd, everybody: list[Member], seconds: float) -> None:
    """Each pings once, spread over this time."""
    begun, parts = time.monotonic(), 50
    for n in range(parts):
        crowd.say({"op": "ping", "have": {}}, everybody[n::parts])
        crowd.idle(max(0.001, begun + seconds * (n + 1) / parts - time.monotonic()))


def _update(crowd: Crowd, site: Site) -> tuple[float, float]:
    """Seconds until all have a new value, and processor seconds of the server for it."""
    value = int(time.time() * 1000) % 1_000_000_000
    Counter.objects.filter(name="shared").update(value=value)
    crowd.say({"op": "ping", "have": {}})
    crowd.expect(b'"pong"', 60)
    crowd.idle(0.3)
    told: list[tuple[str, int]] = []
    with patch.object(push, "publish", told.extend):
        pending.pend(settings.lane("hot"), [Item(SHARED, int(time.time() * 1000), window=0.0)])
        recompute.drain("hot")
    used, begun = cpu_of(site.process.pid), time.perf_counter()
    push.publish(told)
    last = crowd.expect(f'"value":{value}'.encode(), 60)
    return last - begun, cpu_of(site.process.pid) - used
