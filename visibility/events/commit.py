"""Around the commit: the events' rows just before it, in the same transaction, and one gate pass after it.

Rows are held back and written by one statement a transaction, when `commit()` is called on the connection. It stands in a
savepoint: what fails there must not cost the host its transaction. Whoever looks at `Event.objects` sooner sees them, too.

After the commit the gate runs before the host's own hooks. Ours stand as one block at the front of `run_on_commit`: a group of
events for each set of savepoints that was open, so that a savepoint's rollback takes its group away, and behind them the pass
itself. Inside a `TestCase`, which never commits, each event is written at once and is a hook of its own, where
`captureOnCommitCallbacks` looks for it. In autocommit the pass runs at once. In manual transaction management, where Django
refuses hooks, ours stand in its list all the same and run when autocommit is switched on.

Nothing here raises into the host: what goes wrong is logged, and the outbox has the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import ref

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from visibility.events import outbox
from visibility.models import DirtyFlag, EventManager
from visibility.points import reach

if TYPE_CHECKING:
    from visibility.events.handlers import Collected

logger = logging.getLogger("visibility")
HELD_BACK = 500
IN_MEMORY = 2_000
_SAVEPOINTS = "visibility_savepoints"


class _Group:
    """Events collected while the same savepoints were open.

    `held`: those of them whose row is still to be written. `more`: where there are very many, events that only their rows know.
    """

    __slots__ = ("held", "items", "more", "pass_")

    def __init__(self, pass_: _Pass) -> None:
        self.pass_ = pass_
        self.items: list[Collected] = []
        self.held: list[Collected] = []
        self.more: list[tuple[str, UUID]] = []

    def committed(self) -> None:
        self.pass_.ready += self.items
        self.pass_.more += self.more


class _Pass:
    """The gate pass of one transaction, behind its groups. The other fields find the group of the next event quickly."""

    __slots__ = ("group", "hooks", "ids", "more", "ready")

    def __init__(self) -> None:
        self.ready: list[Collected] = []
        self.more: list[tuple[str, UUID]] = []
        self.hooks: list[Any] = []
        self.ids: list[str | None] = []
        self.group = _Group(self)

    def run(self) -> None:
        items, more = self.ready, self.more
        self.ready, self.more, self.hooks, self.group = [], [], [], _Group(self)
        deliver(items, more)


class _Alone:
    """The gate pass of one event."""

    def __init__(self, item: Collected) -> None:
        self.item = item

    def run(self) -> None:
        deliver([self.item])


def submit(item: Collected, connection: BaseDatabaseWrapper) -> None:
    """Let the event's row, where it has one, be written in what is open on this connection, and the gate run after its commit."""
    hooks = connection.run_on_commit
    now: _Pass | None = connection.__dict__.get("visibility_pass")
    if now is not None and now.hooks is hooks and hooks and now.ids == connection.savepoint_ids:
        _put(connection, now.group, item)
    elif not connection.in_atomic_block and connection.get_autocommit():
        _write_now(connection, item)
        deliver([item])
    elif in_testcase(connection):
        _write_now(connection, item)
        connection.on_commit(_Alone(item).run, robust=True)
    else:
        _put(connection, _group(connection), item)


def _put(connection: BaseDatabaseWrapper, group: _Group, item: Collected) -> None:
    group.items.append(item)
    if item.row is not None:
        group.held.append(item)
        if len(group.held) >= HELD_BACK and not _by_hand(connection):
            # The savepoints of the group are the ones that are open: the rows share its fate.
            _write(connection, group.held)
            if len(group.items) > IN_MEMORY:
                # A long import: from here on, the rows remember.
                rows = {one.id: one.written for one in group.held if one.written is not None}
                group.items = [one for one in group.items if one.id not in rows]
                group.more += [(alias, pk) for pk, alias in rows.items()]
            group.held = []


def _write_now(connection: BaseDatabaseWrapper, item: Collected) -> None:
    if item.row is not None:
        _write(connection, [item])
        reach("event.written")


def _write(connection: BaseDatabaseWrapper, items: Sequence[Collected], *, keep: bool = False) -> None:
    """Write the rows of these events. `keep`: they may go with a savepoint that the events do not hang on; write them again."""
    rows: list[outbox.Row] = []
    try:
        rows = [item.row() for item in items if item.row is not None]
        if rows and outbox.write(connection, rows) and not keep:
            for item in items:
                item.written, item.row = connection.alias, None
    except Exception:
        logger.exception("%d events could not be written in their transaction; they are written after it", len(items))


def _own(hooks: Sequence[Any]) -> Iterator[tuple[int, set[Any], _Group | _Pass]]:
    """Our block among the commit hooks, up to and with the pass."""
    for n, (sids, func, _robust) in enumerate(hooks):
        owner = getattr(func, "__self__", None)
        if isinstance(owner, (_Group, _Pass)):
            yield n, sids, owner
        if type(owner) is _Pass:
            return


def _group(connection: BaseDatabaseWrapper) -> _Group:
    """The group for the savepoints that are open now, its hook at the front, before the pass.

    Savepoints that were released meanwhile can no longer be rolled back alone: their groups join the one around them, so
    that there are never more groups than open savepoints.
    """
    hooks: list[Any] = connection.run_on_commit
    active = [sid for sid in connection.savepoint_ids if sid is not None]
    block = list(_own(hooks))
    if block and isinstance(block[-1][2], _Pass):
        now = block[-1][2]
    else:
        now, block = _Pass(), []
        hooks.insert(0, (set(), now.run, True))
        _before_commit(connection)
        connection.__dict__[_SAVEPOINTS].clear()
    groups: dict[tuple[str, ...], _Group] = {}
    for n, sids, old in reversed(block):
        if isinstance(old, _Group):
            del hooks[n]
            kept = groups.setdefault(tuple(sid for sid in active if sid in sids), _Group(now))
            kept.items[:0], kept.held[:0], kept.more[:0] = old.items, old.held, old.more
    current = groups.setdefault(tuple(active), _Group(now))
    place = next(n for n, _sids, owner in _own(hooks) if owner is now)
    outer_first = sorted(groups.items(), key=lambda pair: len(pair[0]))
    hooks[place:place] = [(set(ids), group.committed, True) for ids, group in outer_first]
    now.hooks, now.ids, now.group = hooks, list(connection.savepoint_ids), current
    connection.__dict__["visibility_pass"] = now
    return current


def _by_hand(connection: BaseDatabaseWrapper) -> bool:
    """Whether a savepoint may be open that no atomic block stands for: its rollback takes rows away, and no event of ours."""
    return any(sid not in connection.savepoint_ids for sid in connection.__dict__.get(_SAVEPOINTS, ()))


def _before_commit(connection: BaseDatabaseWrapper) -> None:
    """From now on, `commit()` on this connection writes the rows that were held back first, and its savepoints are known."""
    if "commit" in connection.__dict__:
        return
    made: dict[str, None] = connection.__dict__.setdefault(_SAVEPOINTS, {})
    # Not the connection itself: a cycle would keep it open until the next garbage collection.
    weak = ref(connection)

    def commit() -> None:
        own = weak()
        if own is not None:
            _write_held(own)
            reach("event.written")
            type(own).commit(own)

    def savepoint() -> str | None:
        own = weak()
        sid = None if own is None else type(own).savepoint(own)
        if sid:
            made[sid] = None
        return sid

    def savepoint_commit(sid: str) -> None:
        own = weak()
        if own is not None:
            type(own).savepoint_commit(own, sid)
            # Those inside it end with it.
            while sid in made:
                made.popitem()

    connection.__dict__.update(commit=commit, savepoint=savepoint, savepoint_commit=savepoint_commit)


def _write_held(connection: BaseDatabaseWrapper) -> None:
    held = [item for _, _, owner in _own(connection.run_on_commit) if isinstance(owner, _Group) for item in owner.held]
    if held:
        _write(connection, held)


def show(using: Iterable[BaseDatabaseWrapper] | None = None) -> None:
    """Write the rows that this thread's open transactions hold back: somebody is about to look for them."""
    for connection in using if using is not None else connections.all(initialized_only=True):
        if connection.needs_rollback or not connection.run_on_commit:
            continue
        for _, sids, owner in list(_own(connection.run_on_commit)):
            if isinstance(owner, _Group) and owner.held:
                same = sids == {sid for sid in connection.savepoint_ids if sid is not None} and not _by_hand(connection)
                _write(connection, owner.held, keep=not same)
                if same:
                    owner.held = []


EventManager.write_held = staticmethod(show)


def in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django's `TestCase` holds the outermost transaction, which is never committed."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def deliver(items: Sequence[Collected], more: Sequence[tuple[str, UUID]] = ()) -> None:
    """Run the gate over committed events, and over `more` that are known by the database and id of their rows. Never raises."""
    if not items and not more:
        return
    try:
        connection = connections[router.db_for_write(DirtyFlag)]
        if not in_testcase(connection):
            if connection.in_atomic_block:
                # The change is committed on one database while a transaction on the marks' own is still open: a mark made
                # now would go with that one's rollback.
                for item in items:
                    submit(item, connection)
                return
            if not connection.get_autocommit():
                return
        from visibility import gate

        gate.run(items, more)
    except Exception:
        logger.exception("the gate failed; %d events wait for the maintenance loop", len(items))
