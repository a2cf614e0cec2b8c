"""Which test shows which reported failure impossible: `python -m tests.rows` writes the table's last column in docs/proof.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "proof.md"
ROW = re.compile(r"^\| ([LSEJCM]\d+) \| ([^|]*) \|[^|\n]*\|$", re.MULTILINE)


def tests_by_row() -> dict[str, list[str]]:
    """The tests that carry a row in their names, by row, with their file under tests/."""
    out: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, rows in re.findall(r"def (test_((?:[LSEJCM]\d+_)+)\w+)", path.read_text()):
            for row in rows.strip("_").split("_"):
                out.setdefault(row, []).append(f"`{path.relative_to(ROOT / 'tests')}`: `{name}`")
    return out


def written(page: str) -> str:
    """The page with the tests that there are now."""
    found = tests_by_row()
    return ROW.sub(lambda m: f"| {m[1]} | {m[2]} | {', '.join(found.get(m[1], []))} |", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
