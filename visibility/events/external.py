"""Events from outside the ORM: a broker's message, a webhook, a device. The same id is applied once, an older version never."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models, router, transaction
from django.utils import timezone

from visibility.conf import settings
from visibility.datatypes import DataType, check_key, data_type_of, legible
from visibility.events import outbox
from visibility.events.audience import Part
from visibility.events.collect import stamp
from visibility.events.commit import submit
from visibility.events.handlers import Collected
from visibility.exceptions import BadDeclaration, PayloadTooLarge
from visibility.models import AppliedVersion, Event, event_id
from visibility.points import reach
from visibility.sql.insert import insert_new
from visibility.sql.retry import retried

_encoder = DjangoJSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
BIGGEST = 2**63 - 1
# NUL in JSON text, and not a backslash that is followed by such letters: PostgreSQL keeps none.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """What became of an emitted event. True where something of it was applied.

    `duplicate`: its id was seen before. `ignored`: keys that have this version or a newer one.
    """

    event_id: UUID
    applied: tuple[str, ...] = ()
    scope: str | None = None
    duplicate: bool = False
    ignored: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.applied or self.scope)


def emit(
    data_type: str | type[DataType] | DataType,
    keys: Iterable[Any] | models.QuerySet[Any] = (),
    scope: str | None = None,
    *,
    id: str | None = None,  # noqa: A002
    version: int | None = None,
    tenant: str = "",
    payload: Any = None,
) -> Emitted:
    """Say that resources changed.

    In one transaction, which joins the caller's: the event's record, the versions, and `DataType.apply(key, version, payload)`
    for each key that is newer. The gate runs after the commit.

    Args:
        keys, scope: the audience, as in `Audience`. A scope needs `DataType.scopes`.
        id: the sender's id of the event, 1 to 200 characters. Seen before within `EVENT_TTL` for this type: nothing happens.
        version: of the keys' source. A key whose last version is this or a higher one is left out.
        tenant: whom rate limits count it for, up to 100 characters.
        payload: for `apply`; JSON-able, at most `LIMITS["payload_bytes"]`.

    Raises:
        UnknownDataType, BadResource, BadDeclaration: no such type; not a key; an audience or argument that makes no sense.
        PayloadTooLarge: names the type.
        Whatever `apply` raises; then nothing of the event stays, and the same id may be sent again.
    """
    found = data_type_of(data_type)
    part = _audience(found, keys, scope, version)
    _check(found, id, version, tenant)
    body = _body(found, part, payload)
    using = router.db_for_write(Event)
    connection = connections[using]
    item = Collected(event_id(), using, time.time(), tenant=tenant)
    applies = found.has_apply and part.keys
    if id is None and version is None and not applies and not found.must_deliver and settings.GATE != "worker":
        item.add(found.name, [part])
        submit(item, connection)
        return Emitted(event_id=item.id, applied=part.keys, scope=scope)
    # Two senders of one key may deadlock.
    return retried(lambda: _record(found, part, item, id, version, payload, body), using)


def _record(
    data_type: DataType, part: Part, item: Collected, name: str | None, version: int | None, payload: Any, body: dict[str, Any]
) -> Emitted:
    """Everything of an event in one transaction."""
    using, connection = item.using, connections[item.using]
    row = outbox.Row(
        item.id, Event.Source.EMIT.value, [data_type.name], stamp(item.at), using=using, external_id=name, version=version,
        tenant=item.tenant, body=body,
    )  # fmt: skip
    with transaction.atomic(using=using):
        if not outbox.write_once(connection, row):
            return Emitted(event_id=item.id, duplicate=True)
        reach("emit.written")
        newer = part.keys
        if version is not None:
            newer = tuple(key for key in part.keys if _raise_version(using, data_type.name, key, version))
        ignored = tuple(key for key in part.keys if key not in set(newer))
        if ignored:
            _note_ignored(using, item.id, body, newer, part.scope)
        if data_type.has_apply:
            for key in newer:
                data_type.apply(key, version, payload)
        if newer or part.scope:
            item.written = using
            item.audiences = {data_type.name: [part._replace(keys=newer)]}
            submit(item, connection)
    return Emitted(event_id=item.id, applied=newer, scope=part.scope, ignored=ignored)


async def aemit(
    data_type: str | type[DataType] | DataType,
    keys: Iterable[Any] | models.QuerySet[Any] = (),
    scope: str | None = None,
    *,
    id: str | None = None,  # noqa: A002
    version: int | None = None,
    tenant: str = "",
    payload: Any = None,
) -> Emitted:
    """The asynchronous twin of `emit`."""
    return await sync_to_async(emit)(data_type, keys, scope, id=id, version=version, tenant=tenant, payload=payload)


def _audience(data_type: DataType, keys: Any, scope: str | None, version: int | None) -> Part:
    name = data_type.name
    if isinstance(keys, (str, bytes)):
        raise BadDeclaration(f"emit({name!r}, keys={keys!r}): give an iterable of keys, e.g. [{keys!r}]")
    if scope is not None:
        if not data_type.has_scopes:
            raise BadDeclaration(f"emit({name!r}, scope={scope!r:.80}): {name!r} does not define scopes(key)")
        scope = check_key(name, scope)
    if version is not None and scope is not None:
        raise BadDeclaration(f"emit({name!r}): a version belongs to keys, not to a scope")
    if isinstance(keys, models.QuerySet) and scope is not None and not data_type.has_apply:
        # Left to the gate, which narrows it; another process finds whoever depends on the scope.
        return Part((), keys, scope)
    texts = dict.fromkeys(check_key(name, one.pk if isinstance(one, models.Model) else _single(one)) for one in keys)
    if not texts and scope is None:
        raise BadDeclaration(f"emit({name!r}) names neither keys nor a scope")
    return Part(tuple(texts), None, scope)


def _single(row: Any) -> Any:
    return row[0] if isinstance(row, tuple) and len(row) == 1 else row


def _check(data_type: DataType, name: Any, version: Any, tenant: Any) -> None:
    where = f"emit({data_type.name!r}):"
    if name is not None and not (isinstance(name, str) and 1 <= len(name) <= 200 and legible(name) == name):
        raise BadDeclaration(f"{where} id is text of 1 to 200 characters, not {name!r:.80}")
    if version is not None and not (type(version) is int and -BIGGEST <= version <= BIGGEST):
        raise BadDeclaration(f"{where} version is an integer of 64 bits, not {version!r:.80}")
    if not (isinstance(tenant, str) and len(tenant) <= 100 and legible(tenant) == tenant):
        raise BadDeclaration(f"{where} tenant is text of up to 100 characters, not {tenant!r:.80}")


def _body(data_type: DataType, part: Part, payload: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"keys": list(part.keys)}
    if part.scope is not None:
        body["scope"] = part.scope
    if payload is None:
        return body
    try:
        text = _encoder.encode(payload)
        size = len(text.encode())
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadDeclaration(f"emit({data_type.name!r}): the payload is not JSON: {error}") from error
    if _NUL.search(text):
        raise BadDeclaration(f"emit({data_type.name!r}): the payload has NUL in a text, which no database is sure to keep")
    limit = settings.LIMITS["payload_bytes"]
    if size > limit:
        raise PayloadTooLarge(
            f"emit({data_type.name!r}): the payload has {size} bytes; VISIBILITY['LIMITS']['payload_bytes'] is {limit}. "
            "Send a reference, and let apply() fetch the rest"
        )
    body["payload"] = json.loads(text)
    return body


def _raise_version(using: str, data_type: str, key: str, version: int) -> bool:
    """Whether this version is newer than the stored one, which it replaces."""
    rows = AppliedVersion.objects.using(using).filter(data_type=data_type, key=key, version__lt=version)
    now = timezone.now()
    for _ in range(3):
        if rows.update(version=version, updated_at=now):
            return True
        if insert_new(AppliedVersion, {"data_type": data_type, "key": key, "version": version, "updated_at": now}, using):
            return True
        # There is one by now; if a lower one was inserted between the two statements, the next round raises it.
    return False


def _note_ignored(using: str, pk: UUID, body: dict[str, Any], newer: tuple[str, ...], scope: str | None) -> None:
    """The log says what was left out, and a re-drive must not act on it."""
    row = Event.objects.using(using).filter(pk=pk)
    if newer or scope:
        row.update(body={**body, "keys": list(newer)})
    else:
        row.update(outcome=Event.Outcome.IGNORED, processed_at=timezone.now())
