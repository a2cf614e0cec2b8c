"""Connections to Redis (single, Sentinel, Cluster), Lua scripts, and the circuit breaker before them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

import redis
from redis import asyncio as redis_async
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError as RedisConnectionError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    TimeoutError as RedisTimeoutError,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from visibility.conf import settings
from visibility.exceptions import RedisAway
from visibility.soft.keys import base, keep_ms
from visibility.soft.line import PLENTY, Line

AWAY = (
    RedisConnectionError,
    RedisTimeoutError,
    ReadOnlyError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    OutOfMemoryError,
    RedisClusterException,
    TryAgainError,
    OSError,
)
T = TypeVar("T")
OPEN_SECONDS = 1.0
# Calls of an event loop that may be under way at once, and waits for builds besides: redis-py's pools hold 100 connections, and
# raise what looks like a Redis that is away when they are asked for more.
CALLS, WAITS = 64, 32

_lock = threading.Lock()
_sync: dict[tuple[int, str], Line] = {}
_async: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = WeakKeyDictionary()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[_Turn, _Turn]] = WeakKeyDictionary()
_open_until = 0.0


def _options() -> dict[str, Any]:
    # redis-py's default retries sleep for seconds; a save must not. One retry outlives a pooled dead connection.
    return {"socket_timeout": 5.0, "socket_connect_timeout": 1.0, "health_check_interval": 0}


def _addresses(netloc: str, port: int) -> list[tuple[str, int]]:
    pairs = (part.rpartition("@")[2].partition(":") for part in netloc.split(","))
    return [(host, int(number or port)) for host, _, number in pairs]


def _connect(url: str, *, is_async: bool) -> Any:
    scheme = url.partition("://")[0]
    options = _options()
    retry: Any = AsyncRetry(NoBackoff(), 1) if is_async else Retry(NoBackoff(), 1)
    if not is_async:
        # A thread holds a few at most.
        options["max_connections"] = PLENTY
    if scheme not in ("sentinel", "cluster"):
        module: Any = redis_async if is_async else redis
        return module.Redis.from_url(url, retry=retry, **options)
    parts = urlsplit(url)
    options |= dict(parse_qsl(parts.query))
    if parts.password:
        options["password"] = parts.password
    if scheme == "cluster":
        node: Any = AsyncClusterNode if is_async else ClusterNode
        nodes = [node(host, port) for host, port in _addresses(parts.netloc, 6379)]
        cluster: Any = redis_async.RedisCluster if is_async else redis.RedisCluster
        return cluster(startup_nodes=nodes, **{k: v for k, v in options.items() if k != "health_check_interval"})
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("VISIBILITY['REDIS_URL']: a sentinel URL reads sentinel://host:port,host:port/service/db")
    sentinel: Any = AsyncSentinel if is_async else Sentinel
    found = sentinel(_addresses(parts.netloc, 26379), sentinel_kwargs={"socket_timeout": 1.0, "socket_connect_timeout": 1.0})
    return found.master_for(service, db=int(db or 0), retry=retry, **options)


def line() -> Line:
    """The synchronous client of this process and its kept connections; safe over threads and forks."""
    name = (os.getpid(), settings.REDIS_URL)
    found = _sync.get(name)
    if found is None:
        with guard(), _lock:
            found = _sync.get(name) or _sync.setdefault(name, Line(_connect(name[1], is_async=False)))
    return found


def client() -> Any:
    """The synchronous client of this process, for pipelines and for what blocks; a single command is cheaper by `line`."""
    return line().redis


def aclient() -> Any:
    """The asynchronous client of the running event loop."""
    clients = _async.setdefault(asyncio.get_running_loop(), {})
    url = settings.REDIS_URL
    if url not in clients:
        clients[url] = _connect(url, is_async=True)
    return clients[url]


async def aclose() -> None:
    """Close the running loop's clients."""
    for found in _async.pop(asyncio.get_running_loop(), {}).values():
        await found.aclose()


def close() -> None:
    """Close the synchronous clients and forget what the circuit breaker knows; for tests and shutdown."""
    global _open_until
    with _lock:
        for found in _sync.values():
            found.redis.close()
        _sync.clear()
    _open_until = 0.0


def _connect_anew() -> None:
    """A read-only server was demoted: another may answer at its address by now, to whoever connects anew."""
    here = os.getpid()
    for found in [found for (pid, _), found in list(_sync.items()) if pid == here]:
        pool = getattr(found.redis, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)


async def _aconnect_anew() -> None:
    for found in list(_async.get(asyncio.get_running_loop(), {}).values()):
        pool = getattr(found, "connection_pool", None)
        if pool is not None:
            await pool.disconnect(inuse_connections=False)


class _Guard:
    """What `guard` answers: it has no state of its own, and is cheaper than a generator on the path of every call."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _open_until and time.monotonic() < _open_until:
            raise RedisAway("Redis did not answer a moment ago; not asked again yet")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        global _open_until
        if isinstance(error, AWAY):
            if isinstance(error, ReadOnlyError):
                _connect_anew()
            _open_until = time.monotonic() + OPEN_SECONDS
            raise RedisAway(f"Redis is away: {type(error).__name__}: {error}") from error


_guard = _Guard()


def guard() -> _Guard:
    """A context that turns every way of Redis being away into `RedisAway`; while the circuit is open, it fails at once.

    Raises:
        RedisAway: no answer, or no writes taken. For `OPEN_SECONDS` further calls are refused without trying.
    """
    return _guard


class _Turn:
    """`guard` for an event loop: a limited number of callers are inside at once, the others wait in order."""

    __slots__ = ("_free",)

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def __aenter__(self) -> None:
        _guard.__enter__()
        await self._free.acquire()
        try:
            # It may have gone away while this one waited.
            _guard.__enter__()
        except RedisAway:
            self._free.release()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._free.release()
        if isinstance(error, ReadOnlyError):
            await _aconnect_anew()
        _guard.__exit__(kind, error, trace)


def turn(*, waits: bool = False) -> _Turn:
    """The asynchronous `guard`: every call through `aclient` is made inside. `waits`: one that blocks in Redis.

    Raises:
        RedisAway: as `guard`.
    """
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = _Turn(CALLS), _Turn(WAITS)
    return found[waits]


def _after_fork() -> None:
    # Another thread of the parent may hold it while it forks.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Script:
    """One Lua file behind the shared prelude, called by digest."""

    def __init__(self, name: str) -> None:
        folder = Path(__file__).with_name("lua")
        self.source = (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
        self.digest = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


script = lru_cache(maxsize=None)(Script)


def run(name: str, shard: int, *args: Any) -> Any:
    """Run `lua/<name>.lua` on a shard. `KEYS[1]` is the shard's base, `ARGV[1]` the keep time, then `args`.

    Raises:
        RedisAway: see `guard`.
    """
    code, argv = script(name), (base(shard), keep_ms(), *args)
    with guard():
        ask = line().ask
        try:
            return ask("EVALSHA", code.digest, 1, *argv)
        except NoScriptError:
            return ask("EVAL", code.source, 1, *argv)


class Begun:
    """`run` in two steps: the script is on its way, ask for its `result` or `drop` it, once.

    `left`: False where that cannot be; it runs when it is asked for.

    Raises:
        RedisAway: see `guard`.
    """

    __slots__ = ("_argv", "_code", "_sent")

    def __init__(self, name: str, shard: int, *args: Any) -> None:
        self._code, self._argv = script(name), (base(shard), keep_ms(), *args)
        with guard():
            self._sent = line().send("EVALSHA", self._code.digest, 1, *self._argv)

    @property
    def left(self) -> bool:
        return self._sent.left

    def result(self) -> Any:
        """What `run` answers.

        Raises:
            RedisAway: see `guard`.
        """
        try:
            with guard():
                try:
                    return self._sent.answer()
                except NoScriptError:
                    return line().ask("EVAL", self._code.source, 1, *self._argv)
        finally:
            # Where the circuit was open, nobody has asked for the answer.
            self._sent.drop()

    def drop(self) -> None:
        """Nobody waits for the result; it may run all the same."""
        self._sent.drop()


def run_each(name: str, calls: Iterable[tuple[T, int, Sequence[Any]]], take: Callable[[T, Any], None]) -> None:
    """Run a script for each `(what, shard, args)`, and `take(what, answer)` in their order.

    The next is prepared while Redis works, and may overtake the one before: give calls that do not care which comes first.

    Raises:
        RedisAway: see `guard`; the next may have run, but nobody is told.
    """
    under_way: tuple[T, Begun] | None = None
    try:
        for what, shard, args in calls:
            before, under_way = under_way, (what, Begun(name, shard, *args))
            if before is not None:
                take(before[0], before[1].result())
        if under_way is not None:
            take(under_way[0], under_way[1].result())
    finally:
        if under_way is not None:
            under_way[1].drop()


async def arun(name: str, shard: int, *args: Any) -> Any:
    """The asynchronous twin of `run`."""
    code, argv = script(name), (base(shard), keep_ms(), *args)
    async with turn():
        redis_client = aclient()
        try:
            return await redis_client.evalsha(code.digest, 1, *argv)
        except NoScriptError:
            return await redis_client.eval(code.source, 1, *argv)


async def arun_each(name: str, calls: Iterable[tuple[T, int, Sequence[Any]]], take: Callable[[T, Any], None]) -> None:
    """The asynchronous twin of `run_each`."""
    under_way: tuple[T, asyncio.Task[Any]] | None = None
    try:
        for what, shard, args in calls:
            before, under_way = under_way, (what, asyncio.create_task(arun(name, shard, *args)))
            if before is None:
                # It leaves before the next is prepared.
                await asyncio.sleep(0)
            else:
                take(before[0], await before[1])
        if under_way is not None:
            take(under_way[0], await under_way[1])
    finally:
        if under_way is not None and not under_way[1].done():
            # Waited for: once this has ended, nothing of it is to be written any more.
            under_way[1].cancel()
            await asyncio.wait([under_way[1]])
        if under_way is not None and not under_way[1].cancelled():
            # Looked at, lest it be reported as an error that nobody saw.
            under_way[1].exception()
