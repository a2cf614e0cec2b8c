"""Settings of the demo project; everything that differs between machines comes from the environment.

| variable | meaning | default |
|---|---|---|
| REDIS_URL | soft state, RQ and the channel layer | a running demo's Valkey, else redis://127.0.0.1:6379/0 |
| DATABASE_URL | sqlite:///file, postgres://user:password@host:port/name, mysql://… | demo.sqlite3 beside manage.py |
| DEMO_DIR | logs, the secret key and the administrator's password | .demo beside manage.py |
| SECRET_KEY | Django's secret key | made once, kept in DEMO_DIR |
| DEBUG | 1 for tracebacks in the browser | 0 |
| ALLOWED_HOSTS | comma-separated | localhost, 127.0.0.1, [::1] |
| VISIBILITY_OVERRIDES | JSON, merged over VISIBILITY below | {} |
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from project.environment import database, running_demo, secret_key

BASE_DIR = Path(__file__).resolve().parent.parent
DEMO_DIR = Path(os.environ.get("DEMO_DIR") or BASE_DIR / ".demo")

SECRET_KEY = os.environ.get("SECRET_KEY") or secret_key(DEMO_DIR / "secret-key")
DEBUG = os.environ.get("DEBUG", "0") == "1"
ALLOWED_HOSTS = [host for host in os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",") if host]

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "django_rq",
    "visibility",
    "project.demo",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "project.demo.middleware.content_security_policy",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "project.demo.context.shell",
            ],
        },
    },
]

DATABASES = {"default": database(os.environ.get("DATABASE_URL", ""), BASE_DIR / "demo.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("REDIS_URL") or running_demo(DEMO_DIR / "redis-url") or "redis://127.0.0.1:6379/0"

# redis-py 8 cuts an idle connection after 5 s; the layer's consumers wait longer than that.
CHANNEL_LAYERS: dict[str, Any] = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}], "capacity": 1_000},
    },
}

RQ_QUEUES = {  # jobs as JSON: nothing that comes out of Redis is unpickled
    name: {"URL": REDIS_URL, "DEFAULT_TIMEOUT": 180, "SERIALIZER": "rq.serializers.JSONSerializer"}
    for name in ("visibility-hot", "visibility-cold")
}

VISIBILITY: dict[str, Any] = {
    "REDIS_URL": REDIS_URL,
    "LANES": {
        "hot": {"queue": "visibility-hot", "bound": 10_000, "batch": 100},
        "cold": {"queue": "visibility-cold", "bound": 1_000, "batch": 50},
    },
    **json.loads(os.environ.get("VISIBILITY_OVERRIDES", "{}")),
}

AUTH_PASSWORD_VALIDATORS: list[dict[str, Any]] = []
LOGIN_URL = "demo:home"
LOGIN_REDIRECT_URL = "demo:feed"
LOGOUT_REDIRECT_URL = "demo:home"

# One click logs in as one of the seeded people (never as staff). For a demo on a loopback address only.
DEMO_LOGIN_AS = os.environ.get("DEMO_LOGIN_AS", "1") == "1"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "WARNING")},
}
