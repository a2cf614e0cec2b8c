"""A client, and connections kept beside its pool for single commands, which are nearly all that this package sends.

For each command redis-py takes a connection from the pool, looks whether it is alive, measures, wraps it in retries and gives it
back: twice the time of the round trip. A kept connection is used as it lies, and thrown away at the first sign of trouble.
"""

from __future__ import annotations

from typing import Any

from hiredis import pack_command
from redis.connection import Connection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError, ReadOnlyError, ResponseError

# How many connections a pool may have that nobody has bounded.
PLENTY = 65_536


class Sent:
    """A command of `Line.send`: ask for its `answer` or `drop` it, once. Where no connection is kept, it has not left yet."""

    __slots__ = ("_command", "_line", "_one")

    def __init__(self, line: Line, one: Any, command: tuple[Any, ...]) -> None:
        self._line, self._one, self._command = line, one, command

    @property
    def left(self) -> bool:
        """Whether it is on its way."""
        return self._one is not None

    def answer(self) -> Any:
        """What `ask` would answer."""
        one, self._one = self._one, None
        if one is None:
            return self._line.redis.execute_command(*self._command)
        return self._line._exchange(one, self._command, sent=True)

    def drop(self) -> None:
        """Whatever is answered, nobody waits for it."""
        one, self._one = self._one, None
        if one is not None:
            self._line._lose(one)


class Line:
    """`redis` is the client; `ask` runs one command, `send` begins one. Safe over threads: one in use is nobody else's.

    Only a plain server's connections are kept. What a Cluster or Sentinel moves about, and a pool that the URL bounds, is asked
    through the client.
    """

    __slots__ = ("_idle", "_moves", "_pool", "redis")

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        pool = getattr(redis, "connection_pool", None)
        self._pool: Any = pool if type(pool) is ConnectionPool and pool.max_connections >= PLENTY else None
        # Servers that are about to move say so, to versions of redis-py that listen.
        self._moves = hasattr(Connection, "should_reconnect")
        # Appending and popping are atomic.
        self._idle: list[Any] = []

    def ask(self, *command: Any) -> Any:
        """The server's answer to one command, sent once more after a broken connection. Its parts are text, bytes or numbers.

        Raises:
            redis.exceptions.RedisError: as the client does.
        """
        if self._pool is None:
            return self.redis.execute_command(*command)
        return self._exchange(self._kept(), command)

    def send(self, *command: Any) -> Sent:
        """The same in two steps: the command is on its way, its answer is waited for later."""
        if self._pool is None:
            return Sent(self, None, command)
        one = self._kept()
        try:
            one.send_packed_command([pack_command(command)])
        except BaseException as error:
            self._lose(one)
            if not isinstance(error, RedisConnectionError):
                raise
            return Sent(self, None, command)
        return Sent(self, one, command)

    def _kept(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()

    def _lose(self, one: Any) -> None:
        # Whatever is still to come on it is nobody's answer.
        one.disconnect()
        self._pool.release(one)

    def _exchange(self, one: Any, command: tuple[Any, ...], *, sent: bool = False) -> Any:
        whole = False
        try:
            if not sent:
                one.send_packed_command([pack_command(command)])
            answer = one.read_response()
            whole = not (self._moves and one.should_reconnect())
            return answer
        except ResponseError as error:
            # Read-only: another server may answer at this address by now, to whoever connects anew.
            whole = not isinstance(error, ReadOnlyError)
            raise
        except RedisConnectionError:
            # The server may have gone and come back while it lay here. The pool looks before it gives one.
            return self.redis.execute_command(*command)
        finally:
            if whole:
                self._idle.append(one)
            else:
                self._lose(one)
