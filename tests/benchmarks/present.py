"""The peers of B5: how a project on Channels keeps presence in its database, a committed UPDATE a heartbeat.

channels_presence (django-channels-more-than-present, the fork of django-channels-presence that is maintained) is what one
installs for it today: a row for each room that a socket is in, and `touch`, which updates `last_seen` where `channel_name` is the
socket's, a column without an index of its own. Besides it the least is measured, one row by its primary key; that counts only
where the package is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple
from uuid import uuid4

from channels.db import database_sync_to_async
from django.db import connection
from django.utils import timezone

from tests.app.models import Counter

PACKAGE = "channels_presence"
BATCH = 1_000


class Peer(NamedTuple):
    """`touch` does so many heartbeats, each of another session; `counts`: the bar is held against this one."""

    against: str
    touch: Callable[[], Coroutine[Any, Any, None]]
    counts: bool


def peers(sessions: int, rooms: Sequence[str], touches: int) -> Iterator[Peer]:
    """Make the rows of so many sessions, each in its own room of every kind, and yield who renews them. Not on an event loop."""
    if packaged := find_spec(PACKAGE) is not None:
        names = _enter(sessions, rooms)[:: max(1, sessions // touches)][:touches]
        yield Peer("`touch` of channels_presence through database_sync_to_async", lambda: _touch(names), counts=True)
    Counter.objects.bulk_create([Counter(name=f"session{k}") for k in range(touches)])
    pks = list(Counter.objects.values_list("pk", flat=True))
    yield Peer("one row updated by primary key, `await ….aupdate()`", lambda: _update(pks), counts=not packaged)


def _enter(sessions: int, rooms: Sequence[str]) -> list[str]:
    """Channel names of sessions that are present, as `Room.objects.add` leaves them."""
    from channels_presence.models import Presence, Room

    names = [f"specific.{uuid4().hex}!{uuid4().hex}" for _ in range(sessions)]
    made = Room.objects.bulk_create([Room(channel_name=f"{kind}.{n}") for n in range(sessions) for kind in rooms], BATCH)
    Presence.objects.bulk_create([Presence(room=room, channel_name=names[n // len(rooms)]) for n, room in enumerate(made)], BATCH)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return names


async def _touch(names: Sequence[str]) -> None:
    from channels_presence.models import Presence

    for name in names:
        await database_sync_to_async(Presence.objects.touch)(name)


async def _update(pks: Sequence[int]) -> None:
    now = int(timezone.now().timestamp())
    for pk in pks:
        await Counter.objects.filter(pk=pk).aupdate(value=now)
