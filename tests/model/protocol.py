"""An exhaustive check of the hot/cold protocol for one resource, over every interleaving of its parts.

    python tests/model/protocol.py                 all rules on: no counterexample (minutes, millions of states)
    python tests/model/protocol.py --without RULE  one rule off: a shortest history that breaks an invariant
    python tests/model/protocol.py --quick         the scenarios that take seconds

Parts: commits with their gates (one may be shed by a full lane), a watcher (watch, heartbeat, leave), drains, a reader
that builds, a flush, a crash or stall. A state is what the database and Redis hold, plus where each part stands. `d`
is the truth (a counter); a snapshot is the truth as some build saw it. The steps are those of the code: a Lua script is
one step, a statement is one step. `fence` alone breaks nothing here: it guards against a failover that makes two owners.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple


class Snap(NamedTuple):
    """A stored snapshot: token of its claim, value, marks as they stood before its build read the source."""

    token: int
    value: int
    marks: int


class Drain(NamedTuple):
    """A build in flight, of a job or of a reader. `own`: its claim lives. `wanted`: somebody watched at the claim."""

    stage: str
    gen: int
    epoch: int
    marks: int
    token: int
    value: int
    own: bool
    wanted: bool


class Looked(NamedTuple):
    """What a look script answered; the marks are read after it."""

    snap: Snap | None
    pending: bool
    gen: int
    epoch: int


class S(NamedTuple):
    """One state of the whole."""

    d: int = 0
    marks: int = 0
    cleared: int = 0
    unprocessed: int = 0
    visible: bool = False
    epoch: int = 0
    trusted: bool = False
    pending: bool = False
    gen: int = 0
    snap: Snap | None = Snap(0, 0, 0)
    clock: int = 1
    todo: int = 2
    gates: tuple[tuple[str, int], ...] = ()
    watcher: tuple[Any, ...] = ("out", -1)
    drains: tuple[Drain, ...] = ()
    reader: tuple[Any, ...] = ("idle",)
    flushes: int = 1
    crashes: int = 1
    sheds: int = 0
    moves: int = 2
    reads: int = 1
    floor: int = 0


RULES = {
    "relook", "lease_first", "trust_reset", "gen_compare", "mark_compare", "mark_first", "stamp", "store_owner", "fence",
    "distrust", "trust_compare",
}  # fmt: skip
Step = tuple[str, S, str | None]


def pend(s: S) -> S:
    """The pend script: generation up, pending, nothing vouches for the snapshot any more."""
    return s._replace(pending=True, gen=s.gen + 1, trusted=False)


def lease(s: S, on: set[str]) -> S:
    """The renew script: where no lease lived, a new epoch begins and trust ends."""
    if s.visible:
        return s
    return s._replace(visible=True, epoch=s.epoch + 1, trusted=s.trusted and "trust_reset" not in on)


def look(s: S) -> Looked:
    return Looked(s.snap, s.pending or any(dr.own for dr in s.drains), s.gen, s.epoch)


def is_fresh(seen: Looked, s: S, on: set[str]) -> bool:
    """The verdict, with the marks as they stand now, after the look."""
    if seen.snap is None or seen.pending:
        return False
    return seen.snap.marks >= s.marks if "stamp" in on else s.marks <= s.cleared


def trust(seen: Looked, s: S, on: set[str]) -> S:
    """The trust script: only if neither generation nor epoch nor snapshot moved since the look."""
    same = (seen.gen, seen.epoch, seen.snap) == (s.gen, s.epoch, s.snap) or "trust_compare" not in on
    return s._replace(trusted=True) if same and s.visible and not s.pending and s.snap else s


def gate_steps(s: S, on: set[str]) -> Iterator[Step]:  # noqa: C901
    if s.todo:
        gates = (*s.gates, ("look", s.d + 1))
        yield "commit", s._replace(d=s.d + 1, todo=s.todo - 1, unprocessed=s.unprocessed + 1, gates=gates), None
    for i, (stage, v) in enumerate(s.gates):

        def put(to: str | None, t: S, i: int = i, v: int = v) -> S:
            return t._replace(gates=(*t.gates[:i], *(((to, v),) if to else ()), *t.gates[i + 1 :]))

        if stage == "look":
            yield f"gate{v}: look", put("pend" if s.visible else "mark", s), None
        elif stage == "pend":
            yield f"gate{v}: pend", put("end", pend(s)), None
            if s.sheds and not s.pending:
                yield f"gate{v}: shed", put("shed", s._replace(sheds=s.sheds - 1)), None
        elif stage == "shed":
            yield (
                f"gate{v}: mark what was shed",
                put("distrust" if "distrust" in on else "end", s._replace(marks=s.marks + 1)),
                None,
            )
        elif stage == "distrust":
            yield f"gate{v}: distrust", put("end", s._replace(gen=s.gen + 1, trusted=False)), None
        elif stage == "mark":
            yield f"gate{v}: mark", put("relook" if "relook" in on else "end", s._replace(marks=s.marks + 1)), None
        elif stage == "relook":
            yield f"gate{v}: look again", put("end", pend(s) if s.visible else s), None
        elif stage == "end":
            yield f"gate{v}: processed", put(None, s._replace(unprocessed=s.unprocessed - 1, floor=max(s.floor, v))), None
        if s.crashes:
            yield f"gate{v}: CRASH", put(None, s._replace(crashes=s.crashes - 1)), None
    if s.unprocessed > len(s.gates):
        yield "maintain: redo gate", s._replace(gates=(*s.gates, ("look", s.d))), None
    if s.marks > s.cleared and s.visible and not s.pending and not any(dr.own for dr in s.drains):
        yield "maintain: promote", pend(s), None


def watcher_steps(s: S, on: set[str]) -> Iterator[Step]:
    stage, shown = s.watcher[0], s.watcher[1]
    if stage == "out" and s.moves:
        first = "lease" if "lease_first" in on else "look0"
        yield "watch: begin", s._replace(watcher=(first, -1), moves=s.moves - 1), None
    elif stage == "lease":
        yield "watch: lease", lease(s, on)._replace(watcher=("look", shown)), None
    elif stage == "look":
        yield "watch: look", s._replace(watcher=("check", shown, look(s))), None
    elif stage == "check":
        seen: Looked = s.watcher[2]
        if is_fresh(seen, s, on) and seen.snap:
            yield "watch: marks → fresh", s._replace(watcher=("trust", seen.snap.value, seen)), None
        else:
            yield "watch: marks → build", pend(s)._replace(watcher=("in", seen.snap.value if seen.snap else shown)), None
    elif stage == "trust":
        yield "watch: trust", trust(s.watcher[2], s, on)._replace(watcher=("in", shown)), None
    elif stage == "look0":  # the wrong order: look and marks first, the lease after
        seen = look(s)
        fresh = is_fresh(seen, s, on) and seen.snap
        yield (
            "watch: look, marks",
            (s if fresh else pend(s))._replace(watcher=("lease0", seen.snap.value if seen.snap else shown)),
            None,
        )
    elif stage == "lease0":
        yield "watch: lease", s._replace(visible=True, trusted=not s.pending and s.snap is not None, watcher=("in", shown)), None
    elif stage == "in":
        if not s.visible:
            yield "heartbeat: lease", lease(s, on)._replace(watcher=("look", shown)), None
        elif s.snap is None and not s.pending and not any(dr.own for dr in s.drains):
            yield "heartbeat: no snapshot → build", pend(s), None
        elif s.snap and s.snap.value != shown:
            yield "heartbeat: newer version → sent", s._replace(watcher=("in", s.snap.value)), None
        if s.moves:
            yield "leave", s._replace(visible=False, watcher=("out", -1)), None


def drain_steps(s: S, on: set[str]) -> Iterator[Step]:  # noqa: C901
    if s.pending and not any(dr.own for dr in s.drains) and len(s.drains) < 2:
        first = "marks" if s.visible else ("putoff" if "mark_first" in on else "drop")
        one = Drain(first, s.gen, s.epoch, 0, s.clock, 0, True, s.visible)
        yield f"drain {s.clock}: claim", s._replace(drains=(*s.drains, one), clock=s.clock + 1), None
    for i, dr in enumerate(s.drains):
        tok = dr.token

        def go(stage: str | None, t: S = s, i: int = i, dr: Drain = dr, **moved: Any) -> S:
            after = (dr._replace(stage=stage, **moved),) if stage else ()
            return t._replace(drains=(*t.drains[:i], *after, *t.drains[i + 1 :]))

        if dr.stage == "putoff":
            yield f"drain {tok}: nobody watches, mark", go("drop", s._replace(marks=s.marks + 1)), None
        elif dr.stage == "drop":
            same = dr.own and (s.gen == dr.gen or "gen_compare" not in on)
            t = s._replace(pending=s.pending and not same)
            yield f"drain {tok}: drop", go(None if "mark_first" in on else "late", t), None
        elif dr.stage == "late":
            yield f"drain {tok}: mark late", go(None, s._replace(marks=s.marks + 1)), None
        elif dr.stage == "marks":
            yield f"drain {tok}: read marks", go("read", marks=s.marks), None
        elif dr.stage == "read":
            yield f"drain {tok}: read source", go("store", value=s.d), None
        elif dr.stage == "store":
            newer = s.snap is None or s.snap.token < tok or "fence" not in on
            if newer and (dr.own or "store_owner" not in on):
                yield f"drain {tok}: store", go("clear", s._replace(snap=Snap(tok, dr.value, dr.marks))), None
            else:
                yield f"drain {tok}: store refused", go(None), None
        elif dr.stage == "clear":
            same = s.marks == dr.marks or "mark_compare" not in on
            t = s._replace(cleared=max(s.cleared, s.marks)) if same else s
            yield f"drain {tok}: clear marks", go("done" if same else "done, untrusted", t), None
        elif dr.stage.startswith("done"):
            same = dr.own and (s.gen == dr.gen or "gen_compare" not in on)
            vouch = same and s.visible and s.epoch == dr.epoch and dr.stage == "done"
            t = s._replace(pending=s.pending and not same, trusted=s.trusted or vouch)
            yield f"drain {tok}: done", go(None, t), None
        if s.crashes:
            yield f"drain {tok}: CRASH", go(None, s._replace(crashes=s.crashes - 1)), None
            if dr.own:
                yield f"drain {tok}: STALLS past its lease", go(dr.stage, s._replace(crashes=s.crashes - 1), own=False), None


def reader_steps(s: S, on: set[str]) -> Iterator[Step]:
    stage = s.reader[0]
    if stage == "idle" and s.reads:
        t = s._replace(reads=s.reads - 1)
        if s.visible and s.trusted and s.snap and not s.pending:
            yield "read: get", t._replace(reader=("serve", s.snap.value, s.floor)), None
        else:
            yield "read: look", t._replace(reader=("marks", look(s), s.floor)), None
    elif stage == "marks":
        seen, floor = s.reader[1], s.reader[2]
        if is_fresh(seen, s, on):
            yield "read: marks → fresh", s._replace(reader=("trust", seen, floor)), None
        elif not any(dr.own for dr in s.drains) and len(s.drains) < 2:
            one = Drain("marks", s.gen, s.epoch, 0, s.clock, 0, True, True)
            t = s._replace(drains=(*s.drains, one), clock=s.clock + 1, reader=("idle",))
            yield f"read: claim {s.clock}", t, None
        else:
            yield "read: wait", s._replace(reader=("idle",)), None
    elif stage == "trust":
        yield "read: trust", trust(s.reader[1], s, on)._replace(reader=("serve", s.reader[1].snap.value, s.reader[2])), None
    elif stage == "serve":
        bad = (
            f"a read served {s.reader[1]} as fresh after the gate of {s.reader[2]} had ended"
            if s.reader[1] < s.reader[2]
            else None
        )
        yield "read: serve fresh", s._replace(reader=("idle",)), bad


def steps(s: S, on: set[str]) -> Iterator[Step]:
    """Every (label, next state, violation or None)."""
    yield from gate_steps(s, on)
    yield from watcher_steps(s, on)
    yield from drain_steps(s, on)
    yield from reader_steps(s, on)
    if s.flushes:
        gone = tuple(dr._replace(own=False) for dr in s.drains)
        yield "FLUSHALL", s._replace(flushes=0, visible=False, trusted=False, pending=False, snap=None, drains=gone), None


def canonical(s: S) -> S:
    """Only orders and equalities matter: of tokens and counts their order, of generation and epoch whether they moved."""
    looks = [part for who in (s.watcher, s.reader) for part in who if isinstance(part, Looked)]
    snaps = [x for x in (s.snap, *(k.snap for k in looks)) if x]
    toks = {t: i for i, t in enumerate(sorted({*(dr.token for dr in s.drains), *(x.token for x in snaps)}))}
    held = [dr.marks for dr in s.drains if dr.stage not in ("marks", "putoff", "drop", "late")]
    m = {c: i for i, c in enumerate(sorted({s.marks, s.cleared, *held, *(x.marks for x in snaps)}))}

    def snap(x: Snap | None) -> Snap | None:
        return x and Snap(toks[x.token], x.value, m[x.marks])

    def part(x: Any) -> Any:
        return (
            Looked(snap(x.snap), x.pending, int(x.gen == s.gen) - 1, int(x.epoch == s.epoch) - 1) if isinstance(x, Looked) else x
        )

    drains = tuple(
        sorted(
            dr._replace(
                gen=int(dr.gen == s.gen) - 1, epoch=int(dr.epoch == s.epoch) - 1, token=toks[dr.token], marks=m.get(dr.marks, 0)
                if dr.marks in held else 0,
            )
            for dr in s.drains
        )
    )  # fmt: skip
    return s._replace(
        gen=0, epoch=0, clock=len(toks), marks=m[s.marks], cleared=m[s.cleared], snap=snap(s.snap), drains=drains,
        gates=tuple(sorted(s.gates)), watcher=tuple(map(part, s.watcher)), reader=tuple(map(part, s.reader)),
    )  # fmt: skip


def quiet(s: S) -> str | None:
    """Nothing left to do but wait: does what stands satisfy the invariants?"""
    if s.snap and s.snap.value < s.d and s.marks <= s.cleared and s.snap.marks >= s.marks and not s.pending:
        return f"lost update: the snapshot shows {s.snap.value}, the truth is {s.d}, and no mark stands"
    if s.watcher[0] == "in" and s.watcher[1] != s.d:
        return f"the watcher shows {s.watcher[1]}, the truth is {s.d}"
    return None


PROGRESS = ("gate", "maintain", "heartbeat", "drain", "watch: ", "read")
NOT_PROGRESS = ("read: get", "read: look", "watch: begin")
SCENARIOS: dict[str, dict[str, int]] = {  # each leaves out what the others put in, so that all interleavings can be visited
    "shed while read": {"moves": 1, "crashes": 0, "flushes": 0, "sheds": 1},
    "shed, watch, leave": {"crashes": 0, "flushes": 0, "reads": 0, "sheds": 1},
    "flush while read": {"moves": 1, "crashes": 0},
    "crash or stall while read": {"moves": 1, "flushes": 0},
    "watch, leave, watch while read": {"crashes": 0, "flushes": 0},
    "watch, leave, watch with a flush": {"crashes": 0, "reads": 0},
    "watch, leave, watch with a crash": {"flushes": 0, "reads": 0},
    "flush and crash": {"moves": 1, "reads": 0},
}
QUICK = ("shed while read", "flush while read")


def explore(on: set[str], scenario: dict[str, int], start: S | None = None) -> tuple[list[str] | None, str | None, int]:
    """Breadth-first over all states: (history, why it is wrong, states seen), or (None, None, states) if all hold.

    Visited states are kept as 64-bit hashes with their way back, so that millions fit in memory.
    """
    first = (start or S())._replace(**scenario)
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
        moves = list(steps(s, on))
        busy = any(
            lab.startswith(PROGRESS) and "CRASH" not in lab and "STALLS" not in lab and lab not in NOT_PROGRESS
            for lab, _, _ in moves
        )
        why = None if busy else quiet(s)
        if why:
            return history(s), why, len(seen)
        for label, after, bad in moves:
            if bad:
                return [*history(s), label], bad, len(seen)
            t = canonical(after)
            mark = hash(t)
            if mark not in seen:
                seen[mark] = (here, sys.intern(label))
                queue.append(t)
    return None, None, len(seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", choices=sorted(RULES))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print("rule off:", options.without or "none")  # noqa: T201
    broken: tuple[list[str], str] | None = None
    for name, scenario in SCENARIOS.items():
        if options.quick and name not in QUICK:
            continue
        path, why, count = explore(RULES - {options.without}, scenario)
        print(f"{count:>9} states  {name}: {'BROKEN' if path else 'holds'}", flush=True)  # noqa: T201
        if path is not None and why is not None:
            broken = path, why
            break
    if broken:
        print("\n".join("  " + label for label in broken[0]), "\nBROKEN:", broken[1], sep="")  # noqa: T201
    return int(broken is not None)


if __name__ == "__main__":
    raise SystemExit(main())
