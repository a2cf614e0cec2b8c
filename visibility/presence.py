"""Who is there and who looks: derived from leases, never counted up or down. Transitions are announced once over the cluster.

A crossing is announced by whoever's script call made it; endings that nobody made (a process was killed) by `sweep`, which
pops them atomically. Signals are sent from a thread, never from an event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async

from visibility import push
from visibility.builds import look
from visibility.conf import settings
from visibility.datatypes import DataType, data_type_of, legible, parse_resource, registry
from visibility.signals import became_hidden, became_visible, user_offline, user_online
from visibility.soft import clock, leases, sessions
from visibility.soft.leases import Renewed, Watch
from visibility.users import user_key

DROP_CHUNK = 500


@dataclass(frozen=True)
class SessionInfo:
    """One live socket. `state` is visible or background."""

    id: str
    node: str
    state: str
    since: datetime | None


@dataclass(frozen=True)
class Presence:
    """A user: `state` is visible, background (every tab is hidden) or gone. `last_seen` is None where nothing is known."""

    user_id: str
    online: bool
    state: str
    last_seen: datetime | None
    sessions: tuple[SessionInfo, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The processes that hold this user's sockets."""
        return tuple(dict.fromkeys(one.node for one in self.sessions))


@dataclass(frozen=True)
class Watchers:
    """Live leases of a resource. `count` mixes all that keep it visible; the rest tells them apart.

    `sessions`, `users`, `background` (sessions of hidden tabs) and `holders` name at most 1,000 each; anonymous sessions have
    no user.
    """

    resource: str
    count: int
    watching: int
    hidden: int
    holding: int
    sessions: tuple[str, ...]
    users: tuple[str, ...]
    background: tuple[str, ...]
    holders: tuple[str, ...]

    def __int__(self) -> int:
        return self.count


def _at(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms > 0 else None


def _presence(user: str, found: sessions.Who) -> Presence:
    seats = tuple(SessionInfo(s.sid, s.node, s.state, _at(s.since)) for s in found.seats)
    state = "visible" if any(s.state == "visible" for s in seats) else "background" if seats else "gone"
    heard = max((seat.ends for seat in found.seats), default=0) - int(settings.TTL * 1000)
    return Presence(user, bool(seats), state, _at(max(heard, found.seen)), seats)


def presence(user_ids: Iterable[Any]) -> dict[Any, Presence]:
    """Presence of users, given by primary key or as instances; the answer has the keys that were given."""
    wanted = {one: user_key(one) for one in user_ids}
    found = sessions.who(list(wanted.values()))
    return {one: _presence(name, found[name]) for one, name in wanted.items()}


async def apresence(user_ids: Iterable[Any]) -> dict[Any, Presence]:
    """The asynchronous twin of `presence`."""
    return await sync_to_async(presence, thread_sensitive=False)(list(user_ids))


def watchers(resource: str) -> Watchers:
    """Who watches or holds this resource now."""
    name = str(parse_resource(resource))
    found = leases.counts(name, 1000)
    front = [sessions.split_member(m) for m in found.watchers]
    behind = [sessions.split_member(m) for m in found.hidden]
    users = dict.fromkeys(user for user, _ in front + behind if user != sessions.NOBODY)
    return Watchers(
        resource=name,
        count=found.watch + found.hold + (found.background if leases.background_counts(name) else 0),
        watching=found.watch,
        hidden=found.background,
        holding=found.hold,
        sessions=tuple(sid for _, sid in front),
        users=tuple(users),
        background=tuple(sid for _, sid in behind),
        holders=tuple(m.removeprefix("hold/") for m in found.holders),
    )


async def awatchers(resource: str) -> Watchers:
    """The asynchronous twin of `watchers`."""
    return await sync_to_async(watchers, thread_sensitive=False)(resource)


def is_visible(resource: str) -> bool:
    """Whether anybody watches or holds this resource, or did so less than `LINGER` seconds ago."""
    kind, key = parse_resource(resource)
    return key in leases.visible_among(kind, [key])


async def ais_visible(resource: str) -> bool:
    """The asynchronous twin of `is_visible`."""
    return await sync_to_async(is_visible, thread_sensitive=False)(resource)


def visible(data_type: str | type[DataType] | DataType, limit: int | None = None) -> list[str]:
    """Keys of this type that are visible now, in no order; at most `limit` of them, if given."""
    return list(dict.fromkeys(islice(leases.visible_iter(data_type_of(data_type).name), limit)))


async def avisible(data_type: str | type[DataType] | DataType, limit: int | None = None) -> list[str]:
    """The asynchronous twin of `visible`."""
    return await sync_to_async(visible, thread_sensitive=False)(data_type, limit)


def interests(session: str) -> list[str]:
    """The resources that a session watches, by its id; empty where it is gone."""
    return sessions.interests(session)


async def ainterests(session: str) -> list[str]:
    """The asynchronous twin of `interests`."""
    return await sync_to_async(interests, thread_sensitive=False)(session)


def hold(resource: str, seconds: float, holder: str = "app") -> None:
    """Keep a resource visible for `seconds`, as a watcher would: a consumer that pulls it, an HTTP page, a poller.

    Repeating it renews; it never shortens. What is not current is built, as for the first watcher.

    Raises:
        ValueError: not above 0 seconds, or more than ten years, or a holder that is no text of 1 to 100 characters.
    """
    name = str(parse_resource(resource))
    clock.check_seconds(f"hold({name!r})", seconds)
    announce(leases.renew([Watch(name, _holder(holder), "hold", seconds)]))
    look.look([name])


async def ahold(resource: str, seconds: float, holder: str = "app") -> None:
    """The asynchronous twin of `hold`."""
    await push.in_thread(hold)(resource, seconds, holder)


def release(resource: str, holder: str = "app") -> None:
    """End a hold; harmless where there is none. The resource stays visible for `LINGER` seconds, or by its other leases."""
    leases.release([(str(parse_resource(resource)), _holder(holder), "hold")])


async def arelease(resource: str, holder: str = "app") -> None:
    """The asynchronous twin of `release`."""
    await push.in_thread(release)(resource, holder)


def _holder(holder: str) -> str:
    if not isinstance(holder, str) or not 1 <= len(holder) <= 100 or legible(holder) != holder:
        raise ValueError(f"a holder is a text of 1 to 100 characters, not {holder!r}")
    return f"hold/{holder}"


def announce(renewed: Mapping[str, Renewed]) -> None:
    """Send what a renewal crossed: `became_hidden` where an ending had not been announced, then `became_visible`."""
    for name, one in renewed.items():
        kind = name.partition(":")[0]
        if one.lapsed:
            became_hidden.send_robust(kind, resource=name)
        if one.created:
            became_visible.send_robust(kind, resource=name)


def announce_users(online: Iterable[str] = (), offline: Iterable[str] = (), lapsed: Iterable[str] = ()) -> None:
    """Send user transitions; `lapsed` are those who came back after an ending that had not been announced."""
    for signal, users in ((user_offline, (*offline, *lapsed)), (user_online, online)):
        for user in users:
            signal.send_robust("presence", user_id=user)


def heard_by_anybody() -> bool:
    """Whether any of the four transition signals has a receiver; without one, no thread is needed to send them."""
    return any(signal.receivers for signal in (became_visible, became_hidden, user_online, user_offline))


def sweep(limit: int = 500) -> int:
    """Announce what ended by itself: up to `limit` hidden keys of each type and shard, and users who are gone. Answers how many.

    Safe to run anywhere, any number of times at once. While it answers more than 0 there may be more.
    """
    gone = sessions.expire_online(limit)
    announce_users(offline=gone)
    done = len(gone)
    for data_type in registry:
        keys = leases.expire_visible(data_type.name, limit)
        done += len(keys)
        for key in keys:
            became_hidden.send_robust(data_type.name, resource=f"{data_type.name}:{key}")
    return done


async def asweep(limit: int = 500) -> int:
    """The asynchronous twin of `sweep`."""
    return await push.in_thread(sweep)(limit)


def drop(
    *,
    user: Any = None,
    node: str | None = None,
    session: str | None = None,
    data_type: str | None = None,
    resource: str | None = None,
) -> int:
    """Remove the leases of one user, node, session, data type or resource, in bounded steps without a scan; answers how many.

    Sockets that are alive are told that their watches have ended (`revoked`, reason "dropped"): nothing comes back by itself.

    Raises:
        ValueError: not exactly one of them is given.
    """
    given = {"user": user, "node": node, "session": session, "type": data_type, "resource": resource}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) != 1:
        raise ValueError("drop() takes exactly one of user, node, session, data_type, resource")
    what, value = next(iter(given.items()))
    match what:
        case "user":
            value = user_key(value)
        case "type":
            value = data_type_of(value).name
        case "resource":
            value = str(parse_resource(value))
    # Looked for before anybody is told: the sockets that hear of it end their watches themselves.
    found = [] if what in ("resource", "type") else sessions.members(what, value, DROP_CHUNK)
    push.publish_access(sessions.tell({"kind": "drop", what: value, "reason": "dropped"}))
    if what == "resource":
        return _clear([value])
    if what == "type":
        keys = leases.visible_iter(value)
        done = 0
        while part := list(islice(keys, DROP_CHUNK)):
            done += _clear([f"{value}:{key}" for key in part])
        return done
    done = 0
    while found:
        done += _end(found)
        found = sessions.members(what, value, DROP_CHUNK)
    return done


async def adrop(**what: Any) -> int:
    """The asynchronous twin of `drop`."""
    return await push.in_thread(drop)(**what)


def _clear(names: Sequence[str]) -> int:
    done, rest = 0, list(names)
    while rest:
        gone = sessions.clear(rest)
        done += sum(len(members) for members in gone.values())
        rest = [name for name in rest if gone[name]]
    return done


def _end(found: Sequence[tuple[str, str, list[str]]]) -> int:
    pairs = [(name, sessions.member(user, sid)) for user, sid, names in found for name in names]
    leases.release((name, member, kind) for name, member in pairs for kind in ("watch", "background"))
    announce_users(offline=sessions.leave((user, sid) for user, sid, _ in found))
    return len(pairs)
