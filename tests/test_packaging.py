"""What is built is what is here: every file of the package in the wheel, and one list of requirements."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import visibility

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> dict[str, Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    found = [Requirement(line) for line in lines if line]
    return {each.name.lower(): each for each in found}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    built = {name for name in wheel.namelist() if ".dist-info/" not in name}
    here = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "visibility").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert built == here
    for suffix in (".lua", ".typed", ".py"):
        assert any(name.endswith(suffix) for name in built), suffix


@pytest.mark.slow
def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    assert "\nName: django-visibility\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "\nLicense-Expression: BSD-3-Clause\n" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_demo_and_the_tests_install_what_the_package_needs() -> None:
    pinned = requirements()
    for line in PROJECT["dependencies"]:
        wanted = Requirement(line)
        assert wanted.name.lower() in pinned, f"requirements.txt lacks {wanted.name}"
        given = pinned[wanted.name.lower()]
        assert wanted.extras <= given.extras
        # Every lower bound of the pin is a version that the package allows.
        for specifier in given.specifier:
            if specifier.operator in (">=", "~=", "=="):
                assert wanted.specifier.contains(specifier.version), f"{given} is outside {wanted}"


def test_every_requirement_is_bounded_above() -> None:
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    for requirement in [*map(Requirement, lines), *requirements().values()]:
        assert any(each.operator in ("<", "<=", "==", "~=") for each in requirement.specifier), str(requirement)


def test_the_interpreters_named_are_the_ones_allowed() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named[0] == "3.11"
    assert all(allowed.contains(version) for version in named)


def test_one_version_everywhere() -> None:
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == PROJECT["version"] == visibility.__version__


def test_the_readme_has_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    begin = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/python "
    assert lines.count(begin + "manage.py demo") == 1
    assert lines.count(begin + "-m pytest") == 1


HEAVY = ("redis", "rq", "django_rq", "channels", "channels_redis", "prometheus_client", "opentelemetry", "visibility.soft")
SETUP = """
import django
from django.conf import settings
apps = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "visibility"]
settings.configure(INSTALLED_APPS=apps, SECRET_KEY="for tests only", USE_TZ=True)
django.setup()
"""


def modules_after(code: str) -> set[str]:
    """What a new process has imported after this code."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


def test_import_visibility_imports_nothing_else() -> None:
    loaded = modules_after("import visibility")
    assert "visibility" in loaded
    assert not [name for name in loaded if name.startswith(("visibility.", "django.")) or name in HEAVY]


def test_the_installed_app_imports_no_client_no_queue_and_no_sockets() -> None:
    loaded = modules_after(SETUP)
    assert "visibility.events.sources" in loaded
    assert not [name for name in HEAVY if name in loaded]
