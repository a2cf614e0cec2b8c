"""One curve on one database, in a process of its own: `python -m tests.benchmarks.curves.child NAME sqlite full FILE`."""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.benchmarks.curves.names import CURVES
from tests.benchmarks.harness import SIZES
from tests.benchmarks.stage import on_stage


def main(name: str, database: str, size: str, file: str) -> None:
    """Measure, and write results, versions or the error as JSON into the file."""
    begun = time.monotonic()
    found: dict[str, Any] = {"results": [], "versions": {}, "error": ""}
    entry = CURVES[name]
    try:
        with on_stage(database, SIZES[size], entry.visibility) as stage:
            found["versions"] = stage.versions()
            module, _, function = entry.where.partition(":")
            for one in getattr(importlib.import_module(f"tests.benchmarks.curves.{module}"), function)(stage):
                found["results"].append(one.as_json())
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
