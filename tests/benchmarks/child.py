"""One bar on one database, in a process of its own: `python -m tests.benchmarks.child B3 sqlite full FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.benchmarks.apart import answer
from tests.benchmarks.bars import BARS
from tests.benchmarks.harness import SIZES
from tests.benchmarks.stage import Stage, on_stage, run


def main(name: str, database: str, size: str, file: str) -> None:
    """Measure, and write the parts into the file; one that is held to another limit than the bar's is an error."""
    entry = BARS[name]

    def parts(stage: Stage) -> Iterator[dict[str, Any]]:
        for part in run(entry.where, stage):
            yield part.as_json()
            entry.check(part)

    answer(file, partial(on_stage, database, SIZES[size], entry.visibility, durable=entry.durable), parts)


if __name__ == "__main__":
    main(*sys.argv[1:])
