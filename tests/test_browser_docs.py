"""docs/browser.md, the module's header and its code say the same."""

from __future__ import annotations

import re
from pathlib import Path

import visibility
from visibility.templatetags.visibility import OPTIONS

SCRIPT = (Path(visibility.__path__[0]) / "static/visibility/visibility.js").read_text()
HEADER = SCRIPT[: SCRIPT.index("*/")]
CODE = SCRIPT[SCRIPT.index("*/") :]
PAGE = (Path(__file__).parent.parent / "docs/browser.md").read_text()


def section(name: str) -> str:
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_options() -> None:
    found = re.search(r"const DEFAULTS = \{(.*?)\};", CODE, re.DOTALL)
    assert found
    code = dict(re.findall(r'(\w+): "?([^",]*)"?,', found[1] + ","))
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|\(set by the tag\)) \| (?:`(.*?)`)? ?\|", section("Options"), re.MULTILINE)
    assert {name: default for name, _, default in rows} == code
    assert {tag: name for name, tag, _ in rows if tag} == OPTIONS
    for name in code:
        assert re.search(rf"^ \*   (\w+, )?{name}\b", HEADER, re.MULTILINE), name


def test_events() -> None:
    rows = set(re.findall(r"^\| `visibility:(\w+)` \|", section("Events"), re.MULTILINE))
    assert rows == set(re.findall(r"^ \*   visibility:(\w+)", HEADER, re.MULTILINE))
    emitted = set(re.findall(r'emit\(\w+, "(\w+)"', CODE)) | set(re.findall(r'op: "(watchers|error)"', CODE))
    assert rows == emitted


def test_calls_and_close_codes() -> None:
    calls = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    assert calls == set(re.findall(r"^export function (\w+)", CODE, re.MULTILINE))
    for codes in re.findall(r"const (?:STOP|STRAINED) = new Set\(\[(.*?)\]\)", CODE):
        assert set(codes.split(", ")) <= set(re.findall(r"\d{4}", HEADER))
