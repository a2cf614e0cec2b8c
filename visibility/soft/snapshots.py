"""Snapshots: a small text header before the JSON bytes of a build, so that the body passes through undecoded.

Header, one line: `v1|version|schema|built_ms|event_ms|soft_ms|cost_ms|stamp`. Times are the Redis clock's, in ms.
A header that does not parse, or another schema, is a miss (rows of another release are never decoded).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder

from visibility.conf import settings
from visibility.exceptions import BadSnapshot

_encoder = DjangoJSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Stored(NamedTuple):
    """A snapshot as it lies in Redis. `stamp` is the state of the marks before its build read the source."""

    version: int
    schema: int
    built_ms: int
    event_ms: int
    soft_ms: int
    cost_ms: int
    stamp: str
    body: bytes


@dataclass(frozen=True, eq=False, init=False)
class Snapshot:
    """The result of a read.

    `state`: fresh (known to be current), stale (served while a newer one is on its way, or none could be built),
    rebuilt (built for this read). `version`: higher for what was read later; 0 for the view of a transaction. `missed`: changes
    since it was built. `summary`: for a type with
    `Hidden.SUMMARISE` that was rebuilt now, what was missed by kind: `{"comment": 12, "like": 3}`. `body` is the JSON; `data`
    decodes it.
    """

    resource: str
    version: int
    body: bytes
    state: str
    built_ms: int
    event_ms: int
    missed: int = 0
    summary: Mapping[str, int] = field(default_factory=dict)

    def __init__(
        self, resource: str, version: int, body: bytes, state: str, built_ms: int, event_ms: int, missed: int = 0,
        summary: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        # One call for all fields: every read makes one of these.
        vars(self).update(
            resource=resource, version=version, body=body, state=state, built_ms=built_ms, event_ms=event_ms, missed=missed,
            summary=summary or {},
        )  # fmt: skip

    @property
    def data(self) -> Any:
        """The decoded body, the same object each time."""
        own = vars(self)
        if "_data" not in own:
            own["_data"] = json.loads(self.body)
        return own["_data"]

    @property
    def built_at(self) -> datetime:
        return datetime.fromtimestamp(self.built_ms / 1000, UTC)

    @property
    def event_at(self) -> datetime | None:
        """When the newest change that this snapshot is known to show happened; None if it was built without one."""
        return datetime.fromtimestamp(self.event_ms / 1000, UTC) if self.event_ms else None


def encode_body(resource: str, data: Any, limit: int | None = None) -> bytes:
    """Data as JSON bytes.

    Args:
        limit: the most bytes, where the caller has looked it up already.

    Raises:
        BadSnapshot: not JSON-able, or over `LIMITS["snapshot_bytes"]`; names the resource.
    """
    try:
        body = _encoder.encode(data).encode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadSnapshot(f"the build of {resource!r} returned what JSON cannot hold: {error}") from error
    limit = settings.LIMITS["snapshot_bytes"] if limit is None else limit
    if len(body) > limit:
        raise BadSnapshot(
            f"the build of {resource!r} returned {len(body)} bytes; VISIBILITY['LIMITS']['snapshot_bytes'] is {limit}"
        )
    return body


def pack(stored: Stored) -> bytes:
    """Header and body as one string of bytes."""
    version, schema, built, event, soft, cost, stamp, body = stored
    return b"v1|%d|%d|%d|%d|%d|%d|%s\n%b" % (version, schema, built, event, soft, cost, stamp.encode(), body)


def unpack(raw: bytes | None, schema: int) -> Stored | None:
    """The snapshot in these bytes; None if there is none, or it is of another format or schema."""
    if not raw:
        return None
    head, newline, body = raw.partition(b"\n")
    parts = head.split(b"|")
    if not newline or len(parts) != 8 or parts[0] != b"v1":
        return None
    try:
        version, own, built_ms, event_ms, soft_ms, cost_ms = map(int, parts[1:7])
    except ValueError:
        return None
    if own != schema:
        return None
    return Stored(version, own, built_ms, event_ms, soft_ms, cost_ms, parts[7].decode(), body)
