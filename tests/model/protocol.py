"""An exhaustive check of the hot/cold protocol for one resource, over every interleaving of its parts.

    python tests/model/protocol.py                 all rules on: no counterexample in any scenario
    python tests/model/protocol.py --without RULE  one rule off: the shortest history of all scenarios that breaks an invariant
    python tests/model/protocol.py --quick         the two smallest scenarios, in seconds

Parts: commits with their gates (one may be shed by a full lane), a watcher (watch, heartbeat, leave), drains, a reader
that builds, a flush, a crash or stall, a second owner. A state is what the database and Redis hold, plus where each part
stands. `d` is the truth (a counter); a snapshot is the truth as some build saw it. The steps are those of the code: a Lua
script is one step, a statement is one step.

Three reductions keep the states few. Each leaves out only histories that another history stands for:

1. *Comparisons instead of counts.* Marks, generations, epochs and tokens only grow, and the code only asks whether one moved
   since it was read. So a state holds that answer (`stamped`, `gen`, `epoch`, `newer`, `still`), not the count; it can turn
   from yes to no, never back. Two states with the same answers have the same futures.
2. *Steps of no concern to others are not alone.* A step that reads and writes only its own part's place commutes with every step
   of the others, so it is taken together with the one before or after: a watch begins with its lease; what a read serves is
   judged where it is decided; a gate is processed with its last effect, which raises the floor as early as can be. A crash
   among such steps leaves what a crash before them leaves.
3. *What can have no effect any more is over.* A build that lost its claim is refused when it stores, a look that moved is
   refused when it wants to trust: they end at once. What the watcher shows is what the snapshot holds once all is quiet, so it is
   no part of the state.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Snap(NamedTuple):
    """A stored snapshot. `stamped`: no mark was written since before its build read the source."""

    value: int
    stamped: bool


class Drain(NamedTuple):
    """A build in flight, of a job or of a reader; in a state they stand by age. `gen`, `epoch`, `marks`: not moved since it read
    them. `clean`: it read that none stood. `newer`: the stored snapshot, if any, has an older token. `own`: its claim lives."""

    stage: str
    gen: bool = True
    epoch: bool = True
    marks: bool = False
    clean: bool = False
    newer: bool = True
    value: int = 0
    own: bool = True


class Look(NamedTuple):
    """What a look script answered, whose marks are read after it. `maybe`: fresh, unless a mark says no. `still`: neither
    generation nor epoch nor snapshot moved since. `bad`: it is older than a change whose gate had ended when the read began."""

    maybe: bool
    still: bool = False
    bad: bool = False


NO = Look(False)
Part = tuple[str, Look]
OUT, IN, IDLE = ("out", NO), ("in", NO), ("idle", NO)


class S(NamedTuple):
    """One state of the whole. `lost`: events whose gate crashed. `floor`: the newest change whose gate has ended."""

    d: int = 0
    dirty: bool = False
    lost: int = 0
    visible: bool = False
    trusted: bool = False
    pending: bool = False
    snap: Snap | None = Snap(0, True)
    floor: int = 0
    gates: tuple[tuple[str, int], ...] = ()
    watcher: Part = OUT
    drains: tuple[Drain, ...] = ()
    reader: Part = IDLE
    todo: int = 2
    moves: int = 2
    reads: int = 1
    flushes: int = 1
    crashes: int = 1
    sheds: int = 0
    twins: int = 0


RULES = {
    "relook", "lease_first", "trust_reset", "gen_compare", "mark_compare", "mark_first", "stamp", "store_owner", "fence",
    "distrust", "trust_compare",
}  # fmt: skip
Step = tuple[str, S, str | None]


# What one script or statement does to the shared state


def moved(s: S) -> S:
    """The generation, the epoch or the snapshot is another now: who looked before must not trust."""
    return s._replace(
        watcher=(s.watcher[0], s.watcher[1]._replace(still=False)), reader=(s.reader[0], s.reader[1]._replace(still=False))
    )


def generation_up(s: S) -> S:
    return moved(s)._replace(trusted=False, drains=tuple(dr._replace(gen=False) for dr in s.drains))


def pend(s: S) -> S:
    """The pend script: generation up, pending, nothing vouches for the snapshot any more."""
    return generation_up(s)._replace(pending=True)


def mark(s: S, on: set[str]) -> S:
    """The flag's upsert: dirty, and every stamp that was read before is of the past."""
    s = s._replace(
        dirty=True, snap=s.snap and s.snap._replace(stamped=False), drains=tuple(dr._replace(marks=False) for dr in s.drains)
    )
    if "stamp" in on:
        s = s._replace(watcher=_doubt(s.watcher), reader=_doubt(s.reader))
    return s


def _doubt(part: Part) -> Part:
    return (part[0], NO) if part[0] == "check" else part


def lease(s: S, on: set[str]) -> S:
    """The renew script: where no lease lived, a new epoch begins and trust ends."""
    if s.visible:
        return s
    s = moved(s)._replace(visible=True, trusted=s.trusted and "trust_reset" not in on)
    return s._replace(drains=tuple(dr._replace(epoch=False) for dr in s.drains))


def look(s: S, on: set[str], floor: int = 0) -> Look:
    owned = any(dr.own for dr in s.drains)
    if s.snap is None or s.pending or owned or ("stamp" in on and not s.snap.stamped):
        return NO
    return Look(True, True, s.snap.value < floor)


def is_fresh(seen: Look, s: S, on: set[str]) -> bool:
    """The verdict, with the marks as they stand now, after the look."""
    return seen.maybe and ("stamp" in on or not s.dirty)


def trust(seen: Look, s: S, on: set[str]) -> S:
    """The trust script: only if neither generation nor epoch nor snapshot moved since the look."""
    same = seen.still or "trust_compare" not in on
    return s._replace(trusted=True) if same and s.visible and not s.pending and s.snap else s


# The parts


def gate_steps(s: S, on: set[str]) -> Iterator[Step]:  # noqa: C901
    if s.todo:
        yield "commit", s._replace(d=s.d + 1, todo=s.todo - 1, gates=(*s.gates, ("look", s.d + 1))), None
    for i, (stage, v) in enumerate(s.gates):

        def put(to: str, t: S, i: int = i, v: int = v) -> S:
            return t._replace(gates=(*t.gates[:i], (to, v), *t.gates[i + 1 :]))

        def crashed(t: S, i: int = i) -> S:
            return t._replace(gates=(*t.gates[:i], *t.gates[i + 1 :]), lost=t.lost + 1, crashes=t.crashes - 1)

        def end(label: str, t: S, i: int = i, v: int = v) -> Iterator[Step]:
            gone = t._replace(gates=(*t.gates[:i], *t.gates[i + 1 :]), floor=max(t.floor, v))
            yield f"gate{v}: {label}, processed", gone, None
            if t.crashes:
                yield f"gate{v}: {label}, CRASH", crashed(t), None

        if stage == "look":
            yield f"gate{v}: look", put("pend" if s.visible else "mark", s), None
        elif stage == "pend":
            yield from end("pend", pend(s))
            if s.sheds and not s.pending:
                yield f"gate{v}: shed", put("shed", s._replace(sheds=s.sheds - 1)), None
        elif stage in ("shed", "mark"):
            after = {"shed": "distrust", "mark": "relook"}[stage]
            if after in on:
                yield f"gate{v}: mark", put(after, mark(s, on)), None
            else:
                yield from end("mark", mark(s, on))
        elif stage == "distrust":
            yield from end("distrust", generation_up(s))
        elif s.visible:
            yield from end("look again, pend", pend(s))
        else:
            yield f"gate{v}: look again, processed", next(end("", s))[1], None
        if s.crashes and stage in ("look", "relook", "distrust"):
            yield f"gate{v}: CRASH", crashed(s), None
    if s.lost:
        yield "maintain: redo gate", s._replace(gates=(*s.gates, ("look", s.d)), lost=s.lost - 1), None
    if s.dirty and s.visible and not s.pending and not any(dr.own for dr in s.drains):
        yield "maintain: promote", pend(s), None


def watcher_steps(s: S, on: set[str]) -> Iterator[Step]:
    stage, seen = s.watcher
    if stage == "out" and s.moves:
        t = s._replace(moves=s.moves - 1)
        if "lease_first" in on:
            yield "watch: lease", lease(t, on)._replace(watcher=("look", NO)), None
        else:  # the wrong order: look and marks first, the lease after
            fresh = is_fresh(look(s, on), s, on)
            yield "watch: look, marks", (t if fresh else pend(t))._replace(watcher=("late lease", NO)), None
    elif stage == "look":
        yield "watch: look", s._replace(watcher=("check", look(s, on))), None
    elif stage == "check":
        if is_fresh(seen, s, on):
            yield "watch: marks → fresh", s._replace(watcher=("trust", seen)), None
        else:
            yield "watch: marks → build", pend(s)._replace(watcher=IN), None
    elif stage == "trust":
        yield "watch: trust", trust(seen, s, on)._replace(watcher=IN), None
    elif stage == "late lease":
        yield "watch: lease", s._replace(visible=True, trusted=not s.pending and s.snap is not None, watcher=IN), None
    elif stage == "in":
        if not s.visible:
            yield "heartbeat: lease", lease(s, on)._replace(watcher=("look", NO)), None
        elif s.snap is None and not s.pending and not any(dr.own for dr in s.drains):
            yield "heartbeat: no snapshot → build", pend(s), None
        if s.moves:
            yield "leave", s._replace(visible=False, watcher=OUT), None


def drain_steps(s: S, on: set[str]) -> Iterator[Step]:
    owned = any(dr.own for dr in s.drains)
    if s.pending and len(s.drains) < 2 and (not owned or s.twins):
        first = "read marks" if s.visible else ("put off" if "mark_first" in on else "drop")
        label = "CLAIM beside an owner" if owned else "claim"
        t = s._replace(drains=(*s.drains, Drain(first)), twins=s.twins - owned)
        yield f"drain {len(t.drains)}: {label}", t, None
    for i, dr in enumerate(s.drains):
        name = f"drain {i + 1}"

        def go(stage: str, t: S = s, i: int = i, **now: bool | int) -> S:
            after = (t.drains[i]._replace(stage=stage, **now),) if stage else ()  # type: ignore[arg-type]
            return t._replace(drains=(*t.drains[:i], *after, *t.drains[i + 1 :]))

        if dr.stage == "put off":
            yield f"{name}: nobody watches, mark", go("drop", mark(s, on)), None
        elif dr.stage == "drop":
            same = dr.own and (dr.gen or "gen_compare" not in on)
            yield f"{name}: drop", go("" if "mark_first" in on else "late", s._replace(pending=s.pending and not same)), None
        elif dr.stage == "late":
            yield f"{name}: mark late", go("", mark(s, on)), None
        elif dr.stage == "read marks":
            yield f"{name}: read marks", go("read source", marks=True, clean=not s.dirty), None
        elif dr.stage == "read source":
            yield f"{name}: read source", go("store", value=s.d), None
        elif dr.stage == "store":
            label, after = _store(s, i, go, on)
            yield f"{name}: {label}", after, None
        elif dr.stage == "clear":
            same = dr.marks or "mark_compare" not in on
            t = s._replace(dirty=False) if same else s
            yield f"{name}: clear marks", go("done" if same else "done, no trust", t), None
        else:
            same = dr.own and (dr.gen or "gen_compare" not in on)
            vouch = same and s.visible and dr.epoch and dr.stage == "done"
            yield f"{name}: done", go("", s._replace(pending=s.pending and not same, trusted=s.trusted or vouch)), None
        if s.crashes and dr.stage not in ("read source", "store"):
            yield f"{name}: CRASH", go("", s._replace(crashes=s.crashes - 1)), None
        if s.crashes and dr.own:
            yield f"{name}: STALLS past its lease", go(dr.stage, s._replace(crashes=s.crashes - 1), own=False), None


def _store(s: S, i: int, go: Callable[..., S], on: set[str]) -> tuple[str, S]:
    dr = s.drains[i]
    if not ((dr.newer or "fence" not in on) and (dr.own or "store_owner" not in on)):
        return "store refused", go("")
    older = tuple(other._replace(newer=n > i) for n, other in enumerate(s.drains))
    t = moved(s)._replace(snap=Snap(dr.value, dr.marks), drains=older)
    if dr.clean and dr.own and (dr.gen or "gen_compare" not in on):
        # Nothing to clear: the script that stores ends the claim as well.
        return "store, done", go("", t._replace(pending=False, trusted=s.trusted or (s.visible and dr.epoch)))
    return "store", go("clear", t, clean=False)


def reader_steps(s: S, on: set[str]) -> Iterator[Step]:
    stage, seen = s.reader
    old = "a read served as fresh what is older than a change whose gate had ended"
    if stage == "idle" and s.reads:
        t = s._replace(reads=s.reads - 1)
        if s.visible and s.trusted and s.snap and not s.pending:
            yield "read: get → served", t, old if s.snap.value < s.floor else None
        else:
            yield "read: look", t._replace(reader=("check", look(s, on, s.floor))), None
    elif stage == "check":
        if is_fresh(seen, s, on):
            yield "read: marks → served as fresh", s._replace(reader=("trust", seen)), old if seen.bad else None
        elif not any(dr.own for dr in s.drains) and len(s.drains) < 2:
            yield (
                f"read: marks, claim as drain {len(s.drains) + 1}",
                s._replace(drains=(*s.drains, Drain("read marks")), reader=IDLE),
                None,
            )
        else:
            yield "read: marks, wait", s._replace(reader=IDLE), None
    elif stage == "trust":
        yield "read: trust", trust(seen, s, on)._replace(reader=IDLE), None


def steps(s: S, on: set[str]) -> Iterator[Step]:
    """Every (label, next state, violation or None)."""
    yield from gate_steps(s, on)
    yield from watcher_steps(s, on)
    yield from drain_steps(s, on)
    yield from reader_steps(s, on)
    if s.flushes:
        gone = tuple(dr._replace(own=False, newer=True) for dr in s.drains)
        yield "FLUSHALL", moved(s)._replace(flushes=0, visible=False, trusted=False, pending=False, snap=None, drains=gone), None


def reduced(s: S, on: set[str]) -> S:
    """The same state without what can have no effect any more, and without what nobody asks for any more."""
    drains = [one for dr in s.drains if (one := _alive(dr, on))]
    watcher, reader = _part(s.watcher, IN, s, on), _part(s.reader, IDLE, s, on)
    floor = s.floor if s.reads else 0
    return s._replace(drains=tuple(drains), watcher=watcher, reader=reader, floor=floor, gates=tuple(sorted(s.gates)))


def _alive(dr: Drain, on: set[str]) -> Drain | None:
    if dr.own:
        return dr
    if dr.stage in ("read marks", "read source", "store"):
        return None if "store_owner" in on else dr
    if dr.stage == "drop":
        return None if "mark_first" in on else dr._replace(stage="late")
    return None if dr.stage.startswith("done") else dr


def _part(part: Part, over: Part, s: S, on: set[str]) -> Part:
    stage, seen = part
    if "trust_compare" not in on:
        return (stage, seen._replace(still=False))
    return over if stage == "trust" and not (seen.still and s.visible) else part


def settled(s: S) -> bool:
    """Whether nobody has anything left to do but wait."""
    busy = s.gates or s.drains or s.lost or s.pending or (s.dirty and s.visible)
    beats = s.watcher == IN and (not s.visible or s.snap is None)
    return not (busy or beats or s.watcher not in (OUT, IN) or s.reader != IDLE)


def wrong(s: S) -> str | None:
    """Where all is quiet: does what stands break an invariant?"""
    if s.snap and s.snap.value < s.d:
        if not s.dirty and s.snap.stamped:
            return f"lost update: the snapshot shows {s.snap.value}, the truth is {s.d}, and no mark stands"
        if s.watcher == IN:
            return f"the watcher shows {s.snap.value}, the truth is {s.d}"
    return None


SCENARIOS: dict[str, dict[str, int]] = {  # what may happen beside two commits, two watches or leaves, one read
    "shed, and a read": {"moves": 1, "crashes": 0, "flushes": 0, "sheds": 1},
    "flush, and a read": {"moves": 1, "crashes": 0},
    "crash or stall, and a read": {"moves": 1, "flushes": 0},
    "two owners, and a read": {"moves": 1, "flushes": 0, "crashes": 0, "twins": 1},
    "watch, leave, watch, and a read": {"crashes": 0, "flushes": 0},
    "shed, watch, leave, watch": {"crashes": 0, "flushes": 0, "reads": 0, "sheds": 1},
    "flush, watch, leave, watch": {"crashes": 0, "reads": 0},
    "crash or stall, watch, leave, watch": {"flushes": 0, "reads": 0},
    "flush, crash or stall": {"moves": 1, "reads": 0},
    # Nearly everything at once: these take the most time.
    "flush, shed, and a read": {"moves": 1, "crashes": 0, "sheds": 1},
    "two owners, shed, and a read": {"moves": 1, "flushes": 0, "crashes": 0, "sheds": 1, "twins": 1},
    "flush, watch, leave, watch, and a read": {"crashes": 0},
    "flush, crash or stall, and a read": {"moves": 1},
    "crash or stall, watch, leave, watch, and a read": {"flushes": 0},
}
QUICK = ("shed, and a read", "shed, watch, leave, watch")


def explore(on: set[str], scenario: dict[str, int]) -> tuple[list[str] | None, str | None, int]:
    """Breadth-first over all states: (history, why it is wrong, states seen), or (None, None, states) if all hold.

    Visited states are kept as 64-bit hashes with their way back, so that millions fit in memory.
    """
    first = S(**scenario)  # type: ignore[arg-type]
    seen: dict[int, tuple[int, str] | None] = {hash(first): None}
    queue = deque([first])

    def history(s: S) -> list[str]:
        out, at = [], hash(s)
        while (before := seen[at]) is not None:
            at, label = before
            out.append(label)
        return out[::-1]

    while queue:
        s = queue.popleft()
        here = hash(s)
        if settled(s) and (why := wrong(s)):
            return history(s), why, len(seen)
        for label, after, bad in steps(s, on):
            if bad:
                return [*history(s), label], bad, len(seen)
            t = reduced(after, on)
            key = hash(t)
            if key not in seen:
                seen[key] = (here, sys.intern(label))
                queue.append(t)
    return None, None, len(seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", choices=sorted(RULES))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print("rule off:", options.without or "none")  # noqa: T201
    best: tuple[list[str], str] | None = None
    for name, scenario in SCENARIOS.items():
        if options.quick and name not in QUICK:
            continue
        began = time.process_time()
        path, why, count = explore(RULES - {options.without}, scenario)
        verdict = f"BROKEN after {len(path)} steps" if path else "holds"
        print(f"{count:>9} states in {time.process_time() - began:4.0f} s  {name}: {verdict}", flush=True)  # noqa: T201
        if path and why and (best is None or len(path) < len(best[0])):
            best = path, why
    if best:
        print("\n".join("  " + label for label in best[0]), "\nBROKEN: ", best[1], sep="")  # noqa: T201
    return int(best is not None)


if __name__ == "__main__":
    raise SystemExit(main())
