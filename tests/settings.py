"""Settings of the test project; read by the test process and by every server and worker that a test starts.

Environment:
    REDIS_URL: use this Redis instead of an embedded Valkey (its database is flushed before every test).
    VISIBILITY_TEST_DB: sqlite (default), postgres or mariadb; a server is started where no URL is given.
    VISIBILITY_TEST_DB_URL: use this database server, e.g. postgres://user:password@127.0.0.1:5432/name.
    VISIBILITY_TEST_DB_NAME: the database that a test's child processes share with it; set by tests.support.servers.
    VISIBILITY_TEST_LAYER: the channel layer's class; for child processes.
    VISIBILITY_TEST_SETTINGS: JSON, merged into VISIBILITY; for child processes.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
# Each xdist worker is a process with servers of its own; what it chose is in its environment, so that its children agree.
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "main")


def _own(name: str, value: str) -> str:
    return os.environ.setdefault(f"VISIBILITY_TEST_{name}_{PROCESS}", value)


def _redis_url() -> str:
    given = os.environ.get("REDIS_URL")
    if not given:
        return f"redis://127.0.0.1:{_own('REDIS_PORT', str(free_port()))}/0"
    if PROCESS == "main":
        return given
    parts = urlsplit(given)
    return parts._replace(path=f"/{int(parts.path.strip('/') or 0) + 1 + int(PROCESS[2:])}").geturl()


def _database() -> dict[str, Any]:
    name = os.environ.get("VISIBILITY_TEST_DB_NAME", "")
    kind = os.environ.get("VISIBILITY_TEST_DB", "sqlite")
    if kind == "sqlite":
        # A file, not memory: threads and child processes share it.
        file = str(Path(tempfile.gettempdir()) / f"visibility-{_own('RUN', str(os.getpid()))}-{PROCESS}.sqlite3")
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": name or file,
            "TEST": {"NAME": file},
            "OPTIONS": {
                "timeout": 30,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
            },
        }
    engines = {"postgres": "django.db.backends.postgresql", "mariadb": "django.db.backends.mysql"}
    if kind not in engines:
        raise ValueError(f"VISIBILITY_TEST_DB={kind!r}: choose sqlite, postgres or mariadb")
    own = f"{kind}://visibility@127.0.0.1:{_own('DB_PORT', str(free_port()))}/visibility"
    parts = urlsplit(os.environ.get("VISIBILITY_TEST_DB_URL") or own)
    options: dict[str, Any] = {}
    if kind == "mariadb":
        import pymysql

        pymysql.install_as_MySQLdb()
        options = {"charset": "utf8mb4", "isolation_level": "read committed"}
    return {
        "ENGINE": engines[kind],
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "NAME": name or parts.path.strip("/"),
        "OPTIONS": options,
    }


REDIS_URL = _redis_url()
DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = os.environ.get("VISIBILITY_TEST_AUTO_FIELD", "django.db.models.BigAutoField")

SECRET_KEY = "for tests only"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
STATIC_URL = "static/"
ROOT_URLCONF = "tests.urls"
ASGI_APPLICATION = "tests.asgi.application"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "django_rq",
    "visibility",
    "tests.app",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": os.environ.get("VISIBILITY_TEST_LAYER", "channels_redis.core.RedisChannelLayer"),
        # redis-py 8 gives sockets a timeout of 5 s, which kills a consumer that waits longer for its next message.
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}]},
    },
}
RQ_QUEUES = {
    "default": {"URL": REDIS_URL},
    "visibility-hot": {"URL": REDIS_URL},
    "visibility-cold": {"URL": REDIS_URL},
}
VISIBILITY: dict[str, Any] = {
    "REDIS_URL": REDIS_URL,
    **json.loads(os.environ.get("VISIBILITY_TEST_SETTINGS", "{}")),
}
