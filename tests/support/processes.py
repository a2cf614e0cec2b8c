"""Child processes that never outlive the test: each leads a session of its own, which ends as a whole."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.ports import free_port
from tests.support import keeper
from tests.support.keeper import session_members
from tests.support.wait import wait_for

__all__ = ["Process", "ProcessEnded", "free_port", "living", "port_open", "session_members", "stop_all"]

_live: set[Process] = set()


class _Keeper:
    """The process that ends what this one leaves behind if it is killed; see `tests.support.keeper`."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[str] | None = None

    def tell(self, line: str) -> None:
        if self._popen is None:
            command = [sys.executable, "-S", "-E", str(Path(keeper.__file__))]
            # A session of its own, so that it outlives a kill of this one's group.
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, text=True
            )
        stdin = self._popen.stdin
        if stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(line + "\n")
                stdin.flush()

    def close(self) -> None:
        if self._popen is not None:
            popen, self._popen = self._popen, None
            popen.communicate()


_keeper = _Keeper()


class Process:
    """A running child and its log. Use it as a context manager, or call `stop()`."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        user: str | None = None,
    ) -> None:
        self.command = [str(part) for part in command]
        handle, name = tempfile.mkstemp(prefix="visibility-", suffix=".log")
        self.log = Path(name)
        try:
            self.popen = subprocess.Popen(
                self.command,
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        finally:
            os.close(handle)
        self.pid = self.popen.pid
        _live.add(self)
        _keeper.tell(f"+{self.pid}")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def output(self) -> str:
        """Everything the process has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; nothing happens if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    def pause(self) -> None:
        for pid in session_members(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in session_members(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the process and whatever is left of its session, and wait for it."""
        for _round in range(50):
            members = session_members(self.pid)
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self.alive:
                with contextlib.suppress(ProcessLookupError):
                    self.popen.kill()
            self.popen.wait(10)
            if not members:
                break
            time.sleep(0.01)

    def stop(self, grace: float = 10, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process: politely first, by SIGKILL after `grace` seconds. Returns its exit code."""
        try:
            if self.alive:
                self.resume()
                self.send(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.popen.wait(grace)
            self.kill()
        finally:
            _live.discard(self)
            _keeper.tell(f"-{self.pid}")
            self.log.unlink(missing_ok=True)
        return self.popen.returncode

    def wait_until(self, ready: Callable[[], object], seconds: float = 20, what: str = "") -> None:
        """Wait until the process is ready.

        Raises:
            AssertionError: it ended, or was not ready in time; with the end of its log.
        """

        def check() -> object:
            if not self.alive:
                raise ProcessEnded(self)
            return ready()

        try:
            wait_for(check, seconds, what or f"{self.command[0]} is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-2000:]}") from None

    def wait_port(self, port: int, seconds: float = 30) -> None:
        """Wait until something listens at this port."""
        self.wait_until(lambda: port_open(port), seconds, f"{self.command[:4]} listens on port {port}")


class ProcessEnded(Exception):
    """A process ended before it was ready."""

    def __init__(self, process: Process) -> None:
        super().__init__(f"{' '.join(process.command)} ended with {process.popen.returncode}:\n{process.output[-2000:]}")


def port_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def living() -> list[Process]:
    """The processes that were started and not stopped."""
    return list(_live)


@atexit.register
def stop_all() -> None:
    """Kill what tests left running."""
    for process in list(_live):
        process.kill()
        process.log.unlink(missing_ok=True)
    _live.clear()
    _keeper.close()
