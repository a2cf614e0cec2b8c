"""`python -m tests.benchmarks.curves [NAME …] [--json FILE] [--svg FOLDER] [--size full|short|tiny]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.apart import ask, chosen
from tests.benchmarks.curves.core import Curve, Result, dump, merge, result_of, text
from tests.benchmarks.curves.names import CURVES
from tests.benchmarks.curves.svg import draw
from tests.benchmarks.harness import SIZES, say


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.curves", description="Measure how costs grow.")
    made.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CURVES)} (default: all)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures here; others there stay")
    made.add_argument("--svg", type=Path, metavar="FOLDER", help="write a picture of each curve here, curve-NAME.svg")
    made.add_argument(
        "--database", choices=("sqlite", "postgres", "both"), default="both", help="where it matters (default: both)"
    )
    made.add_argument("--size", choices=SIZES, default="full", help="how far curves go; tiny shows only that they run")
    return made


def measure(name: str, databases: Sequence[str], size: str, about: dict[str, Any]) -> list[Result]:
    """One command's results, each database in a process of its own. `about` learns of versions, seconds and errors."""
    entry, results = CURVES[name], []
    for database in chosen(entry.databases, databases):
        say(f"{name} on {database} …")
        found = ask("tests.benchmarks.curves.child", name, database, size)
        results += [result_of(row) for row in found["rows"]]
        about["versions"].update(found["versions"])
        about["seconds"][f"{name} {database}"] = round(found["seconds"], 1)
        if found["error"]:
            about["errors"].append(f"{name} on {database}: {found['error']}")
    return merge(results)


def kept(file: Path, results: list[Result]) -> list[Result]:
    """These results among those of the file, whose place they take: a curve may be measured again alone."""
    before = [result_of(row) for row in json.loads(file.read_text())["results"]] if file.exists() else []
    new = {one.name: one for one in results}
    return [new.pop(one.name, one) for one in before] + list(new.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for, print and write it. 1 if a curve could not be measured."""
    options = parser().parse_args(arguments)
    names = options.names or list(CURVES)
    if unknown := [name for name in names if name not in CURVES]:
        parser().error(f"no curve {', '.join(unknown)}; there are {', '.join(CURVES)}")
    databases = ("sqlite", "postgres") if options.database == "both" else (options.database,)
    about: dict[str, Any] = {"size": options.size, "versions": {}, "seconds": {}, "errors": []}
    results: list[Result] = []
    for name in names:
        for one in measure(name, databases, options.size, about):
            results.append(one)
            print(text(one), flush=True)
            if options.svg and isinstance(one, Curve):
                options.svg.mkdir(parents=True, exist_ok=True)
                (options.svg / f"curve-{one.name}.svg").write_text(draw(one))
        # After each, so that a run which is ended early keeps what it has.
        if options.json:
            options.json.write_text(dump(kept(options.json, results), about) + "\n")
    for error in about["errors"]:
        print(f"! {error}")
    print("\non " + ", ".join(f"{name} {version}" for name, version in about["versions"].items()))
    return int(bool(about["errors"]))


if __name__ == "__main__":
    sys.exit(main())
