from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.processes import free_port
from tests.support.proxy import Proxy


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])) as made:
        yield made


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    retry = Retry(NoBackoff(), 0)
    with redis.Redis(port=proxy.port, decode_responses=True, socket_timeout=5, retry=retry) as made:
        yield made


def test_forwards(proxy: Proxy, client: redis.Redis) -> None:
    body = "x" * 1_000_000
    client.set("a", body)
    assert client.get("a") == body
    assert proxy.connections == 1


def test_delays(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.delay = 0.1
    begin = time.monotonic()
    client.ping()
    assert time.monotonic() - begin >= 0.2  # there and back


def test_holds_and_releases(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.hold()
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(client.ping()))
    asking.start()
    asking.join(0.2)
    assert asking.is_alive()
    assert not answers
    proxy.release()
    asking.join(5)
    assert answers == [True]


def test_cuts_and_lets_in_again(proxy: Proxy, client: redis.Redis) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as raw:
        raw.sendall(b"PING\r\n")
        assert raw.recv(100) == b"+PONG\r\n"
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            raw.recv(100)
    assert client.ping()


def test_refuses_and_accepts(proxy: Proxy, client: redis.Redis) -> None:
    proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    proxy.accept()
    assert client.ping()


def test_leaves_no_thread() -> None:
    before = threading.active_count()
    with (
        Proxy(free_port()) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as raw,
        contextlib.suppress(ConnectionResetError),  # nobody is behind it
    ):
        assert raw.recv(100) == b""
    assert threading.active_count() == before
