"""One consistent look at a resource's soft state, and the trust that follows from it (rule 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from visibility.soft.client import arun, run
from visibility.soft.keys import CHUNK, by_shard, shard_of


class Look(NamedTuple):
    """One consistent view of a resource's soft state. `lost`: claims in a row whose owners died; `last`: the highest token so
    far, a later claim has a higher one."""

    now_ms: int
    raw: bytes
    fresh: int
    visible_ms: int
    due_ms: int | None
    claim_ms: int | None
    ttl_ms: int
    gen: str
    epoch: str
    owner: str
    not_before_ms: int
    error: str
    since_ms: int
    tries: int
    version: int
    event: str
    built_ms: int
    hot: bool = True
    lost: int = 0
    last: int = 0

    @property
    def queued(self) -> bool:
        """Whether it waits for a build or is being built."""
        return self.due_ms is not None or self.claim_ms is not None

    @property
    def pending(self) -> bool:
        """Whether a change waits to be built, so that what stands is known to be behind."""
        return self.hot and self.queued


def _look(now: int, row: list[Any]) -> Look:
    raw, fresh, visible, due, claim_end, ttl, *state = row
    gen, epoch, owner, nb, err, since, tries, ver, ev, built, hot, lost, last = (s.decode(errors="replace") for s in state)
    return Look(
        now, raw, int(fresh), visible, int(float(due)) if due else None, int(float(claim_end)) if claim_end else None, ttl,
        gen, epoch, owner, int(nb or 0), err, int(since or 0), int(tries or 0), int(ver or 0), ev, int(built or 0), hot == "1",
        int(lost or 0), int(last),
    )  # fmt: skip


def look(lane: str, resources: Sequence[str]) -> dict[str, Look]:
    """The soft state of resources of one lane."""
    out: dict[str, Look] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            now, *rows = run("look", shard, lane, *part)
            out.update({name: _look(now, row) for name, row in zip(part, rows, strict=True)})
    return out


async def alook(lane: str, resources: Sequence[str]) -> dict[str, Look]:
    """The asynchronous twin of `look`."""
    out: dict[str, Look] = {}
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            now, *rows = await arun("look", shard, lane, *part)
            out.update({name: _look(now, row) for name, row in zip(part, rows, strict=True)})
    return out


def _trust_args(looks: dict[str, Look]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for name, seen in looks.items():
        groups.setdefault(shard_of(name), []).extend((name, seen.gen, seen.epoch, seen.version))
    return groups


def trust(lane: str, looks: dict[str, Look]) -> None:
    """These snapshots' stamps equal the marks, read after the looks: serve them without SQL while they stay visible."""
    for shard, args in _trust_args(looks).items():
        run("trust", shard, lane, *args)


async def atrust(lane: str, looks: dict[str, Look]) -> None:
    """The asynchronous twin of `trust`."""
    for shard, args in _trust_args(looks).items():
        await arun("trust", shard, lane, *args)


def distrust(resources: Iterable[str]) -> None:
    """Visible resources were marked in the database: reads look at the marks again, builds in flight count as moved."""
    for shard, names in by_shard(list(resources)).items():
        for start in range(0, len(names), CHUNK):
            run("distrust", shard, *names[start : start + CHUNK])
