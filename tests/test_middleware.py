"""What stands before the socket: origins and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import OperationalError

from tests.support.local import LocalSocket, Sockets
from tests.support.sockets import session_for
from visibility.middleware import own_origin
from visibility.sockets import frames
from visibility.users import users_of

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://example.com", "example.com", True),
        ("https://example.com", "example.com", True),
        ("https://EXAMPLE.com", "Example.com", True),
        ("https://example.com:443", "example.com", True),
        ("http://example.com:8000", "example.com:8000", True),
        ("https://www.example.com", "www.example.com", True),
        ("https://app.example.com", "socket.example.com", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("https://partner.test", "example.com", True),
        ("https://deep.trusted.test:8443", "example.com", True),
        ("http://example.com:8001", "example.com:8000", False),
        ("http://partner.test", "example.com", False),
        ("https://partner.test:444", "example.com", False),
        ("https://evil.test", "example.com", False),
        ("https://evil.test", "evil.test", False),
        ("https://example.com.evil.test", "example.com", False),
        ("https://evilexample.com", "example.com", False),
        ("https://trusted.test.evil.test:8443", "example.com", False),
        ("null", "example.com", False),
        ("", "example.com", False),
        ("file://", "example.com", False),
        ("example.com", "example.com", False),
        ("http://", "example.com", False),
        ("http://example.com:port", "example.com", False),
        ("http://[::1", "example.com", False),
        ("https://example.com", None, True),
        ("https://example.com:444", None, False),
    ],
)
def test_which_pages_may_open_a_socket(origin: str, host: str | None, allowed: bool, settings: Any) -> None:
    settings.ALLOWED_HOSTS = [".example.com", "[::1]"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://partner.test", "https://*.trusted.test:8443"]
    assert own_origin(origin, host) is allowed


def test_every_host_allowed_does_not_mean_every_page(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert own_origin("http://my.test:8000", "my.test:8000")
    assert not own_origin("http://evil.test", "my.test")


def test_hosts_of_a_development_server(settings: Any) -> None:
    settings.ALLOWED_HOSTS = []
    settings.DEBUG = True
    assert own_origin("http://localhost:8000", "localhost:8000")
    assert own_origin("http://127.0.0.1:8000", "127.0.0.1:8000")
    assert not own_origin("http://evil.test", "localhost:8000")


async def test_a_foreign_page_is_refused_with_a_code_that_arrives(tabs: Sockets) -> None:
    tab = await tabs(headers=[(b"host", b"testserver"), (b"origin", b"https://evil.test")], hello=False)
    assert await tab.closed() == frames.ORIGIN_REFUSED
    own = await tabs(headers=[(b"host", b"testserver"), (b"origin", b"http://testserver")])
    no_page = await tabs(headers=[(b"host", b"testserver")])
    assert own.session != no_page.session


async def test_a_host_that_a_proxy_forwards_counts_where_django_trusts_it(tabs: Sockets, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    headers = [(b"host", b"10.0.0.7:8000"), (b"x-forwarded-host", b"my.test"), (b"origin", b"https://my.test")]
    refused = await tabs(headers=headers, hello=False)
    assert await refused.closed() == frames.ORIGIN_REFUSED
    settings.USE_X_FORWARDED_HOST = True
    await tabs(headers=headers)


async def test_another_path_is_refused_with_a_code(tabs: Sockets) -> None:
    for path in ("/", "/ws/", "/ws/visibility/x/", "/admin/"):
        tab = await tabs(path=path, hello=False)
        assert await tab.closed() == frames.NO_SUCH_PATH
        assert await _ended(tab.socket)


async def _ended(socket: Any) -> bool:
    await asyncio.wait_for(socket.task, 5)
    return socket.error is None


async def test_a_rotated_secret_key_logs_nobody_out(tabs: Sockets, make_user: Callable[..., User], settings: Any) -> None:
    ann = await sync_to_async(make_user)()
    key = await sync_to_async(session_for)(ann)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    tab = await tabs(session_key=key)
    await tab.watch("counter:a")
    settings.SECRET_KEY_FALLBACKS = []
    late = await tabs(session_key=key)
    await late.send({"op": "watch", "id": 1, "resources": ["counter:a"]})
    assert (await late.expect("error"))["code"] == "forbidden"
    assert await Session.objects.filter(pk=key).aexists(), "nothing was flushed"


async def test_a_session_that_cannot_be_read_is_sent_away_for_later(
    tabs: Sockets, make_user: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(keys: Any) -> Any:
        raise OperationalError("away")

    key = await sync_to_async(session_for)(await sync_to_async(make_user)())
    monkeypatch.setattr("visibility.middleware.users_of", away)
    tab = await tabs(session_key=key, hello=False)
    assert await tab.closed() == frames.TRY_LATER
    nobody = await tabs()
    assert nobody.close_code is None


async def test_a_user_that_is_there_already_stays(make_user: Callable[..., User]) -> None:
    from visibility.middleware import SessionUser

    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["user"])

    ann = await sync_to_async(make_user)()
    for scope in ({"user": ann}, {}):
        socket = LocalSocket(SessionUser(app), **scope)
        await socket.task
    assert seen[0] is ann
    assert seen[1].is_anonymous


def test_sessions_that_are_nobodys(make_user: Callable[..., User], settings: Any) -> None:
    ann = make_user()
    good = session_for(ann)
    inactive = session_for(make_user(is_active=False))
    from django.contrib.sessions.backends.db import SessionStore

    anonymous = SessionStore()
    anonymous["cart"] = [1]
    anonymous.save()
    odd = SessionStore(good)
    odd["_auth_user_backend"] = "some.other.Backend"
    odd.save()
    assert users_of([good, inactive, str(anonymous.session_key), "unknown", ""]) == {}
    odd["_auth_user_backend"] = settings.AUTHENTICATION_BACKENDS[0]
    odd.save()
    assert users_of([good, good]) == {good: ann}
    del odd["_auth_user_hash"]
    odd.save()
    assert users_of([good]) == {}


@pytest.mark.parametrize("engine", ["cache", "cached_db", "file"])
def test_sessions_of_other_engines(engine: str, make_user: Callable[..., User], settings: Any, tmp_path: Any) -> None:
    from visibility.users import session_store

    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    ann = make_user()
    from django.contrib.sessions.backends.db import SessionStore

    stored = session_store(None)
    stored.update(dict(SessionStore(session_for(ann)).items()))
    stored.save()
    assert users_of([str(stored.session_key), "x" * 32]) == {stored.session_key: ann}
    stored.flush()
    assert users_of([str(stored.session_key)]) == {}


async def test_a_cookie_that_no_database_takes_is_nobody_s_and_keeps_nobody_out(
    tabs: Sockets, make_user: Callable[..., User]
) -> None:
    key = await sync_to_async(session_for)(await sync_to_async(make_user)("ann"))
    name = settings.SESSION_COOKIE_NAME
    cookies = [f"{name}={key}", f'{name}="\\000abcdefghij"', f"{name}={key}"]
    opened = await asyncio.gather(*(tabs(headers=[(b"cookie", one.encode())]) for one in cookies))
    assert [one.close_code for one in opened] == [None] * 3
    assert len((await opened[0].watch("counter:a"))["resources"]) == 1


def test_a_login_of_before_the_user_model_was_changed_fails_no_other(make_user: Callable[..., User]) -> None:
    ann = make_user("ann")
    key, old = session_for(ann), SessionStore()
    old[SESSION_KEY], old[BACKEND_SESSION_KEY] = "no number", settings.AUTHENTICATION_BACKENDS[0]
    old.save()
    assert users_of([str(old.session_key), key]) == {key: ann}
