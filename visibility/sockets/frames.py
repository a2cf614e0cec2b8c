"""The socket protocol as pure functions: what a client's frame says, and how the server's frames read. No I/O.

Close codes: 4000–4499 mean "connect again, with back-off", 4500–4999 mean "stop".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from visibility.datatypes import parse_resource
from visibility.exceptions import BadResource, UnknownDataType

MAX_SAFE = 2**53 - 1
DETAIL = 300

HEARTBEAT_LOST = 4408
SLOW_READER = 4413
TOO_FAST = 4429
TOO_MANY_SOCKETS = 4430
TRY_LATER = 4450
SESSION_ENDED = 4501
ORIGIN_REFUSED = 4503
NO_SUCH_PATH = 4504
ABUSE = 4520

Code = Literal["bad_frame", "unknown_resource", "forbidden", "limit", "rate"]
Id = int | str | None


class BadFrame(Exception):
    """A frame that is answered by an error frame."""

    def __init__(self, code: Code, detail: str, id_: Id = None, resource: str | None = None) -> None:
        super().__init__(detail)
        self.code: Code = code
        self.detail, self.id, self.resource = detail, id_, resource


class Watch(NamedTuple):
    """Watch these; `since` is what the client already shows. `refused` could not be parsed, each with its reason."""

    id: Id
    resources: list[str]
    since: dict[str, int]
    refused: list[BadFrame]


class Unwatch(NamedTuple):
    """Stop watching these."""

    id: Id
    resources: list[str]


class State(NamedTuple):
    """The tab came to the front, or went out of sight."""

    visible: bool


class Ping(NamedTuple):
    """I live; this is what I have."""

    have: dict[str, int]


class Ack(NamedTuple):
    """This version is on the screen now."""

    resource: str
    version: int


Frame = Watch | Unwatch | State | Ping | Ack


class Watching(TypedDict):
    """What a `watched` frame says of one resource. `version` 0: nothing was ever built."""

    watchers: int
    version: int


class Row(TypedDict):
    """What a client frame may carry; every part of it is checked."""

    op: Any
    id: Any
    resources: Any
    since: Any
    have: Any
    visible: Any
    resource: Any
    version: Any


def parse(text: str | None, limit: int = 200) -> Frame:
    """The frame in this text. At most `limit` resources in one frame.

    Raises:
        BadFrame: everything that is not exactly a frame of the protocol.
    """
    if text is None:
        raise BadFrame("bad_frame", "a frame is JSON text, not bytes")
    try:
        row = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadFrame("bad_frame", "a frame is one JSON object") from None
    if not isinstance(row, dict):
        raise BadFrame("bad_frame", "a frame is one JSON object")
    op, id_ = row.get("op"), _id(row.get("id"))
    match op:
        case "watch":
            return _watch(row, id_, limit)
        case "unwatch":
            names = _names(row.get("resources"), id_, limit)
            return Unwatch(id_, [name for name in names if _printable(name)])
        case "state":
            if not isinstance(row.get("visible"), bool):
                raise BadFrame("bad_frame", "state needs visible: true or false", id_)
            return State(row["visible"])
        case "ping":
            return Ping(_versions(row.get("have"), "have", id_, limit))
        case "ack":
            if not isinstance(row.get("resource"), str) or not _is_version(row.get("version")):
                raise BadFrame("bad_frame", "ack needs a resource and a version", id_)
            return Ack(row["resource"], row["version"])
    raise BadFrame("bad_frame", "op is one of watch, unwatch, state, ping, ack", id_)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _id(value: Any) -> Id:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SAFE):
        return value
    if isinstance(value, str) and len(value) <= 64:
        return value
    raise BadFrame("bad_frame", "id is a whole number or a text of at most 64 characters")


def _is_version(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SAFE


def _printable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(value: Any, id_: Id, limit: int) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadFrame("bad_frame", "resources is a list of texts like 'feed:42'", id_)
    names = list(dict.fromkeys(value))
    if len(names) > limit:
        raise BadFrame("limit", f"at most {limit} resources in a frame", id_)
    return names


def _versions(value: Any, what: str, id_: Id, limit: int) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(_is_version(version) for version in value.values()):
        raise BadFrame("bad_frame", f"{what} is an object of resource: version", id_)
    if len(value) > limit:
        raise BadFrame("limit", f"at most {limit} resources in a frame", id_)
    return value


def _watch(row: Mapping[str, Any], id_: Id, limit: int) -> Watch:
    since = _versions(row.get("since"), "since", id_, limit)
    good: list[str] = []
    refused: list[BadFrame] = []
    for name in _names(row.get("resources"), id_, limit):
        try:
            good.append(str(parse_resource(name)))
        except (BadResource, UnknownDataType) as error:
            refused.append(BadFrame("unknown_resource", str(error)[:DETAIL], id_, name[:260]))
    return Watch(id_, good, since, refused)


def dump(frame: Mapping[str, Any]) -> str:
    """A frame as JSON text; ASCII, so that whatever a client sent can be said back."""
    return json.dumps(frame, separators=(",", ":"), ensure_ascii=True)


def hello(session: str, heartbeat: float, limits: Mapping[str, Any]) -> str:
    return dump({"op": "hello", "session": session, "heartbeat": heartbeat, "limits": limits})


def watched(id_: Id, resources: Mapping[str, Watching]) -> str:
    return dump({"op": "watched", "id": id_, "resources": resources})


def unwatched(id_: Id, resources: Iterable[str]) -> str:
    return dump({"op": "unwatched", "id": id_, "resources": list(resources)})


def watchers(resource: str, count: int) -> str:
    return dump({"op": "watchers", "resource": resource, "count": count})


def pong(versions: Mapping[str, int]) -> str:
    return dump({"op": "pong", "versions": versions})


def revoked(resource: str, reason: str) -> str:
    return dump({"op": "revoked", "resource": resource, "reason": reason})


def error(code: Code, detail: str, id_: Id = None, resource: str | None = None) -> str:
    return dump({"op": "error", "id": id_, "code": code, "detail": detail, "resource": resource})


def update(resource: str, version: int, body: bytes, state: str, event_ms: int, built_ms: int, missed: int = 0) -> str:
    """An update frame around a snapshot's JSON bytes, which are passed through undecoded. Times are seconds since 1970."""
    event = f"{event_ms / 1000:.3f}" if event_ms else "null"
    return (
        f'{{"op":"update","resource":{json.dumps(resource)},"version":{version},"data":{body.decode()},'
        f'"state":"{state}","event_at":{event},"built_at":{built_ms / 1000:.3f},"missed":{missed}}}'
    )
