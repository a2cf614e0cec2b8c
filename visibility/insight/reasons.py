"""An explanation in plain sentences: why it is hot or cold, what it waits for, what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _, ngettext

if TYPE_CHECKING:
    from visibility.explain import Explanation

OVERDUE = 5.0


def span(seconds: float) -> str:
    """A duration for people: `350 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for size, unit, part, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def why(found: Explanation, *, lane_exists: bool = True) -> list[str]:
    """The sentences, the most telling first."""
    out = list(_visibility(found))
    if found["marks"]["error"]:
        out.append(
            _("What it depends on cannot be told (%(error)s): as long as that is so, every build of it fails.")
            % {"error": found["marks"]["error"]}
        )
    if found["redis"] == "away":
        return out
    out += _work(found)
    out += _failures(found)
    out += _snapshot(found)
    if not lane_exists:
        out.append(_("Its lane %(lane)r is not in VISIBILITY['LANES']: nothing can build it.") % {"lane": found["lane"]})
    if found["shadow"]:
        out.append(_("Its type is in shadow mode: the gate decides and counts, and changes nothing."))
    return out


def _visibility(found: Explanation) -> Iterator[str]:
    leases = found["leases"]
    if found["redis"] == "away":
        yield _("Unknown: Redis does not answer, and who watches is known only there.")
        return
    tabs, hidden, holds = leases["watch"], leases["background"], leases["hold"]
    left = {"left": span(found["visible_for"])}
    parts = []
    if tabs:
        parts.append(ngettext("%(n)d tab watches it", "%(n)d tabs watch it", tabs) % {"n": tabs})
    if holds:
        parts.append(ngettext("%(n)d holder keeps it", "%(n)d holders keep it", holds) % {"n": holds})
    if hidden and leases["background_counts"]:
        parts.append(ngettext("%(n)d hidden tab counts", "%(n)d hidden tabs count", hidden) % {"n": hidden})
    if found["state"] == "hot" and parts:
        yield _("Hot because %(who)s; without a heartbeat that ends in %(left)s.") % {"who": _(" and ").join(parts), **left}
    elif found["state"] == "hot":
        yield _("Hot for %(left)s more: the last watcher has just left, or its lease has ended.") % left
    else:
        yield _("Cold: nobody watches or holds it.")
        yield {
            "defer": _("A change of it is only marked, and built when somebody reads or watches it."),
            "summarise": _("A change of it is only marked, and counted by kind unless it came by a scope."),
            "drop": _("A change of it is dropped; the next read builds it anew."),
        }[found["hidden"]]
    if hidden and not leases["background_counts"]:
        yield ngettext(
            "%(n)d hidden tab is parked: its type declares no background rate, so it waits until the tab is back.",
            "%(n)d hidden tabs are parked: their type declares no background rate, so they wait until the tab is back.",
            hidden,
        ) % {"n": hidden}


def _work(found: Explanation) -> Iterator[str]:
    pending, lock = found["pending"], found["lock"]
    if lock is not None:
        values: dict[str, Any] = {"owner": lock["owner"], "age": span(lock["age"] or 0), "left": span(lock["left"])}
        if lock["left"] > 0:
            yield _("A build runs for %(age)s under claim %(owner)s, which ends in %(left)s unless renewed.") % values
        else:
            yield _("The claim %(owner)s on it ended %(left)s ago without a result; the next drain takes it over.") % values
    if pending is None:
        return
    since = span(pending["age"]) if pending["age"] is not None else "?"
    if pending["due_in"] > 0:
        yield _("It waits for a recompute: its oldest change is %(age)s old, due in %(due)s.") % {
            "age": since, "due": span(pending["due_in"]),
        }  # fmt: skip
    elif pending["due_in"] > -OVERDUE:
        yield _("It waits for a recompute: its oldest change is %(age)s old, due now.") % {"age": since}
    else:
        yield _("It should have been built %(due)s ago and no worker took it: run visibility_doctor.") % {
            "due": span(pending["due_in"]),
        }  # fmt: skip


def _failures(found: Explanation) -> Iterator[str]:
    failures = found["failures"]
    if failures["quarantined_at"]:
        yield _("It is in quarantine after %(n)d failed builds (%(error)s); release it once the cause is gone.") % {
            "n": failures["in_a_row"], "error": failures["error"],
        }  # fmt: skip
    elif failures["in_a_row"]:
        yield ngettext(
            "Its last build failed (%(error)s); it is tried again in %(retry)s.",
            "Its last %(n)d builds failed (%(error)s); it is tried again in %(retry)s.",
            failures["in_a_row"],
        ) % {"n": failures["in_a_row"], "error": failures["error"], "retry": span(failures["retry_in"])}
    if failures["workers_lost"]:
        yield ngettext(
            "%(n)d worker died or hung while building it; if that goes on, it is set aside in quarantine.",
            "%(n)d workers in a row died or hung while building it; if that goes on, it is set aside in quarantine.",
            failures["workers_lost"],
        ) % {"n": failures["workers_lost"]}


def _snapshot(found: Explanation) -> Iterator[str]:
    snapshot, marks = found["snapshot"], found["marks"]
    if snapshot is None:
        yield _("There is no snapshot: whoever reads it first builds it, the others wait for that one build.")
        if marks["dirty"]:
            yield _dirty(found)
        return
    values = {"version": snapshot["version"], "age": span(snapshot["age"])}
    if snapshot["current"] and snapshot["soft_in"] > 0:
        how = (
            _("and is served without asking the database.")
            if snapshot["trusted"]
            else _("and is served after a look at the marks.")
        )
        yield _("Its snapshot, version %(version)s, was built %(age)s ago, is current ") % values + how
    elif snapshot["current"]:
        yield (
            _(
                "Its snapshot, version %(version)s, was built %(age)s ago and is past its soft TTL: it is served, "
                "and a refresh starts behind it."
            )
            % values
        )
    elif found["missed"]:
        yield ngettext(
            "Its snapshot, version %(version)s, was built %(age)s ago and misses %(n)d change: a read builds it anew.",
            "Its snapshot, version %(version)s, was built %(age)s ago and misses %(n)d changes: a read builds it anew.",
            found["missed"],
        ) % {**values, "n": found["missed"]}
    else:
        yield _("Its snapshot, version %(version)s, was built %(age)s ago and is not current: a read builds it anew.") % values
    if marks["dirty"]:
        yield _dirty(found)


def _dirty(found: Explanation) -> str:
    marks = found["marks"]
    values = {"n": marks["changes"], "age": span(marks["age"] or 0)}
    text = ngettext(
        "Its dirty flag stands since %(age)s, for %(n)d change.",
        "Its dirty flag stands since %(age)s, for %(n)d changes.",
        marks["changes"],
    )
    return text % values
