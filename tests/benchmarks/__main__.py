"""`python -m tests.benchmarks [B1 …] [--json] [--database sqlite|postgres|both] [--size full|short|tiny]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.apart import ask, chosen
from tests.benchmarks.bars import BARS
from tests.benchmarks.harness import SIZES, Bar, dump, part_of, say, table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure the bars of the design.")
    made.add_argument("bars", nargs="*", metavar="BAR", help=f"{', '.join(BARS)} (default: all)")
    made.add_argument("--json", action="store_true", help="print a JSON list, a row a bar, instead of a table")
    made.add_argument(
        "--database", choices=("sqlite", "postgres", "both"), default="both", help="where it matters (default: both)"
    )
    made.add_argument(
        "--size", choices=SIZES, default="full", help="how much is done; tiny shows only that it runs (default: full)"
    )
    made.add_argument("--trace", type=Path, help="the trace that B11 replays (default: $BENCHMARK_TRACE, else a made one)")
    made.add_argument("--strict", action="store_true", help="exit with 1 if a bar does not hold")
    return made


def measure(name: str, databases: Sequence[str], size: str) -> Bar:
    """One bar, each database in a process of its own."""
    entry = BARS[name]
    bar = Bar(name=name, title=entry.title)
    for database in chosen(entry.databases, databases):
        say(f"{name} on {database} …")
        found = ask("tests.benchmarks.child", name, database, size)
        bar.parts += [part_of(row) for row in found["rows"]]
        bar.versions.update(found["versions"])
        bar.seconds += found["seconds"]
        if found["error"]:
            bar.errors.append(f"{database}: {found['error']}")
    return bar


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for, print it, and answer the exit code."""
    options = parser().parse_args(arguments)
    names = [name.upper() for name in options.bars] or list(BARS)
    if unknown := [name for name in names if name not in BARS]:
        parser().error(f"no bar {', '.join(unknown)}; there are {', '.join(BARS)}")
    if options.trace:
        os.environ["BENCHMARK_TRACE"] = str(options.trace.resolve())
    databases = ("sqlite", "postgres") if options.database == "both" else (options.database,)
    bars = [measure(name, databases, options.size) for name in names]
    print(dump(bars) if options.json else table(bars))
    return int(options.strict and not all(bar.holds for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
