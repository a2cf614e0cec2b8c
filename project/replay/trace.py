"""Reading traces and graphs, and deciding who is online when. No I/O but the reading of the file; no clock."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# A silence in the trace counts for at most this many of its seconds: nights are not waited for.
LONGEST_GAP = 300.0
# Around each message of theirs, a person is online this long before and after, in seconds of the replay.
LEAD, TAIL = 0.5, 2.5


class BadTrace(ValueError):
    """A trace or graph that cannot be read; the message names the file and the line."""


class Line(NamedTuple):
    """One message: who to whom, at which second of the trace."""

    source: str
    target: str
    seconds: float


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is no comment and not empty, with its number."""
    try:
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError:
                    raise BadTrace(f"{path}, line {number}: not UTF-8 text") from None
                if "\0" in text:
                    raise BadTrace(f"{path}, line {number}: not a text file")
                if text and text[0] not in "#%":
                    yield number, text.replace(",", " ").split()
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror or error}") from None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_trace(path: Path, limit: int | None = None) -> list[Line]:
    """The messages of a trace, `source target seconds` a line, in the order of their time; the first `limit` lines of the file.

    Lines that begin with # or % are comments; the first other line may be a header. Fields are split at spaces or commas.

    Raises:
        BadTrace: no such file, no message in it, or a line that is none; with its number.
    """
    found: list[Line] = []
    first = True
    for number, fields in _rows(path):
        seconds = _number(fields[2]) if len(fields) == 3 else None
        header = first and len(fields) == 3 and not any(character.isdigit() for character in fields[2])
        first = False
        if header:
            continue
        if len(fields) != 3:
            raise BadTrace(f"{path}, line {number}: expected `source target seconds`, found {len(fields)} fields: {_cut(fields)}")
        if seconds is None:
            raise BadTrace(f"{path}, line {number}: the third field is to be a time in seconds, not {fields[2][:40]!r}")
        if max(map(len, fields[:2])) > 60:
            raise BadTrace(f"{path}, line {number}: a name of more than 60 characters")
        found.append(Line(fields[0], fields[1], seconds))
        if limit is not None and len(found) >= limit:
            break
    if not found:
        raise BadTrace(f"{path}: no messages in it")
    return sorted(found, key=lambda line: line.seconds)


def read_graph(path: Path) -> list[tuple[str, str]]:
    """The friendships of a graph, two names a line.

    Raises:
        BadTrace: no such file, no line in it, or a line that is none; with its number.
    """
    found: list[tuple[str, str]] = []
    first = True
    for number, fields in _rows(path):
        header = first and len(fields) == 2 and not any(character.isdigit() for character in "".join(fields))
        first = False
        if header:
            continue
        if len(fields) != 2:
            raise BadTrace(f"{path}, line {number}: expected two names, found {len(fields)} fields: {_cut(fields)}")
        found.append((fields[0], fields[1]))
    if not found:
        raise BadTrace(f"{path}: no friendships in it")
    return found


def _cut(fields: Sequence[str]) -> str:
    text = " ".join(fields)
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def followers(lines: Iterable[Line], graph: Sequence[tuple[str, str]] | None) -> dict[str, set[str]]:
    """Who reads whose posts: {author: followers}, both ways along each edge.

    Without a graph, whoever has exchanged a message. With one, its friendships: a person of the trace is the node of the same
    name where all of them are in the graph, else the nodes are taken in the order of their first appearance.
    """
    lines = list(lines)
    people = list(dict.fromkeys(name for line in lines for name in line[:2]))
    edges: Iterable[tuple[str, str]] = ((line.source, line.target) for line in lines)
    if graph is not None:
        nodes = list(dict.fromkeys(name for edge in graph for name in edge))
        if set(people) <= set(nodes):
            same = {node: node for node in nodes}
        else:
            spare = (f"node-{node}" for node in nodes[len(people) :])
            same = dict(zip(nodes, itertools.chain(people, spare), strict=False))
        edges = ((same[a], same[b]) for a, b in graph)
    found: dict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        if a != b:
            found[a].add(b)
            found[b].add(a)
    return dict(found)


@dataclass(frozen=True)
class Step:
    """One thing that happens at `at` seconds of the replay: `comes` and `goes` of a person, or `says`, a message.

    `rooms` are the pairs whose room somebody opens who comes: those they will write in before they go.
    """

    at: float
    what: str
    person: str
    other: str = ""
    rooms: tuple[tuple[str, str], ...] = ()


def pair(a: str, b: str) -> tuple[str, str]:
    """The room of two people, whoever writes."""
    return (a, b) if a <= b else (b, a)


def compress(lines: Sequence[Line], seconds: float) -> list[float]:
    """The moment of each message in a replay of about so many seconds; long silences are cut short first."""
    times = [0.0]
    for before, after in itertools.pairwise(lines):
        times.append(times[-1] + min(LONGEST_GAP, after.seconds - before.seconds))
    if not times[-1]:
        return [seconds * n / len(lines) for n in range(len(lines))]
    return [time * seconds / times[-1] for time in times]


def plan(lines: Sequence[Line], seconds: float) -> list[Step]:
    """Everything that happens, in order. Who is online when the last message is sent stays to the end."""
    times = compress(lines, seconds)
    windows: dict[str, list[tuple[float, float, list[tuple[str, str]]]]] = defaultdict(list)
    for line, at in zip(lines, times, strict=True):
        begin, end, room = at - LEAD, at + TAIL, pair(line.source, line.target)
        own = windows[line.source]
        if own and own[-1][1] >= begin:
            own[-1] = (own[-1][0], end, [*own[-1][2], room])
        else:
            own.append((begin, end, [room]))
    steps = [Step(at, "says", line.source, line.target) for line, at in zip(lines, times, strict=True)]
    for person, own in windows.items():
        for begin, end, rooms in own:
            steps.append(Step(begin, "comes", person, rooms=tuple(dict.fromkeys(rooms))))
            if end < times[-1]:
                steps.append(Step(end, "goes", person))
    order = {"comes": 0, "says": 1, "goes": 2}
    return sorted(steps, key=lambda step: (step.at, order[step.what]))
