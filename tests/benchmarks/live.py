"""Whole processes for the bars of sockets: ASGI servers of either kind, and people who are logged in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth.models import User

from tests.benchmarks.harness import Size
from tests.support import servers
from tests.support.sockets import session_for

SETTINGS = "tests.benchmarks.settings"
KINDS = ("uvicorn", "daphne")


def kinds(size: Size) -> tuple[str, ...]:
    """The servers that a run of this size is measured on."""
    return KINDS if size.factor > 0.1 else KINDS[:1]


class Visitor(NamedTuple):
    """Somebody with an open browser: primary key, and the Cookie header that says who it is."""

    pk: int
    cookie: str


def asgi(kind: str) -> AbstractContextManager[servers.Site]:
    """A server process of this kind with the application of `site`."""
    return servers.asgi(kind, "tests.benchmarks.site:application", settings=SETTINGS)


def visitors(number: int) -> list[Visitor]:
    """So many new users, each with a session."""
    first = User.objects.count()
    made = [User.objects.create(username=f"visitor{first + n}") for n in range(number)]
    return [Visitor(int(user.pk), f"{settings.SESSION_COOKIE_NAME}={session_for(user)}") for user in made]
