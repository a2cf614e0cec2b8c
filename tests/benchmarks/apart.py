"""A measurement in a process of its own: how the parent asks, and how the child answers, in a file of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.benchmarks.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
# Settings of whoever calls must not change what is measured.
OWN = ("DJANGO_SETTINGS_MODULE", "REDIS_URL")


def chosen(databases: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The databases to measure on: those asked for where it makes a difference, else the first of them."""
    return [one for one in databases if one in asked] or list(databases[:1])


def ask(module: str, name: str, database: str, size: str) -> dict[str, Any]:
    """Run `python -m module name database size FILE`; its `rows`, `versions`, `seconds` and `error` ("" if there was none)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        env = {key: value for key, value in os.environ.items() if key not in OWN and not key.startswith("VISIBILITY_")}
        command = [sys.executable, "-m", module, name, database, size, str(file)]
        code = subprocess.run(command, cwd=ROOT, env=env, stdout=sys.stderr, check=False).returncode
        found = json.loads(file.read_text()) if file.exists() else {"error": f"its process ended with {code}"}
    return {"rows": [], "versions": {}, "seconds": 0.0, **found}


def answer(
    file: str, stage: Callable[[], AbstractContextManager[Stage]], measure: Callable[[Stage], Iterable[dict[str, Any]]]
) -> None:
    """In the child: measure on the stage, and write rows as they came, versions, and what ended it if that was an error."""
    begun = time.monotonic()
    found: dict[str, Any] = {"rows": [], "versions": {}, "error": ""}
    try:
        with stage() as ready:
            found["versions"] = ready.versions()
            for row in measure(ready):
                found["rows"].append(row)
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
