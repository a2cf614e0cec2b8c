"""Testing your own data types: tabs without sockets, drains without workers, a clock that moves on, crashes at named points.

Works with any test runner, on the real Redis of `VISIBILITY["REDIS_URL"]`. Give the tests a Redis database of their own: nothing
else does so, and where they share the development's, its workers build what the tests leave there.

Example::

    from visibility import testing

    class FeedTests(TransactionTestCase):
        def setUp(self):
            testing.flush()

        def test_a_post_reaches_those_who_watch(self):
            with testing.Tab(ann, "feed:1"):
                Post.objects.create(author=bob)
                testing.assert_hot("feed:1")
                testing.drain()
                self.assertEqual(visibility.read("feed", 1).data["posts"], 1)
            testing.advance(60)
            Post.objects.create(author=bob)
            testing.assert_cold("feed:1")

Inside a `TestCase`, which never commits, wrap changes in `self.captureOnCommitCallbacks(execute=True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from types import TracebackType
from typing import Any, Self

from visibility import builds, dirty, points, pressure
from visibility.conf import settings
from visibility.datatypes import parse_resource, registry
from visibility.presence import announce
from visibility.recompute import work
from visibility.soft import claims, leases, looks, snapshots
from visibility.soft.client import client, guard
from visibility.soft.keys import base, shards
from visibility.soft.leases import Watch
from visibility.users import user_key

_numbers = count(1)


class Killed(BaseException):
    """Raised at a named point by `kill_at`; nothing on the path catches it."""


def flush() -> None:
    """Forget the soft state, as a Redis that restarts without persistence would.

    Deletes the keys of `VISIBILITY["PREFIX"]` on every shard and master, and no others. For tests: it looks at all keys.
    """
    with guard():
        redis = client()
        names = redis.scan_iter(match=f"{{{settings.PREFIX}:*", count=1_000)
        while chunk := list(islice(names, 1_000)):
            redis.unlink(*chunk)
    pressure.forget()


class Tab:
    """A browser tab as the gate sees one: leases of a session, without a socket. A context manager: leaving it closes the tab.

    Args:
        user: whose tab it is, an instance or a primary key; None for an anonymous visitor.
        resources: watched from the start. `can_watch` is not asked: test it by calling it.
    """

    def __init__(self, user: Any, *resources: str) -> None:
        self.member = f"{user_key(user)}/test{next(_numbers)}"
        self.watching: set[str] = set()
        self.visible = True
        self.watch(*resources)

    def _kind(self, resource: str) -> str:
        if self.visible:
            return "watch"
        return "background" if leases.background_counts(resource) else "parked"

    def _renew(self, resources: set[str], *, switch: bool = False) -> None:
        found = leases.renew([Watch(r, self.member, self._kind(r), None, switch) for r in sorted(resources)])
        announce(found)

    def watch(self, *resources: str) -> None:
        """Watch resources, as a socket's watch frame does: the lease first, then a look at what stands."""
        from visibility.builds.look import look

        fresh = {str(parse_resource(r)) for r in resources}
        self.watching |= fresh
        if fresh:
            self._renew(fresh)
            look(sorted(fresh))

    def unwatch(self, *resources: str) -> None:
        """Stop watching; the last one out leaves the resource visible for `LINGER` seconds."""
        for resource in resources:
            leases.release([(resource, self.member, self._kind(resource))])
            self.watching.discard(resource)

    def heartbeat(self) -> None:
        """Renew every lease of this tab."""
        self._renew(self.watching)

    def hide(self) -> None:
        """The tab goes to the background."""
        self.visible = False
        self._renew(self.watching, switch=True)

    def show(self) -> None:
        """The tab is back in front."""
        self.visible = True
        self._renew(self.watching, switch=True)

    def close(self) -> None:
        """The tab is closed; harmless when repeated."""
        self.unwatch(*self.watching)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def advance(seconds: float) -> None:
    """Let time pass for the soft state: leases, claims, back-offs and lives of keys are `seconds` nearer to their ends.

    The Redis server's clock cannot be set, so everything that is judged by it is moved instead. For tests: it reads all keys.
    """
    gone = int(seconds * 1000)
    with guard():
        redis = client()
        for shard in shards():
            for name in redis.scan_iter(match=f"{base(shard)}:*"):
                left = redis.pttl(name)
                if 0 <= left <= gone:
                    redis.delete(name)
                    continue
                if left > 0:
                    redis.pexpire(name, left - gone)
                _age(redis, name, gone)


def _age(redis: Any, name: bytes, gone: int) -> None:
    role = name.decode(errors="replace").partition("}:")[2].partition(":")[0]
    if role in ("watchers", "background", "holders", "visible", "pending", "claimed", "presence", "online", "node"):
        for member, score in redis.zrange(name, 0, -1, withscores=True):
            redis.zadd(name, {member: score - gone}, xx=True)
    elif role == "snap":
        data_type = registry.find(name.decode(errors="replace").partition(":snap:")[2].partition(":")[0])
        stored = data_type and snapshots.unpack(redis.get(name), data_type.schema)
        if stored:
            moved = stored._replace(built_ms=stored.built_ms - gone, soft_ms=stored.soft_ms - gone)
            redis.set(name, snapshots.pack(moved), keepttl=True)
    elif role == "state":
        for field in ("nb", "soft", "built"):
            value = redis.hget(name, field)
            if value is not None:
                redis.hset(name, field, int(value) - gone)


def drain(lane: str | None = None, limit: int = 1_000) -> int:
    """Build in this process what waits in a lane (None: in all), due or not; answers how many resources were built."""
    built = 0
    for name in settings.LANES if lane is None else [lane]:
        options = settings.lane(name)
        for shard in shards():
            while built < limit:
                _hurry(name, shard)
                owned = claims.claim(name, shard, options.batch, settings.BUILD_LEASE)
                if not owned.rows:
                    break
                built += work(options, owned)
    return built


def _hurry(lane: str, shard: int) -> None:
    with guard():
        redis = client()
        name = f"{base(shard)}:pending:{lane}"
        for resource in redis.zrange(name, 0, -1):
            redis.zadd(name, {resource: 1}, xx=True)


def _state(resource: str) -> tuple[looks.Look, dirty.Marks, bool]:
    found = parse_resource(resource)
    data_type = registry.get(found.type)
    seen = looks.look(data_type.lane, [resource])[resource]
    marks = dirty.marks(data_type, [found.key])[found.key]
    stored = snapshots.unpack(seen.raw, data_type.schema)
    return seen, marks, stored is not None and not marks.same(stored.stamp)


def assert_hot(resource: str) -> None:
    """The last change of this resource took the hot path: it waits for a recompute, or is being built.

    Raises:
        AssertionError: it does not; the message says what stands instead.
    """
    seen, marks, _ = _state(resource)
    if not seen.pending:
        visible = "visible" if seen.visible_ms > 0 else "hidden"
        raise AssertionError(f"{resource} is not hot: it is {visible}, nothing is pending, {marks.changes} changes are marked")


def assert_cold(resource: str) -> None:
    """Nothing is built for this resource now, and a change stands marked: by a flag, a scope, or because no snapshot is left.

    Raises:
        AssertionError: something is pending, or no change is marked.
    """
    seen, marks, behind = _state(resource)
    if seen.pending:
        raise AssertionError(f"{resource} is not cold: it waits for a recompute")
    if not (marks.dirty or behind or not seen.raw):
        raise AssertionError(f"{resource} is not cold: no change of it is marked")


@contextmanager
def kill_at(point: str) -> Iterator[Callable[[], bool]]:
    """Inside this block, the first time the code reaches a named point it ends there, as by SIGKILL; the block swallows it.

    What a path does on its way out of an error is left out, too: claims are not given back, they end by their lease.

    Yields a function that tells whether it happened. The points: `grep -r "reach(" visibility`.
    """
    happened = False

    def reach(name: str) -> None:
        nonlocal happened
        if name == point and not happened:
            happened = True
            builds.give_back = lambda *args, **kwargs: None
            raise Killed(point)

    before, points.hook = points.hook, reach
    give_back = builds.give_back
    try:
        yield lambda: happened
    except Killed:
        pass
    finally:
        points.hook, builds.give_back = before, give_back
