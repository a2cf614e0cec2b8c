"""What the settings read from the machine: the database's address and the secret key."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

ENGINES = {
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "mariadb": "django.db.backends.mysql",
}


def sqlite(name: str) -> dict[str, Any]:
    """A SQLite file that several processes may write: write-ahead log, the write lock taken at BEGIN, 20 s of patience."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY;",
        },
    }


def database(url: str, default: Path) -> dict[str, Any]:
    """Django's settings for a database address; `default` names the SQLite file used without one.

    Raises:
        ImproperlyConfigured: the address has a scheme that this project does not know.
    """
    if not url:
        return sqlite(str(default))
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        # sqlite:///relative.db and sqlite:////absolute.db
        return sqlite(unquote(parts.path[1:]) or ":memory:")
    if parts.scheme not in ENGINES:
        raise ImproperlyConfigured(f"DATABASE_URL: unknown scheme {parts.scheme!r}; use sqlite, {', '.join(sorted(ENGINES))}")
    if parts.scheme in ("mysql", "mariadb"):
        import pymysql

        pymysql.install_as_MySQLdb()
    return {
        "ENGINE": ENGINES[parts.scheme],
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def secret_key(path: Path) -> str:
    """The key kept in `path`, made on the first call; where no file can be written, one for this process and its children."""
    if path.is_file():
        return path.read_text().strip()
    fresh = secrets.token_urlsafe(50)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.touch(mode=0o600)
        scratch.write_text(fresh)
        try:
            # Linked into place whole: a process that starts at the same moment never reads half a key.
            os.link(scratch, path)
        except FileExistsError:
            return path.read_text().strip()
        finally:
            scratch.unlink()
    except OSError:
        return os.environ.setdefault("SECRET_KEY", fresh)
    return fresh


def running_demo(path: Path) -> str:
    """The address of a running demo's Valkey, so that other commands reach it; empty if none runs."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
