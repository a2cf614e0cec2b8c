"""Fixtures for every test. The servers behind them are real; see tests/support.

Without a database fixture a test has Redis only. `db` wraps the test in a transaction that other threads and
processes cannot see; whatever uses them, or waits for `on_commit`, asks for `transactional_db` (`live` does).
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis as redis_py
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from pytest_django import DjangoDbBlocker

from tests.support import servers
from tests.support.probe import probes as probes
from tests.support.processes import Process, living, stop_all
from tests.support.sockets import Tab, connect
from visibility import points
from visibility.soft import client as soft_client

# Under load an example may take long; the timeout of the test still ends one that hangs.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")


@pytest.fixture(scope="session", autouse=True)
def redis_server() -> Iterator[servers.RedisServer | None]:
    """The Valkey that all tests of this process share; None where REDIS_URL names another."""
    if os.environ.get("REDIS_URL"):
        yield None
        return
    port = int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
    with servers.valkey(port=port) as server:
        yield server


@pytest.fixture
def own_redis(redis_server: servers.RedisServer | None) -> servers.RedisServer:
    """The server that this run started: a test may kill, pause or demote it. Skips where REDIS_URL names another."""
    if redis_server is None:
        pytest.skip("REDIS_URL names a server that is not ours to kill")
    return redis_server


@pytest.fixture(scope="session")
def database_server() -> Iterator[servers.DatabaseServer | None]:
    """The database server that all tests of this process share; None for SQLite and where a URL names another."""
    kind = os.environ.get("VISIBILITY_TEST_DB", "sqlite")
    if kind == "sqlite" or os.environ.get("VISIBILITY_TEST_DB_URL"):
        yield None
        return
    start = {"postgres": servers.postgres, "mariadb": servers.mariadb}[kind]
    with start(port=int(settings.DATABASES["default"]["PORT"])) as server:
        yield server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, database_server: servers.DatabaseServer | None
) -> None:
    """pytest-django's hook: the server must run before the test database is made."""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """pytest-django's, which at the end cannot drop a PostgreSQL database that threads of this process still hold open."""
    yield
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture(autouse=True)
def redis(redis_server: servers.RedisServer | None) -> Iterator[redis_py.Redis]:
    """A client (text, not bytes) to a Redis that is empty when the test begins."""
    with redis_py.Redis.from_url(settings.REDIS_URL, decode_responses=True) as client:
        try:
            client.flushall() if redis_server else client.flushdb()
        except redis_py.ConnectionError:
            # An earlier test killed it on purpose and did not bring it back.
            if redis_server is None:
                raise
            redis_server.restart()
        yield client
    # Also closes a circuit breaker that the test has opened.
    soft_client.close()


@pytest.fixture
async def closes_its_clients() -> AsyncIterator[None]:
    """Every test on an event loop gets this: connections end with the loop they belong to."""
    yield
    await soft_client.aclose()


@pytest.fixture
def make_user(request: pytest.FixtureRequest) -> Callable[..., User]:
    """`make_user("ann")` makes an active user; needs a database fixture."""
    made = 0

    def make(name: str = "", **fields: Any) -> User:
        nonlocal made
        made += 1
        return User.objects.create_user(name or f"user{made}", password="pw", **fields)

    return make


@pytest.fixture
def live(transactional_db: None) -> Iterator[Live]:
    """Starts ASGI servers and workers that work on this test's database and Redis; all end with the test."""
    with ExitStack() as stack:
        yield Live(stack)


class Live:
    """`live.site()`, `live.worker()`, `live.command(…)`: see `tests.support.servers` for the arguments."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def site(self, server: str = "uvicorn", **options: Any) -> servers.Site:
        return self._stack.enter_context(servers.asgi(server, **options))

    def worker(self, queue: str = "visibility-hot", **options: Any) -> Process:
        return self._stack.enter_context(servers.rq_worker(queue, **options))

    def command(self, name: str, *arguments: str, **options: Any) -> Process:
        return self._stack.enter_context(servers.command(name, *arguments, **options))


@pytest.fixture
async def tabs() -> AsyncIterator[Any]:
    """`tab = await tabs(user)` opens a socket in this very process (`tests.support.local.Sockets`); all close with the test."""
    from tests.support.local import Sockets

    opened = Sockets()
    yield opened
    await opened.close()


@pytest.fixture
def builds() -> Iterator[Mapping[str, int]]:
    """Lanes are drained by a thread of this process; how often each resource was built."""
    from tests.support.local import draining

    with draining() as built:
        yield built


@pytest.fixture
async def site_tabs() -> AsyncIterator[Callable[..., Any]]:
    """`tab = await site_tabs(site, user)` opens a socket to a real server as a browser tab would; all close with the test."""
    async with AsyncExitStack() as stack:

        async def open_tab(site: servers.Site, user: User | None = None, **options: Any) -> Tab:
            return await stack.enter_async_context(connect(site.ws, user=user, **options))

        yield open_tab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks that follow from where a test stands and what it uses."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in ("browser", "chaos"):
            item.add_marker(folder)
        elif not item.get_closest_marker("chaos") and (
            {"db", "transactional_db"} & set(item.fixturenames) or item.get_closest_marker("django_db")
        ):
            item.add_marker("database")
        if inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "closes_its_clients")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the servers and workers of the test had to say."""
    report = yield
    if report.when == "call" and report.failed:
        for process in living():
            name = " ".join(process.command)
            if "-server" not in process.command[0] and (output := process.output.strip()):
                report.sections.append((f"log of {name[:100]}", output[-4000:]))
    # Tests of text that cannot be encoded log it, and a report has to travel between processes.
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    stop_all()
    if settings.configured and settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        name = str(settings.DATABASES["default"]["TEST"]["NAME"])
        for leftover in Path(name).parent.glob(Path(name).name + "*"):
            with contextlib.suppress(OSError):
                leftover.unlink()


@pytest.fixture
def at() -> Iterator[Callable[[str, Callable[[], Any]], None]]:
    """`at(point, action)`: run the action the first time the code reaches the point."""
    actions: dict[str, Callable[[], Any]] = {}

    def reach(name: str) -> None:
        action = actions.pop(name, None)
        if action is not None:
            action()

    points.hook = reach
    yield actions.__setitem__
    points.hook = None
    assert not actions, f"never reached: {sorted(actions)}"
