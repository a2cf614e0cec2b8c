"""Connections that are kept for single commands: used again, never with somebody else's answer on them, never a dead one."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import redis as redis_py
from django.conf import settings
from redis.exceptions import ReadOnlyError, ResponseError

from tests.support import wait_for
from tests.support.servers import RedisServer
from visibility.exceptions import RedisAway
from visibility.soft import client as soft_client
from visibility.soft.client import aclient, client, guard, line, turn
from visibility.soft.line import Line


def connections(redis: redis_py.Redis) -> int:
    return int(redis.info("clients")["connected_clients"])


def test_a_connection_is_used_again(redis: redis_py.Redis) -> None:
    line().ask("SET", "a", "1")
    before = connections(redis)
    assert [line().ask("GET", "a") for _ in range(20)] == [b"1"] * 20
    assert connections(redis) == before


def test_an_error_of_the_server_leaves_the_connection_in_order(redis: redis_py.Redis) -> None:
    line().ask("SET", "a", "text")
    before = connections(redis)
    for _ in range(5):
        with pytest.raises(ResponseError, match="not an integer"):
            line().ask("INCR", "a")
        assert line().ask("GET", "a") == b"text"
    assert connections(redis) == before


def test_a_server_that_was_demoted_is_connected_to_anew(redis: redis_py.Redis, own_redis: RedisServer) -> None:
    before = line().ask("CLIENT", "ID")
    redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(ReadOnlyError):
            line().ask("SET", "a", "1")
        assert line().ask("CLIENT", "ID") != before
    finally:
        redis.replicaof("NO", "ONE")


def test_the_pool_s_connections_to_a_server_that_was_demoted_are_made_anew(redis: redis_py.Redis, own_redis: RedisServer) -> None:
    before = client().client_id()
    redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(RedisAway), guard():
            client().set("a", "1")
        assert client().client_id() != before
    finally:
        redis.replicaof("NO", "ONE")


async def test_so_are_those_of_an_event_loop(redis: redis_py.Redis, own_redis: RedisServer) -> None:
    before = await aclient().client_id()
    redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(RedisAway):
            async with turn():
                await aclient().set("a", "1")
        assert await aclient().client_id() != before
    finally:
        redis.replicaof("NO", "ONE")


def test_a_fork_while_a_thread_connects_leaves_the_child_a_lock_of_its_own() -> None:
    with soft_client._lock:
        child = os.fork()
        if not child:
            os._exit(0 if soft_client._lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_was_interrupted_is_never_answered_to_the_next(redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit strikes between the command and its answer."""
    redis.mset({"a": "of a", "b": "of b"})
    kept = line()
    kept.ask("PING")

    class TooLong(BaseException):
        pass

    def strike(*_args: Any, **_named: Any) -> Any:
        raise TooLong

    with monkeypatch.context() as patch, pytest.raises(TooLong):
        patch.setattr("redis.connection.Connection.read_response", strike)
        kept.ask("GET", "a")
    assert kept.ask("GET", "b") == b"of b"


def test_connections_that_the_server_has_closed_are_not_missed(redis: redis_py.Redis) -> None:
    kept = line()
    kept.ask("SET", "a", "1")
    for _ in range(3):
        redis.client_kill_filter(_type="normal", skipme=True)
        assert kept.ask("GET", "a") == b"1"


def test_a_command_may_be_on_its_way_while_others_are_asked(redis: redis_py.Redis) -> None:
    kept = line()
    redis.mset({"a": "of a", "b": "of b", "c": "of c"})
    first, second = kept.send("GET", "a"), kept.send("GET", "b")
    assert kept.ask("GET", "c") == b"of c"
    assert first.left
    assert (second.answer(), first.answer()) == (b"of b", b"of a")
    assert not first.left
    redis.set("a", "text")
    wrong = kept.send("INCR", "a")
    with pytest.raises(ResponseError):
        wrong.answer()
    assert kept.ask("GET", "a") == b"text"


def test_one_whose_connection_broke_meanwhile_is_sent_once_more(redis: redis_py.Redis) -> None:
    kept = line()
    kept.ask("SET", "a", "1")
    for _ in range(3):
        answer = kept.send("BLPOP", "nothing", 30)
        wait_for(lambda: redis.info("clients")["blocked_clients"] == 1, 5)
        redis.client_kill_filter(_type="normal", skipme=True)
        redis.rpush("nothing", "at last")
        assert list(answer.answer()) == [b"nothing", b"at last"]
        assert kept.ask("GET", "a") == b"1"


def test_it_is_asked_late_where_no_connection_is_kept(redis: redis_py.Redis) -> None:
    bounded = Line(redis_py.Redis.from_url(f"{settings.REDIS_URL}?max_connections=5"))
    answer = bounded.send("GET", "a")
    assert not answer.left
    redis.set("a", "1")
    assert answer.answer() == b"1"


def test_threads_get_their_own_answers(redis: redis_py.Redis) -> None:
    kept, wrong, barrier = line(), [], threading.Barrier(8)

    def work(n: int) -> None:
        barrier.wait()
        wrong.extend(m for m in range(200) if kept.ask("ECHO", f"{n}.{m}") != f"{n}.{m}".encode())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_fork_leaves_the_parents_connection_alone(redis: redis_py.Redis) -> None:
    own = line().ask("CLIENT", "ID")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if line().ask("CLIENT", "ID") != own else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert line().ask("CLIENT", "ID") == own


def test_a_pool_that_the_url_bounds_is_not_held_from(redis: redis_py.Redis) -> None:
    """With one connection allowed, whoever asks must give it back."""
    with redis_py.Redis.from_url(settings.REDIS_URL, max_connections=1) as bounded:
        kept = Line(bounded)
        assert kept.ask("SET", "a", "1")
        assert bounded.get("a") == b"1"
        assert kept.ask("GET", "a") == b"1"
