"""One curve on one database, in a process of its own: `python -m tests.benchmarks.curves.child NAME sqlite full FILE`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.benchmarks.apart import answer
from tests.benchmarks.curves.names import CURVES
from tests.benchmarks.harness import SIZES
from tests.benchmarks.stage import Stage, on_stage


def main(name: str, database: str, size: str, file: str) -> None:
    """Measure, and write the results into the file."""
    entry = CURVES[name]
    module, _, function = entry.where.partition(":")

    def results(stage: Stage) -> Iterator[dict[str, Any]]:
        for one in getattr(importlib.import_module(f"tests.benchmarks.curves.{module}"), function)(stage):
            yield one.as_json()

    answer(file, partial(on_stage, database, SIZES[size], entry.visibility), results)


if __name__ == "__main__":
    main(*sys.argv[1:])
