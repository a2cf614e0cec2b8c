"""`manage.py demo`: the whole thing on this machine, with one command and no root."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from project.environment import running_demo
from project.running import parts
from project.running.family import ChildFailed, Family

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal. No `Exception`: library code that survives errors must not survive this."""


class Command(BaseCommand):
    help = (
        "Run the demo: database, embedded Valkey (REDIS_URL in the environment wins), ASGI server and workers as child "
        "processes. Ctrl-C ends all of them."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="port of the web server (default: 8000)")
        parser.add_argument("--host", default="127.0.0.1", help="address of the web server (default: 127.0.0.1)")
        parser.add_argument("--server", choices=parts.SERVERS, default="daphne", help="ASGI server (default: daphne)")
        parser.add_argument("--crowd", type=int, default=2_000, help="silent readers to create on the first run (default: 2000)")
        parser.add_argument("--quiet", action="store_true", help="nobody posts by themselves: only you make changes")
        parser.add_argument("--fresh", action="store_true", help="begin anew: delete the demo's SQLite file first")

    def handle(self, *args: Any, **options: Any) -> None:
        stop_on_signals()
        try:
            self.run(options)
        except Stopped:
            self.stdout.write("Stopped; no process is left.")
        except (parts.CannotStart, ChildFailed) as error:
            raise CommandError(str(error)) from None

    def run(self, options: dict[str, Any]) -> None:
        """Start everything, say where it is, watch over it until a signal comes."""
        listener = parts.listen(options["host"], options["port"])
        with contextlib.ExitStack() as stack:
            stack.callback(listener.close)
            listener.set_inheritable(True)
            given = os.environ.get("REDIS_URL")
            if given and not parts.answers(given):
                raise parts.CannotStart(
                    f"No Redis answers at REDIS_URL={given}. Start it, or unset REDIS_URL to use the embedded one."
                )
            valkey = None if given else parts.Valkey()
            if valkey:
                stack.callback(valkey.close)
            if options["fresh"]:
                forget_data()
            self.say("Preparing the database, then starting Valkey, server and workers…\n")
            env = {**os.environ, "REDIS_URL": given or (valkey.url if valkey else "")}
            hosts = {*settings.ALLOWED_HOSTS, options["host"]}
            env["ALLOWED_HOSTS"] = ",".join(sorted(hosts))
            family = stack.enter_context(Family(env, _folder("log"), self.say))
            if valkey:
                valkey.start(family)
                stack.enter_context(_known(env["REDIS_URL"]))
            self.start(family, listener, options)
            while True:
                time.sleep(0.25)
                family.check()

    def start(self, family: Family, listener: socket.socket, options: dict[str, Any]) -> None:
        host, port = listener.getsockname()[:2]
        said = family.run("load", parts.manage("load_demo", "--crowd", str(options["crowd"])))
        loaded = json.loads(said.strip().splitlines()[-1])
        server = family.start("server", parts.asgi(options["server"], listener), pass_fds=[listener.fileno()])
        family.start("workers", parts.workers())
        if not options["quiet"]:
            family.start("life", parts.manage("life"))
        parts.wait_for_http(server, host, port)
        shown = f"[{host}]" if ":" in host else host
        lines = [
            "",
            f"  {self.style.SUCCESS('visibility demo')}  http://{shown}:{port}/",
            f"  admin            http://{shown}:{port}/admin/   {self.secret(loaded)}",
            *([f"  a second person  http://localhost:{port}/   (cookies of its own)"] if host == "127.0.0.1" else []),
            f"  logs             {family.logs}",
            "  Ctrl-C ends everything.",
            "",
        ]
        self.say("\n".join(lines))

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    @staticmethod
    def secret(loaded: dict[str, Any]) -> str:
        if loaded["password"]:
            return f"user {loaded['superuser']}, password {loaded['password']}"
        return f"user {loaded['superuser']}, with the password you gave it"


def stop_on_signals() -> None:
    """From now on Ctrl-C, SIGTERM and a closed terminal raise `Stopped` in the main thread, once."""
    for number in SIGNALS:
        # `nohup` ignores SIGHUP on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
            signal.signal(number, _stop)


def _stop(_number: int, _frame: FrameType | None) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


def forget_data() -> None:
    """Delete the demo's database; the secret key and the administrator's password stay.

    Raises:
        CannotStart: it is no SQLite file, or a demo works on it now.
    """
    database = settings.DATABASES["default"]
    if not database["ENGINE"].endswith("sqlite3"):
        raise parts.CannotStart("--fresh deletes a SQLite file; DATABASE_URL names another database: empty that one yourself.")
    known = running_demo(_url_file())
    if known and parts.answers(known):
        raise parts.CannotStart("A demo runs on this data. End it with Ctrl-C, then start this one again.")
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{database['NAME']}{suffix}").unlink(missing_ok=True)


def _url_file() -> Path:
    return Path(settings.DEMO_DIR) / "redis-url"


def _folder(name: str) -> Path | None:
    """A folder below DEMO_DIR; None where none can be made."""
    folder: Path = settings.DEMO_DIR / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.log").touch()
    except OSError:
        return None
    return folder


@contextlib.contextmanager
def _known(url: str) -> Iterator[None]:
    """While the demo runs, other commands (`visibility_top`, `shell`) find its Valkey by this file."""
    path = _url_file()
    with contextlib.suppress(OSError):
        path.write_text(url)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
