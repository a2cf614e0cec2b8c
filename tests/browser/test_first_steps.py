"""The newcomer: docs/first-steps.md to the letter, from the built wheel, in a new virtual environment, to a live browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.support import servers
from tests.support.processes import port_open
from tests.support.wait import wait_for

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-steps.md").read_text()
FILES = re.findall(r"<!-- file: (\S+), append -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
CHANGE = re.findall(r'^python manage\.py shell -c "(.*)"$', PAGE, re.MULTILINE)[0]
BESIDES = re.findall(r"^pip install django-visibility(.*)$", PAGE, re.MULTILINE)[0].split()
MAKE = re.findall(r'`python manage\.py shell -c "(.*?)"`', PAGE)[0]


# A newcomer's shell knows nothing of this test run.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("VISIBILITY_", "DJANGO_", "REDIS_", "PYTEST_", "PYTHON"))}


def test_it_is_at_most_thirty_lines() -> None:
    written = [line for _, text in FILES for line in text.splitlines() if line.strip()]
    assert len(written) <= 30, len(written)


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A virtual environment with the wheel, and a fresh project in it: (the project's folder, its python)."""
    folder = tmp_path_factory.mktemp("newcomer")
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    python = str(folder / "venv" / "bin" / "python")
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "dist"), str(ROOT), cwd=folder)
    wheel = next((folder / "dist").glob("django_visibility-*.whl"))
    run(python, "-m", "pip", "install", "-q", str(wheel), *BESIDES, cwd=folder)
    run(python, "-m", "django", "startproject", "mysite", cwd=folder)
    project = folder / "mysite"
    run(python, "manage.py", "startapp", "shop", cwd=project)
    return project, python


@pytest.mark.timeout(900)
def test_from_startproject_to_a_pushed_update(site: tuple[Path, str], browser: Any) -> None:
    project, python = site
    with servers.valkey() as redis:
        for name, text in FILES:
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text() if path.exists() else ""
            path.write_text(before + "\n" + text.replace("redis://127.0.0.1:6379/0", redis.url))
        run(python, "manage.py", "check", cwd=project)
        run(python, "manage.py", "makemigrations", "shop", cwd=project)
        run(python, "manage.py", "migrate", cwd=project)
        run(python, "manage.py", "shell", "-c", MAKE, cwd=project)
        port = free_port()
        commands = (["runserver", f"127.0.0.1:{port}", "--noreload"], ["visibility_worker"])
        logs = (project / "log").open("w")
        children = [
            subprocess.Popen([python, "manage.py", *command], cwd=project, stdout=logs, stderr=subprocess.STDOUT, env=ENVIRONMENT)
            for command in commands
        ]
        try:
            wait_for(lambda: port_open(port), 60, "the site answers")
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/order/1/")
            page.wait_for_function("document.querySelector('p').textContent == 'new'", timeout=60_000)
            run(python, "manage.py", "shell", "-c", CHANGE, cwd=project)
            page.wait_for_function("document.querySelector('p').textContent == 'shipped'", timeout=60_000)
            page.close()
            said = run(python, "manage.py", "visibility_explain", "status:1", cwd=project)
            assert "status:1" in said
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait(30)
            logs.close()
            print((project / "log").read_text())  # noqa: T201
