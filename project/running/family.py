"""Child processes that start in order, are watched, and end together: politely, and for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from project.running import keeper

GRACE = 8.0
RESTARTS = 3
RESTART_WINDOW = 60.0
OnDeath = Literal["restart", "fail", "ignore"]


class ChildFailed(Exception):
    """A child did not get ready, or ended too often; the message carries the end of its log."""


@dataclass
class Child:
    """One running child: its command, its log, and how often it was started again."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes]
    on_death: OnDeath = "restart"
    pass_fds: tuple[int, ...] = ()
    restarts: list[float] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 12) -> str:
        """The end of the child's log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Family:
    """Starts children, each in a session of its own, and ends all of them when it is closed or when this process dies.

    Args:
        env: the children's environment.
        logs: where each child's output goes, `NAME.log`; a temporary folder if None.
        say: told one line at a time what happened to a child.
    """

    def __init__(self, env: Mapping[str, str], logs: Path | None = None, say: Callable[[str], Any] = print) -> None:
        self.id = uuid.uuid4().hex
        self.env = {**env, keeper.MARK: self.id, "PYTHONUNBUFFERED": "1"}
        self.say = say
        self.children: dict[str, Child] = {}
        self._scratch = None if logs else tempfile.TemporaryDirectory(prefix="visibility-logs-", ignore_cleanup_errors=True)
        self.logs = logs or Path(self._scratch.name)  # type: ignore[union-attr]
        self.logs.mkdir(parents=True, exist_ok=True)
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", keeper.__file__, self.id], stdin=subprocess.PIPE, start_new_session=True, text=True
        )

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        ready: Callable[[], bool] | None = None,
        seconds: float = 30,
        on_death: OnDeath = "restart",
        pass_fds: Sequence[int] = (),
        console: bool = False,
    ) -> Child:
        """Start a child and wait until `ready()`. With `console` its output goes where this process's goes, not into a log.

        `on_death` says what `check` does when it has ended: start it again, fail as nothing works without it, or nothing.

        Raises:
            ChildFailed: it ended or was not ready in time.
        """
        argv = [str(part) for part in command]
        log = self.logs / f"{name}.log"
        log.unlink(missing_ok=True)
        child = Child(name, argv, log, self._spawn(argv, log, pass_fds, console), on_death, tuple(pass_fds))
        self.children[name] = child
        deadline = time.monotonic() + seconds
        while ready is not None and not ready():
            if not child.alive:
                raise ChildFailed(f"{name} ended with {child.process.returncode} while starting:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise ChildFailed(f"{name} was not ready within {seconds:g} s:\n{child.tail()}")
            time.sleep(0.02)
        return child

    def run(self, name: str, command: Sequence[str | Path]) -> str:
        """Run a child to its end; answers its output.

        Raises:
            ChildFailed: it ended with an error.
        """
        child = self.start(name, command, on_death="ignore")
        code = child.process.wait()
        self._forget(name)
        if code:
            raise ChildFailed(f"{name} ended with {code}:\n{child.tail()}")
        return child.log.read_text(errors="replace")

    def _spawn(self, argv: list[str], log: Path, pass_fds: Sequence[int], console: bool = False) -> subprocess.Popen[bytes]:
        with contextlib.nullcontext(None) if console else log.open("ab") as out:
            process = subprocess.Popen(
                argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if console else subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        self._tell(str(process.pid))
        return process

    def _tell(self, line: str) -> None:
        if self._keeper.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._keeper.stdin.write(f"{line}\n")
                self._keeper.stdin.flush()

    def _forget(self, name: str) -> None:
        child = self.children.pop(name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        self._tell(f"-{child.pid}")

    def check(self) -> None:
        """Start again what has died; one line each.

        Raises:
            ChildFailed: a child that may not be restarted died, or one died too often.
        """
        for name, child in list(self.children.items()):
            if child.alive or child.on_death == "ignore":
                continue
            code, now = child.process.returncode, time.monotonic()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            tail = child.tail()
            self._forget(name)
            recent = [t for t in child.restarts if t > now - RESTART_WINDOW]
            if child.on_death == "fail":
                raise ChildFailed(f"{name} {how}; nothing works without it.\n{tail}")
            if len(recent) >= RESTARTS:
                raise ChildFailed(f"{name} {how}, {len(recent) + 1} times within a minute.\n{tail}")
            self.say(f"{name} {how}; started again.")
            fresh = Child(name, child.command, child.log, self._spawn(child.command, child.log, child.pass_fds))
            fresh.pass_fds, fresh.restarts = child.pass_fds, [*recent, now]
            self.children[name] = fresh

    def close(self) -> None:
        """SIGTERM to all in reverse order of start, SIGKILL after a while; nothing is left when it returns."""
        deadline = time.monotonic() + GRACE
        for batch in self._farewells():
            for child in batch:
                with contextlib.suppress(ProcessLookupError):
                    child.process.terminate()
            for child in batch:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.1, deadline - time.monotonic()))
        pids = {child.pid for child in self.children.values()}
        keeper.kill(pids, self.id)
        for child in self.children.values():
            child.process.wait()
        self.children.clear()
        self._tell("bye")
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _farewells(self) -> Iterator[list[Child]]:
        """Whoever needs another ends before it: everything else first, what may not be restarted (Redis) last."""
        living = [child for child in self.children.values() if child.alive]
        yield [child for child in living if child.on_death != "fail"]
        yield [child for child in living if child.on_death == "fail"]
