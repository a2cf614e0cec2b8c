"""Data types whose builds a test can count, slow down, hold and let fail from outside, in whatever process they run.

`probe` builds from the table Counter as `counter` does; what it shall do besides stands in a file per key in the folder
`PROBE_DIR`, and each build leaves a line in `builds.log` there. Not in Redis: tests empty that.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.app.models import Counter
from visibility.datatypes import DataType, Freshness, Hidden, registry


def folder() -> Path:
    return Path(os.environ["PROBE_DIR"])


def orders(key: str) -> dict[str, Any]:
    """What the builds of this key were told to do: `delay` seconds, `fail` with a text, `hold` until told otherwise."""
    try:
        return dict(json.loads((folder() / f"{key}.json").read_text()))
    except FileNotFoundError:
        return {}


def order(key: str, **what: Any) -> None:
    """Tell the builds of a key what to do from now on."""
    temporary = folder() / f"{key}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(what))
    temporary.replace(folder() / f"{key}.json")


def builds(key: str | None = None) -> list[tuple[int, float, list[str]]]:
    """Calls of `build_many` so far: process, time, keys; of one key, if given."""
    try:
        lines = (folder() / "builds.log").read_text().splitlines()
    except FileNotFoundError:
        return []
    rows = [(int(pid), float(at), keys.split()) for pid, at, keys in (line.split(" ", 2) for line in lines)]
    return rows if key is None else [row for row in rows if key in row[2]]


def build(keys: Sequence[str]) -> dict[str, Any]:
    with (folder() / "builds.log").open("a") as log:
        log.write(f"{os.getpid()} {time.time():.6f} {' '.join(keys)}\n")
    out: dict[str, Any] = {}
    values = dict(Counter.objects.filter(name__in=keys).values_list("name", "value"))
    for key in keys:
        told = orders(key)
        if told.get("delay"):
            time.sleep(told["delay"])
        while orders(key).get("hold"):
            time.sleep(0.005)
        told = orders(key)
        if told.get("kill"):
            os.kill(os.getpid(), 9)
        if told.get("fail_all"):
            raise RuntimeError(told["fail_all"])
        out[key] = RuntimeError(told["fail"]) if told.get("fail") else told.get("value", {"value": values.get(key)})
    return out


class Probe(DataType):
    """Resources of the hot lane."""

    name = "probe"
    freshness = Freshness(seconds=2)
    coalesce = 0.05

    def build_many(self, keys: Sequence[str]) -> Mapping[str, Any]:
        return build(keys)

    def can_watch(self, user: Any, key: str) -> bool:
        return True


class ColdProbe(Probe):
    name = "coldprobe"
    lane = "cold"


class NiceProbe(Probe):
    """Nice to have: marked only while its lane is flooded."""

    name = "niceprobe"
    must_deliver: ClassVar[bool] = False


class Digest(Probe):
    name = "digest"
    hidden = Hidden.SUMMARISE


TYPES = (Probe, ColdProbe, NiceProbe, Digest)


def registered() -> Iterator[None]:
    """Register the types, then forget them."""
    for cls in TYPES:
        registry.register(cls)
    yield
    for cls in TYPES:
        registry.unregister(cls.name)


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The types, in this process and in its children, and the folder through which they are told what to do."""
    monkeypatch.setenv("PROBE_DIR", str(tmp_path))
    yield from (tmp_path for _ in registered())
