"""One bar on one database, in a process of its own: `python -m tests.benchmarks.child B3 sqlite full FILE`."""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.benchmarks.bars import BARS
from tests.benchmarks.harness import SIZES
from tests.benchmarks.stage import on_stage, run


def main(name: str, database: str, size: str, file: str) -> None:
    """Measure, and write parts, versions or the error as JSON into the file."""
    begun = time.monotonic()
    found: dict[str, Any] = {"parts": [], "versions": {}, "error": ""}
    entry = BARS[name]
    try:
        with on_stage(database, SIZES[size], entry.visibility, durable=entry.durable) as stage:
            found["versions"] = stage.versions()
            for part in run(entry.where, stage):
                found["parts"].append(part.as_json())
                entry.check(part)
    except BaseException as error:
        # pytest's Skipped is one: `need` says with it what this machine lacks.
        found["error"] = f"{type(error).__name__}: {error}"
        if not type(error).__module__.startswith("_pytest"):
            traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        found["seconds"] = time.monotonic() - begun
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
