"""What lately happened to a resource: events with the gate's reasons, and a time line of them with builds, marks and failures."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from django.db.models import QuerySet
from django.utils.translation import gettext as _, ngettext

from visibility.datatypes import DataType
from visibility.dirty import Marks
from visibility.exceptions import RedisAway
from visibility.insight import trail
from visibility.insight.reasons import span
from visibility.models import DirtyFlag, Event, ScopeMark
from visibility.soft.looks import Look
from visibility.soft.snapshots import Stored

RECENT = 300
SHOWN = 10
LINES = 40


class EventLine(TypedDict):
    """One event. `about` is `resource` where it is known to concern it, `scope` where it names a scope that the resource depends
    on now (`scope`, else empty), `type` where only the type is known. Times in ISO 8601."""

    id: str
    about: str
    scope: str
    at: str
    processed_at: str | None
    source: str
    model: str
    action: str
    object: str
    outcome: str
    hot: int
    cold: int
    reasons: dict[str, int]
    took_ms: float | None
    error: str


class ScopeLine(TypedDict):
    """A marked scope that a resource depends on; `last_at` in ISO 8601."""

    scope: str
    changes: int
    last_at: str


class Happening(TypedDict):
    """A point of the time line: when (ISO 8601), what (event, built, marked, failed, visible, hidden, pending), in words."""

    at: str
    kind: str
    text: str


def iso(at: dt.datetime | float) -> str:
    """ISO 8601 in UTC, of a datetime or of seconds since 1970."""
    if not isinstance(at, dt.datetime):
        at = dt.datetime.fromtimestamp(at, dt.UTC)
    return at.astimezone(dt.UTC).isoformat(timespec="milliseconds")


def line(event: Event, data_type: str, about: str, scope: str = "") -> EventLine:
    """An event as seen from one data type."""
    decision = event.verdicts.get(data_type) or {}
    return {
        "id": str(event.pk),
        "about": about,
        "scope": scope,
        "at": iso(event.created_at),
        "processed_at": iso(event.processed_at) if event.processed_at else None,
        "source": event.source,
        "model": event.model,
        "action": event.action,
        "object": event.object_pk or event.external_id or "",
        "outcome": event.outcome or "waiting",
        "hot": int(decision.get("hot", 0)),
        "cold": int(decision.get("cold", 0)),
        "reasons": {str(why): int(n) for why, n in (decision.get("reasons") or {}).items() if n},
        "took_ms": event.took_ms,
        "error": event.error,
    }


def _parts(event: Event, data_type: str) -> list[dict[str, Any]]:
    """The event's audiences of this type as its row keeps them; an emitted one's is the body itself."""
    body = event.body if isinstance(event.body, dict) else {}
    return [body, *(part for part in (body.get("audience") or {}).get(data_type) or () if isinstance(part, dict))]


def _scopes(event: Event, data_type: str) -> Iterator[str]:
    return (str(part["scope"]) for part in _parts(event, data_type) if part.get("scope"))


def _named(event: Event, data_type: str, key: str) -> bool:
    """Whether the event names the key: emitted keys, its stored audience, or, where that is a query or a scope, the sample that
    the gate keeps of what went hot. Where it has keys alone, the sample, which is the whole pass's, is not asked."""
    parts = _parts(event, data_type)
    keys = [one for part in parts for one in part.get("keys") or ()]
    if not keys or data_type in (parts[0].get("again") or ()) or any(_scopes(event, data_type)):
        keys += event.verdicts.get(data_type, {}).get("sample") or ()
    return key in [str(one) for one in keys]


def _concerns(event: Event, data_type: str) -> bool:
    return data_type in event.verdicts or data_type in event.data_type.split(",")


def events_of(data_type: DataType, key: str, last: str = "", marks: QuerySet[ScopeMark, Any] | None = None) -> list[EventLine]:
    """The newest events that concern a resource, from the newest `RECENT` of the log and the one that its state names (`last`).

    Where an event's audience is a query without a scope, the log does not say whom it reached; such events are given as about
    the type. `marks`: those of the scopes that the resource depends on.
    """
    name = data_type.name
    events = [event for event in Event.objects.order_by("-id")[:RECENT] if _concerns(event, name)]
    named = {scope for event in events for scope in _scopes(event, name)}
    own = set(marks.filter(scope__in=named).values_list("scope", flat=True)) if marks is not None and named else set()
    found: dict[uuid.UUID, EventLine] = {}
    for event in events:
        scope = next((one for one in _scopes(event, name) if one in own), "")
        direct = str(event.pk) == last or _named(event, name, key)
        found[event.pk] = line(event, name, "resource" if direct else "scope" if scope else "type", scope)
    newest = sorted(found.items(), reverse=True, key=lambda pair: (pair[1]["about"] != "type", pair[0]))[:SHOWN]
    chosen = dict(newest)
    for pk in _uuids([last]):
        if pk not in found and (older := Event.objects.filter(pk=pk).first()):
            chosen[pk] = line(older, data_type.name, "resource")
    return [chosen[pk] for pk in sorted(chosen, reverse=True)]


def _uuids(texts: Iterable[str]) -> list[uuid.UUID]:
    out = []
    for text in texts:
        try:
            out.append(uuid.UUID(text))
        except ValueError:
            continue
    return out


def timeline(
    resource: str,
    events: list[EventLine],
    stored: Stored | None,
    marks: Marks,
    flag: DirtyFlag | None,
    seen: Look | None,
    scopes: Iterable[ScopeLine] = (),
) -> list[Happening]:
    """What is known of a resource's last happenings, newest first, at most `LINES`. A scope whose events stand there is not
    named again."""
    out: list[Happening] = [
        {"at": one["at"], "kind": "event", "text": _event_text(one)} for one in events if one["about"] != "type"
    ]
    told = {one["scope"] for one in events}
    for one in scopes:
        if one["scope"] not in told:
            text = _("Scope %(scope)s marked, × %(n)d in all") % {"scope": one["scope"], "n": one["changes"]}
            out.append({"at": one["last_at"], "kind": "marked", "text": text})
    built = set()
    try:
        notes = trail.read(resource) if seen else []
    except RedisAway:
        notes = []
    for note in notes:
        version = note.get("version")
        if note["kind"] == "built":
            built.add(version)
            text = _built_text(version, note.get("seconds") or 0)
        else:
            text = _("Became visible") if note["kind"] == "visible" else _("Became hidden")
        out.append({"at": iso(note["at"]), "kind": note["kind"], "text": text})
    if stored is not None and stored.version not in built:
        text = _built_text(stored.version, stored.cost_ms / 1000)
        out.append({"at": iso(stored.built_ms / 1000), "kind": "built", "text": text})
    if marks.first_at:
        text = ngettext("Marked dirty; %(n)d change since", "Marked dirty; %(n)d changes since", marks.changes)
        out.append({"at": iso(marks.first_at), "kind": "marked", "text": text % {"n": marks.changes}})
    if flag and flag.quarantined_at:
        out.append({"at": iso(flag.quarantined_at), "kind": "failed", "text": _("Set aside in quarantine")})
    if seen and seen.pending and seen.since_ms:
        out.append({"at": iso(seen.since_ms / 1000), "kind": "pending", "text": _("Oldest change that is not shown yet")})
    out.sort(key=lambda one: one["at"], reverse=True)
    return out[:LINES]


def _event_text(one: EventLine) -> str:
    what = " ".join(filter(None, (one["model"] or one["source"], one["action"], one["object"])))
    why = ", ".join(f"{reason} × {n}" for reason, n in sorted(one["reasons"].items()) if reason != "scope")
    return f"{what}: {decided(one)}" + (f" ({why})" if why else "")


def _built_text(version: Any, seconds: float) -> str:
    return _("Version %(version)s built in %(took)s") % {"version": version, "took": span(seconds)}


def decided(verdict: Mapping[str, Any]) -> str:
    """The counts of a decision (`hot`, `cold`, `reasons`) in words. A scope's mark is one row, however many resources it stands
    for: it is named apart from what is cold."""
    hot, cold = int(verdict.get("hot") or 0), int(verdict.get("cold") or 0)
    scopes = int((verdict.get("reasons") or {}).get("scope") or 0)
    parts = [_("hot %(n)d") % {"n": hot}]
    if cold > scopes or not scopes:
        parts.append(_("cold %(n)d") % {"n": cold - scopes})
    if scopes:
        parts.append(ngettext("%(n)d scope mark", "%(n)d scope marks", scopes) % {"n": scopes})
    return ", ".join(parts)
