"""The docs and the README are held to the code: every Python block runs, every table names what there is."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.template import engines

import visibility
import visibility.datatypes
from tests import rows
from tests.app import models
from tests.model import protocol
from tests.mutants import MUTANTS
from tests.test_browser_docs import CODE as SCRIPT
from visibility import conf, freshness, signals
from visibility.datatypes import registry
from visibility.events import sources
from visibility.sockets import frames

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+), append -->\n)?```(?P<lang>\w*)\n(?P<code>.*?)```", re.DOTALL)

# What the browser module dispatches, as `emit(element, "update", …)` or by the name of a frame.
EVENTS = set(re.findall(r'emit\(\w+, "(\w+)"', SCRIPT)) | set(re.findall(r'op: "(watchers|error)"', SCRIPT))


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(page: Path, lang: str) -> list[str]:
    """The page's code blocks of a language that are not files of the tutorial; those are run by its own test."""
    return [m["code"] for m in BLOCK.finditer(page.read_text()) if m["lang"] == lang and not m["file"]]


def first_column(text: str, heading: str) -> list[str]:
    """The names in backticks in the first column of the table under a heading."""
    part = re.split(rf"^#+ {re.escape(heading)}\n", text, flags=re.MULTILINE)[1]
    part = re.split(r"^#", part, flags=re.MULTILINE)[0]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture
def blog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The apps of the snippets, whose models are this test project's; what they register is forgotten again."""
    for app in ("blog", "shop"):
        package, own = ModuleType(app), ModuleType(f"{app}.models")
        vars(own).update({name: value for name, value in vars(models).items() if not name.startswith("_")})
        monkeypatch.setitem(sys.modules, app, package)
        monkeypatch.setitem(sys.modules, f"{app}.models", own)
    monkeypatch.setenv("METRICS_TOKEN", "t")
    own_types, registry._types = registry._types, {}
    yield
    registry._types = own_types
    # The models are routed to the data types of the tests again.
    sources.forget()


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
@pytest.mark.django_db(transaction=True)
def test_every_python_block_runs(page: Path, blog: None) -> None:
    namespace: dict[str, Any] = {"__name__": "snippet"}
    for code in blocks(page, "python"):
        exec(compile(code, f"{page.name}", "exec"), namespace)  # noqa: S102


@pytest.mark.django_db(transaction=True)
def test_a_row_that_changes_its_owner_tells_the_old_one_too(blog: None, make_user: Callable[..., Any]) -> None:
    code = next(code for code in blocks(ROOT / "docs" / "data-types.md", "python") if "post_init" in code)
    # Held here: a signal knows its receivers weakly.
    snippet: dict[str, Any] = {"__name__": "snippet"}
    exec(code, snippet)  # noqa: S102
    ann, bob = make_user("ann"), make_user("bob")
    pk = models.Order.objects.create(customer=ann).pk
    for before, after in ((ann, bob), (bob, ann)):
        assert visibility.read("orders", before.pk).data == {"orders": 1}
        assert visibility.read("orders", after.pk).data == {"orders": 0}
        order = models.Order.objects.get(pk=pk)
        order.customer = after
        order.save()
        assert visibility.read("orders", before.pk).data == {"orders": 0}
        assert visibility.read("orders", after.pk).data == {"orders": 1}


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "html")], ids=lambda p: p.name)
def test_every_template_compiles_and_hears_what_is_sent(page: Path) -> None:
    for code in blocks(page, "html"):
        engines["django"].from_string("{% load visibility %}" + code)
        assert set(re.findall(r"visibility:(\w+)", code)) <= EVENTS


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_public_names_are_all_there_with_their_arguments() -> None:
    page = text_of("reference.md")
    calls, declared, errors = ([*first_column(page, heading)] for heading in ("Calls", "Declarations", "Errors"))
    names = [name.partition("(")[0] for name in calls]
    twins = [f"a{name}" for name in names if name != "lock"]
    others = [name.partition("(")[0] for name in declared] + errors + first_column(page, "Signals")
    assert sorted(names + twins + others) == visibility.__all__
    for call in [*calls, *declared]:
        name, has_arguments, arguments = call.partition("(")
        if has_arguments:
            assert re.findall(r"\w+", arguments) == [*inspect.signature(getattr(visibility, name)).parameters], call


def test_snapshot_and_change_are_described_whole() -> None:
    page = text_of("reference.md")
    for cls in (visibility.Snapshot, visibility.Change):
        properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
        fields = [field.name for field in dataclasses.fields(cls)]
        assert sorted(first_column(page, cls.__name__)) == sorted(fields + properties)
    line = next(line for line in page.splitlines() if line.startswith("| `action` |"))
    assert tuple(re.findall(r"`(\w+)`", line)[1:]) == visibility.datatypes.ACTIONS


def test_settings_are_all_there() -> None:
    assert sorted(first_column(text_of("reference.md"), "Settings")) == sorted(conf.DEFAULTS)
    limits = conf.DEFAULTS["LIMITS"]
    for name, value in limits.items():
        assert f"`{name}` {value}" in text_of("reference.md")


def test_settings_have_their_defaults() -> None:
    for line in text_of("reference.md").splitlines():
        match = re.match(r"\| `([A-Z_]+)` \| ([^|]+) \|", line)
        if match and re.fullmatch(r"[\d_.]+", match[2].strip()):
            assert float(match[2]) == conf.DEFAULTS[match[1]], match[1]


def test_lane_options_are_all_there() -> None:
    fields = {f.name: f.default for f in dataclasses.fields(conf.Lane) if f.name != "name"}
    assert sorted(first_column(text_of("reference.md"), "Lanes")) == sorted(fields)
    for line in text_of("reference.md").splitlines():
        match = re.match(r"\| `([a-z]+)` \| ([\d.]+) \|", line)
        if match and match[1] in fields:
            assert float(match[2]) == fields[match[1]], match[1]


def test_signals_are_all_there() -> None:
    told = first_column(text_of("reference.md"), "Signals")
    assert sorted(told) == sorted(name for name, value in vars(signals).items() if type(value).__name__ == "Signal")


def test_checks_are_all_there() -> None:
    from visibility import checks

    source = Path(checks.__file__).read_text()
    ids = set(re.findall(r'"(visibility\.[EW]\d{3})"', source))
    assert set(first_column(text_of("reference.md"), "System checks")) == ids


def test_attributes_of_a_data_type_are_all_there() -> None:
    told = set(first_column(text_of("data-types.md"), "What you may set"))
    own = {
        name
        for name, value in vars(visibility.datatypes.DataType).items()
        if not name.startswith("_") and not callable(value) and not isinstance(value, property) and name != "sources"
    }
    assert told == own


def test_close_codes_are_all_there() -> None:
    told = set(re.findall(r"^\| (4\d{3}) \|", text_of("socket-protocol.md"), flags=re.MULTILINE))
    codes = {str(v) for n, v in vars(frames).items() if n.isupper() and isinstance(v, int) and 4000 <= v < 5000}
    assert told == codes


def test_redis_keys_are_all_there() -> None:
    told = {name.partition(":")[0] for name in first_column(text_of("architecture.md"), "Redis keys")}
    roles: set[str] = set()
    soft = ROOT / "visibility" / "soft"
    for path in [*soft.glob("lua/*.lua"), *soft.glob("*.py"), *(ROOT / "visibility").glob("*.py")]:
        source = path.read_text()
        roles.update(re.findall(r"base \.\. ':([\w-]+)", source))
        roles.update(re.findall(r"\bkey\([^()]*?(?:\([^()]*\)[^()]*?)?, \"(\w+)\"", source))
    # Roles that scripts take from a list.
    assert told == roles | {"background", "holders"}


def test_findings_are_all_there_and_each_has_a_test() -> None:
    codes: set[str] = set()
    for path in (ROOT / "visibility" / "doctor").glob("*.py"):
        codes.update(re.findall(r'code="(\w+)"', path.read_text()))
    codes = codes - {"promise_"} | {f"promise_{state}" for state in freshness.ALERTING}
    assert set(first_column(text_of("diagnosis.md"), "Findings")) == codes
    tests = (ROOT / "tests" / "test_doctor.py").read_text()
    assert [code for code in codes if f'"{code}"' not in tests] == []


def test_test_helpers_are_all_there() -> None:
    from visibility import testing

    told = {name.partition("(")[0] for name in first_column(text_of("testing.md"), "Testing your data types")}
    public = {n for n, v in vars(testing).items() if not n.startswith("_") and getattr(v, "__module__", "") == testing.__name__}
    assert told == public - {"Killed"}


def test_every_reported_failure_has_its_tests_in_the_table() -> None:
    page = text_of("proof.md")
    assert {row for row, _ in rows.ROW.findall(page)} == set(rows.tests_by_row())
    assert rows.written(page) == page, "python -m tests.rows writes the table"


def names_of_tests() -> set[str]:
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_the_proofs_name_tests_that_exist() -> None:
    told = set(re.findall(r"`(test_\w+)`", text_of("proof.md")))
    assert told - names_of_tests() == set()
    for path in re.findall(r"`?((?:tests|docs|visibility|\.ci)/[\w./]+)", text_of("proof.md")):
        assert (ROOT / path).exists(), path


def test_the_proofs_name_every_rule_mutant_scenario_and_invariant() -> None:
    page = text_of("proof.md")
    part = page.split("## The eight rules\n")[1].split("\n## ")[0]
    lines = [line.split(" | ") for line in part.splitlines() if re.match(r"\| \d ", line)]
    assert {line[4].strip("`") for line in lines} == protocol.RULES
    for line in lines:
        files = re.findall(r"`([^`]+)`", line[1])
        for name in re.findall(r"`([^`]+)`", line[3]):
            assert MUTANTS[name].file in files, name
    assert set(MUTANTS) - set(re.findall(r"`([^`]+)`", part)) == set()
    assert set(re.findall(r"^\| ([a-z, ]+) \| [\d,]+ \|", page, flags=re.MULTILINE)) == set(protocol.SCENARIOS)
    assert set(re.findall(r"^\| (I\d) \|", page, flags=re.MULTILINE)) == {f"I{n}" for n in range(1, 9)}
