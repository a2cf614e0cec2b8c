"""What an attacker would try: every operation without the right, names that want to be something else, floods, secrets in logs.

What is tested elsewhere stands in docs/proof.md, in the table "Security".
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

import visibility
from tests.app.models import Counter, Follow, Notice, Post, Room
from tests.support import await_for
from tests.support.local import Sockets
from tests.support.processes import free_port
from visibility import dirty, testing
from visibility.sockets.hub import hub_here
from visibility.soft import client
from visibility.soft.leases import Watch, renew

pytestmark = [pytest.mark.django_db(transaction=True)]
ROOT = Path(__file__).resolve().parent.parent
# Each would be another key, another field, a pattern, a command, a format or a tag, if a name were ever more than a name.
NASTY = [
    "{vis:1}", "}:pending:hot", "*", "[a-z]", "../../etc/passwd", "a:b:c", "'", '"', "\\", "');DROP;--", "%s%n{0}", "$(id)",
    "<script>alert(1)</script>", "<img/src=x/onerror=alert(1)>", "return", "redis.call('FLUSHALL')", "a|b", "-1", "\u202e",
    "\N{CYRILLIC SMALL LETTER ZHE}", "\N{COLLISION SYMBOL}", "x" * 200,
]  # fmt: skip


def _private(user: User) -> list[str]:
    """Resources of every type that only this user may watch, with something in them."""
    room = Room.objects.create(name="private")
    room.members.add(user)
    room.messages.create(author=user, text="SECRET")
    Notice.objects.create(user=user, kind="SECRET")
    Follow.objects.create(follower=user, author=user)
    Post.objects.create(author=user, text="SECRET")
    return [f"room:{room.pk}", f"feed:{user.pk}", f"unread:{user.pk}", f"badge:{user.pk}"]


@pytest.mark.parametrize("who", ["anonymous", "stranger", "staff", "inactive", "revoked"])
async def test_no_operation_tells_anything_to_who_has_no_right(
    tabs: Sockets, builds: Mapping[str, int], make_user: Callable[..., User], who: str
) -> None:
    """The matrix: every operation of the protocol, for everybody who may not, on every type that belongs to somebody."""
    ann = await sync_to_async(make_user)("ann")
    names = await sync_to_async(_private)(ann)
    own = await tabs(ann)
    await own.watch(*names)
    for name in names:
        await own.data(name, lambda data: data is not None)
    if who == "revoked":
        tab = own
        await sync_to_async(Room.members.through.objects.all().delete)()
        names = names[:1]
        await visibility.arevoke(ann, names[0])
        await tab.expect("revoked")
    else:
        fields = {"staff": {"is_staff": True}, "inactive": {"is_active": False}}.get(who, {})
        tab = await tabs(None if who == "anonymous" else await sync_to_async(make_user)("bob", **fields))
    before = len(tab.frames)
    everything = dict.fromkeys(names, 0)
    await tab.send({"op": "watch", "id": 1, "resources": names, "since": everything})
    await tab.send({"op": "unwatch", "id": 2, "resources": names})
    await tab.send({"op": "state", "visible": False})
    await tab.send({"op": "state", "visible": True})
    for name in names:
        await tab.send({"op": "ack", "resource": name, "version": 1})
    await sync_to_async(Post.objects.create)(author=ann, text="SECRET 2")
    await sync_to_async(Notice.objects.create)(user=ann, kind="SECRET 2")
    await tab.send({"op": "ping", "have": everything})
    pong = await tab.expect("pong", 10)
    assert not set(pong["versions"]) & set(names)
    await await_for(lambda: sum(f["op"] == "error" for f in tab.frames[before:]) >= len(names), 10, "each is refused")
    # Who lost one right keeps the others.
    secret = "SECRET" if who != "revoked" else "private"
    later = [f for f in tab.frames[before:] if f.get("resource") in names or secret in json.dumps(f)]
    assert {f["op"] for f in later} <= {"error", "revoked"}
    assert {f["code"] for f in later if f["op"] == "error"} <= {"forbidden"}
    for name in names:
        found = await visibility.awatchers(name)
        assert found.users in ((), (str(ann.pk),)) if who != "revoked" else found.users == ()


@pytest.mark.parametrize("key", NASTY, ids=ascii)
def test_a_name_is_never_more_than_a_name(key: str, redis: redis_py.Redis, transactional_db: None) -> None:
    """Through a lease, a change, a claim, a build, a read, a mark and a scope: the key is found as it is, and nothing else is."""
    name = f"counter:{key}"
    renew([Watch(name, f"{key[:50]}/tab")])
    counter = Counter.objects.create(name=key[:190], value=1) if len(key) <= 190 else None
    visibility.emit("counter", keys=[key], id=key[:200], tenant=key[:100])
    assert testing.drain() >= 1
    assert visibility.read("counter", key).data == {"value": 1 if counter else None}
    dirty.mark("counter", {key: 1})
    dirty.mark_scopes("feed", {key: 1})
    assert visibility.visible("counter") in ([key], [key, key[:190]])
    assert visibility.watchers(name).count == 1
    role = re.compile(r"\{vis:0\}:[a-z-]+(:.*)?|rq:.*|asgi.*", re.DOTALL)
    made = [str(one) for one in redis.keys("*")]
    assert [one for one in made if not role.fullmatch(one)] == []
    named = {one for one in made if key in one and one.startswith("{vis:0}:")}
    assert {one.split(":", 2)[2].split(":", 1)[0] for one in named} <= {
        "watchers", "state", "snap", "fresh", "baton", "tenant", "bucket", "trail",
    }  # fmt: skip


@pytest.mark.parametrize("key", [k for k in NASTY if "<" in k or "'" in k or '"' in k], ids=ascii)
def test_a_name_is_text_on_every_admin_page(key: str, admin_client: Client) -> None:
    renew([Watch(f"counter:{key}", "1/tab")])
    visibility.emit("counter", keys=[key], id=key, tenant=key, payload={"note": key})
    dirty.mark("counter", {key: 1})
    dirty.mark_scopes("feed", {key: 1})
    dirty.quarantine("counter", key, 3, key)
    pages = ("overview/", "overview/resource/?name=counter:" + key, "dirtyflag/?state=quarantined", "scopemark/", "event/")
    for page in pages:
        path, _, query = page.partition("?")
        sent = dict([query.split("=", 1)]) if query else {}
        answer = admin_client.get(f"/admin/visibility/{path}", sent)
        assert answer.status_code == 200, page
        body = answer.content.decode()
        assert "<script>alert" not in body and "<img/src" not in body, page


def test_nothing_on_the_path_is_unpickled_or_evaluated() -> None:
    """No module of the package or of the demo knows how to; what the browser gets is set as text."""
    forbidden = {"pickle", "cPickle", "dill", "marshal", "shelve", "yaml"}
    for folder in ("visibility", "project"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not {name.partition(".")[0] for name in names} & forbidden, path
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in {"eval", "exec"}, f"{path}:{node.lineno}"
        for path in (ROOT / folder).rglob("*.js"):
            assert not re.search(
                r"(inner|outer)HTML\s*\+?=[^=]|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
            )


def test_what_stands_in_redis_is_no_pickle(settings: Any) -> None:
    """With queues as the demo has them: their jobs are JSON, too."""
    from project import settings as demo

    assert {queue.get("SERIALIZER") for queue in demo.RQ_QUEUES.values()} == {"rq.serializers.JSONSerializer"}
    settings.RQ_QUEUES = {n: {**q, "SERIALIZER": "rq.serializers.JSONSerializer"} for n, q in settings.RQ_QUEUES.items()}
    with testing.Tab(7, "counter:a"):
        Counter.objects.create(name="a", value=1)
        visibility.read("counter", "a")
        with redis_py.Redis.from_url(settings.REDIS_URL) as raw:
            values = [value for name in raw.keys("*") for value in _values(raw, name)]
    assert values
    assert not [value for value in values if value[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")]


def _values(raw: Any, name: bytes) -> list[bytes]:
    kind = raw.type(name)
    if kind == b"string":
        return [raw.get(name)]
    if kind == b"hash":
        return list(raw.hgetall(name).values())
    if kind == b"list":
        return list(raw.lrange(name, 0, -1))
    return list(raw.zrange(name, 0, -1)) if kind == b"zset" else list(raw.smembers(name))


def test_the_password_of_redis_is_told_to_nobody(settings: Any, caplog: pytest.LogCaptureFixture, admin_client: Client) -> None:
    """Not in logs, not by the doctor, not in errors, not in the admin, while that Redis is away."""
    secret = "Pa55-of-redis"
    caplog.set_level(logging.DEBUG)
    told = StringIO()
    settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": f"redis://ann:{secret}@127.0.0.1:{free_port()}/0"}
    client.close()
    Counter.objects.create(name="a", value=1)
    assert visibility.read("counter", "a").data == {"value": 1}
    with pytest.raises(visibility.RedisAway) as raised:
        visibility.watchers("counter:a")
    with pytest.raises(SystemExit):
        call_command("visibility_doctor", stdout=told, stderr=told)
    for page in ("overview/", "overview/diagnosis/"):
        answer = admin_client.get(f"/admin/visibility/{page}")
        assert answer.status_code == 200
        assert secret not in answer.content.decode()
    client.close()
    assert told.getvalue()
    assert secret not in told.getvalue() + str(raised.value) + repr(raised.value.__cause__) + caplog.text


async def test_a_flood_costs_a_bounded_amount(
    tabs: Sockets, builds: Mapping[str, int], make_user: Callable[..., User], settings: Any
) -> None:
    """Of connects, of watches and of frames: what the hub keeps is what the limits say, and nothing when they are gone."""
    limits = {"sockets_per_user": 5, "watches_per_socket": 20, "frames_per_second": 10**6, "frames_burst": 10**6}
    settings.VISIBILITY = {**settings.VISIBILITY, "LIMITS": limits}
    ann = await sync_to_async(make_user)("ann")
    hub = hub_here()
    opened = [await tabs(ann, hello=False) for _ in range(30)]
    await await_for(lambda: sum(tab.close_code is not None for tab in opened) == 25, 20, "the rest is sent away")
    assert len(hub.sessions) == 5
    tab = next(tab for tab in opened if tab.close_code is None)
    for n in range(60):
        await tab.send({"op": "watch", "id": n, "resources": [f"counter:{n}-{m}" for m in range(20)]})
    for _ in range(300):
        await tab.send("nonsense")
    await tab.send({"op": "ping"})
    most = 0

    def over() -> bool:
        """It was answered to the end, or sent away."""
        nonlocal most
        session = hub.sessions.get(tab.session)
        if session is not None:
            most = max(most, len(session.watches), len(hub.topics), len(session.outbox or {}) - hub.limits["queue"])
        return tab.close_code is not None or (session is not None and session.worker is None and tab.frames[-1]["op"] == "pong")

    await await_for(over, 60)
    assert 0 < most <= 20
    await asyncio.gather(*(one.close() for one in opened))
    await await_for(lambda: not hub.sessions and not hub.topics, 10, "nothing is kept")
