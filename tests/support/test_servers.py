"""The servers that other tests stand on: each starts, answers, does what a fault needs of it, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import redis

from tests.support import servers, wait_for
from tests.support.processes import Process, free_port, port_open, session_members


def gone(*pids: int) -> bool:
    return not any(session_members(pid) for pid in pids)


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_a_redis_answers_dies_returns_and_leaves_nothing(kind: str) -> None:
    start = {"valkey": servers.valkey, "redis7": servers.redis7}[kind]
    with start() as server, contextlib.closing(server.client()) as client:
        assert server.process is not None
        pid, folder = server.process.pid, server.folder
        assert client.set("a", "1")
        server.kill()
        assert gone(pid)
        with pytest.raises(redis.ConnectionError):
            client.get("a")
        server.start()
        assert client.get("a") is None
        second = server.process.pid
    assert gone(second)
    assert not folder.exists()
    assert not port_open(server.port)


def test_a_paused_redis_times_out_and_goes_on() -> None:
    with servers.valkey() as server, contextlib.closing(server.client(socket_timeout=0.2)) as client:
        client.set("a", "1")
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.get("a")
        server.resume()
        assert wait_for(lambda: client.get("a") == "1")


def test_options_reach_the_server() -> None:
    with servers.valkey("--maxmemory", "10mb") as server, contextlib.closing(server.client()) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(10 * 1024 * 1024)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis7", "valkey"])
def test_a_cluster_fails_over(kind: str) -> None:
    with servers.redis_cluster(kind) as cluster:
        pids = [node.process.pid for node in cluster.nodes if node.process]
        assert len(pids) == 6
        with contextlib.closing(cluster.client()) as client:
            for n in range(20):
                client.set(f"key{n}", n)
        for node in cluster.masters():
            # A replica that has not seen a write may win: wait for it, since this is about the helper, not about Redis.
            with contextlib.closing(node.client()) as client:
                assert client.wait(1, 5000) == 1
        victim = cluster.owner("key7")
        cluster.fail_over(victim)
        assert cluster.owner("key7") is not victim
        with contextlib.closing(cluster.client()) as client:
            assert [client.get(f"key{n}") for n in range(20)] == [str(n) for n in range(20)]
    assert gone(*pids)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis7", "valkey"])
def test_sentinels_fail_over(kind: str) -> None:
    with servers.sentinel(kind) as trio:
        pids = [node.process.pid for node in [*trio.nodes, *trio.sentinels] if node.process]
        assert len(pids) == 6
        first = trio.master()
        assert first is not None
        with contextlib.closing(first.client()) as client:
            client.set("a", "1")
            assert client.wait(2, 2000) == 2
        second = trio.fail_over()
        assert second is not first
        with contextlib.closing(second.client()) as client:
            assert client.get("a") == "1"
            assert client.set("a", "2")
    assert gone(*pids)


@pytest.mark.slow
def test_postgres_answers_dies_and_returns() -> None:
    with servers.postgres() as server:
        import psycopg

        def ask() -> object:
            with psycopg.connect(host="127.0.0.1", port=server.port, user="visibility", dbname="visibility") as connection:
                return connection.execute("SELECT 6 * 7").fetchone()

        assert ask() == (42,)
        assert server.process is not None
        pids = [server.process.pid]
        server.kill()
        assert gone(*pids)
        with pytest.raises(psycopg.OperationalError):
            ask()
        server.start()
        pids.append(server.process.pid)
        assert ask() == (42,)
    assert gone(*pids)


@pytest.mark.slow
def test_mariadb_answers_dies_and_returns() -> None:
    with servers.mariadb() as server:
        import pymysql

        def ask() -> object:
            connection = pymysql.connect(host="127.0.0.1", port=server.port, user="visibility", database="visibility")
            with contextlib.closing(connection), connection.cursor() as cursor:
                cursor.execute("SELECT 6 * 7")
                return cursor.fetchone()

        assert ask() == (42,)
        assert server.process is not None
        pids = [server.process.pid]
        server.kill()
        assert gone(*pids)
        with pytest.raises(pymysql.OperationalError):
            ask()
        server.start()
        pids.append(server.process.pid)
        assert wait_for(ask, 20) == (42,)
    assert gone(*pids)


def test_a_killed_process_takes_its_forked_children_along() -> None:
    code = "import os, time\nos.fork() or os.setpgrp()\nprint('up', flush=True)\ntime.sleep(60)"
    with Process([sys.executable, "-c", code]) as process:
        process.wait_until(lambda: process.output.count("up") == 2, 10)
        assert len(session_members(process.pid)) == 2
        process.kill()
        assert gone(process.pid)


def test_a_process_that_ends_early_shows_its_last_words() -> None:
    with (
        Process([sys.executable, "-c", "raise SystemExit('no such thing')"]) as process,
        pytest.raises(Exception, match="no such thing"),
    ):
        process.wait_port(free_port())


def test_stop_escalates_to_sigkill() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = Process([sys.executable, "-c", code])
    process.wait_until(lambda: "up" in process.output, 10)
    begin = time.monotonic()
    assert process.stop(grace=0.2) == -signal.SIGKILL
    assert time.monotonic() - begin < 5
    assert not process.log.exists()


@pytest.mark.django_db(transaction=True)
def test_a_child_shares_database_and_redis(redis: redis.Redis) -> None:
    from django.contrib.auth.models import User

    code = (
        "import django; django.setup()\n"
        "from django.conf import settings\n"
        "from django.contrib.auth.models import User\n"
        "import redis\n"
        "with redis.Redis.from_url(settings.REDIS_URL) as client: client.set('from', 'child')\n"
        "User.objects.create(username='child')\n"
        "print('heartbeat', settings.VISIBILITY['HEARTBEAT'])\n"
    )
    with servers.python("-c", code, visibility={"HEARTBEAT": 1}) as process:
        assert process.popen.wait(30) == 0, process.output
        assert "heartbeat 1" in process.output
    assert redis.get("from") == "child"
    assert User.objects.get().username == "child"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("worker_class", ["rq.worker.SimpleWorker", "rq.worker.Worker"])
def test_an_rq_worker_works(worker_class: str) -> None:
    import django_rq

    with servers.rq_worker("visibility-cold", worker_class) as worker:
        job = django_rq.get_queue("visibility-cold").enqueue(os.getpid)
        wait_for(lambda: job.get_status(refresh=True) == "finished", 20, "the job is done")
    assert gone(worker.pid)
    assert not Path(worker.log).exists()


def test_a_test_process_that_is_killed_leaves_no_server() -> None:
    code = (
        "import time\n"
        "from tests.support import servers\n"
        "with servers.valkey() as server:\n"
        "    print('server', server.process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with Process([sys.executable, "-c", code], cwd=servers.ROOT) as process:
        process.wait_until(lambda: process.output.startswith("server"), 20)
        pid = int(process.output.split()[1])
        assert session_members(pid)
        process.kill()
        wait_for(lambda: gone(pid), 10, "the server of the killed process is gone")
