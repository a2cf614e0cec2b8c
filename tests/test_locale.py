"""The catalogues of the admin's texts: complete, translated, compiled, and what a browser that asks for them gets."""

from __future__ import annotations

import ast
import gettext
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import Client

from tests.support.needs import need

PACKAGE = Path(__file__).resolve().parent.parent / "visibility"
LANGUAGES = ("en", "id")
PLACEHOLDER = re.compile(r"%\(\w+\)[-+ #0-9.]*[a-z]|%%|<[^>]+>|&\w+;")


class Entry(NamedTuple):
    """One message: its text, its plural ("" where it has none), what it is translated to, and its flags."""

    text: str
    plural: str
    translated: tuple[str, ...]
    flags: frozenset[str]


def folder(language: str, package: Path = PACKAGE) -> Path:
    return package / "locale" / language / "LC_MESSAGES"


def entries(po: Path) -> list[Entry]:
    """The entries of a catalogue, the header (the message of the empty text) among them."""
    out = []
    for block in re.split(r"\n{2,}", po.read_text("utf-8").strip()):
        flags: set[str] = set()
        fields: dict[str, str] = {}
        field = ""
        for line in block.splitlines():
            if line.startswith("#"):
                flags |= {flag.strip() for flag in line[2:].split(",")} if line.startswith("#,") else set()
                continue
            if named := re.match(r"(msg\S+) ", line):
                field = named[1]
            assert line.endswith('"') and field, f"{po}: {line}"
            fields[field] = fields.get(field, "") + str(ast.literal_eval(line[line.index('"') :]))
        if fields:
            translated = tuple(text for name, text in fields.items() if name.startswith("msgstr"))
            out.append(Entry(fields["msgid"], fields.get("msgid_plural", ""), translated, frozenset(flags)))
    return out


def messages(po: Path) -> list[Entry]:
    return [entry for entry in entries(po) if entry.text]


def header(po: Path) -> dict[str, str]:
    lines = next(entry for entry in entries(po) if not entry.text).translated[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """The messages of the sources as they are now, collected from a copy."""
    need("gettext")
    copy = tmp_path_factory.mktemp("sources") / "visibility"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("locale", "__pycache__", "static", "migrations"))
    (copy / "locale").mkdir()
    command = [sys.executable, "-m", "django", "makemessages", "-l", "id", "--no-location", "--no-obsolete"]
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {(entry.text, entry.plural) for entry in messages(folder("id", copy) / "django.po")}


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_of_the_sources_is_in_the_catalogue_and_no_other(language: str, wanted: set[tuple[str, str]]) -> None:
    here = {(entry.text, entry.plural) for entry in messages(folder(language) / "django.po")}
    assert wanted - here == set(), "run makemessages, and translate these"
    assert here - wanted == set(), "run makemessages: no source has these"


def test_every_message_has_its_indonesian() -> None:
    found = messages(folder("id") / "django.po")
    assert len(found) > 300
    assert [entry.text for entry in found if "fuzzy" in entry.flags] == []
    assert [entry.text for entry in found if not all(entry.translated)] == []
    # Indonesian has one form for every number.
    assert header(folder("id") / "django.po")["Plural-Forms"] == "nplurals=1; plural=0;"
    assert [entry.text for entry in found if len(entry.translated) != 1] == []


def test_placeholders_and_markup_are_those_of_the_message() -> None:
    for entry in messages(folder("id") / "django.po"):
        told = sorted(PLACEHOLDER.findall(entry.translated[0]))
        assert told == sorted(PLACEHOLDER.findall(entry.plural or entry.text)), entry.text
        # What is joined with another text keeps the spaces at its ends.
        for end in (0, -1):
            assert entry.translated[0][end].isspace() == entry.text[end].isspace(), repr(entry.text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_header_names_the_language_and_nobody(language: str) -> None:
    found = header(folder(language) / "django.po")
    assert found["Language"] == language
    assert found["Content-Type"] == "text/plain; charset=UTF-8"
    text = (folder(language) / "django.po").read_text("utf-8")
    assert not re.search(r"\w@\w", text)
    assert "POT-Creation-Date" not in text, "a date that changes with every run is noise in the history"


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    with (folder(language) / "django.mo").open("rb") as file:
        compiled: dict[Any, str] = dict(gettext.GNUTranslations(file)._catalog)  # type: ignore[attr-defined]
    written: dict[Any, str] = {}
    for entry in entries(folder(language) / "django.po"):
        if entry.plural and any(entry.translated):
            written |= {(entry.text, number): text for number, text in enumerate(entry.translated)}
        elif any(entry.translated):
            written[entry.text] = entry.translated[0]
    assert compiled == written, "run compilemessages"


@pytest.mark.parametrize("language", LANGUAGES)
def test_gettext_accepts_the_catalogue(language: str, tmp_path: Path) -> None:
    msgfmt = need("gettext")
    catalogue = folder(language) / "django.po"
    command = [msgfmt, "--check-format", "--check-domain", "--output-file", str(tmp_path / "django.mo"), str(catalogue)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_browser_that_asks_for_indonesian_gets_it(admin_client: Client, settings: Any) -> None:
    at = settings.MIDDLEWARE.index("django.middleware.common.CommonMiddleware")
    settings.MIDDLEWARE = [*settings.MIDDLEWARE[:at], "django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE[at:]]
    url = "/admin/visibility/scopemark/"
    told = admin_client.get(url, headers={"accept-language": "id"}).content.decode()
    assert '<html lang="id"' in told
    for word in ("Ikhtisar", "Tanda cakupan", "Pemantau", "Hanya cakupan utuh: author:7."):
        assert word in told
    told = admin_client.get(url, headers={"accept-language": "en"}).content.decode()
    assert "Overview" in told
    assert "Ikhtisar" not in told
