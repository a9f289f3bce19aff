"""The pages in docs/: their tables from the code, the files that they name, and their links."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from pressure_server.app.cli import cli
from pressure_server.version import RELEASE
from tests.documents import DOCS, GENERATED, TABLES, with_tables
from tests.operators.tracked_files import tracked_files
from tests.support.paths import ROOT

PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
_NAMED_FILE = re.compile(r"`[^`\n]*?([\w/.-]*\w\.(?:py|lua))\b[^`\n]*`")
_NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


@pytest.mark.interpreted
@pytest.mark.parametrize("name", TABLES)
def test_a_document_has_the_current_tables_of_the_code(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == with_tables(name), "run: make docs"


@pytest.mark.parametrize("path", GENERATED)
def test_a_generated_file_is_current(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == GENERATED[path](), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_and_pages_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tracked = tracked_files()
    written_by_the_reader = re.findall(r'^```\w+ title="([^"]+)"$', text, re.MULTILINE)
    for name in _NAMED_FILE.findall(text):
        assert name in written_by_the_reader or any(f"/{path}".endswith(f"/{name}") for path in tracked), name
    for link in _LINK.findall(text):
        assert "://" in link or (page.parent / link).exists(), link


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the tests in a file; none if there is no such file."""
    if not (ROOT / file).exists():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    for file, name in _NAMED_TEST.findall(page.read_text(encoding="utf-8")):
        assert name in names_in(file), f"{file}::{name}"


def test_the_page_about_tests_lists_the_debian_packages_that_ci_installs() -> None:
    script = re.sub(r" #.*", "", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    installed = re.findall(r"packages\+?=\(([^)]*)\)", script)
    page = (DOCS / "internals" / "testing.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (`.*?) \|", page.partition("## Debian packages")[2].partition("## ")[0], re.MULTILINE
    )
    assert sorted(re.findall(r"`(.*?)`", " ".join(rows))) == sorted(" ".join(installed).split())


def test_the_page_of_options_names_all_commands() -> None:
    page = (DOCS / "reference/options.md").read_text("utf-8")
    assert [name for name in cli.commands if name != "serve" and f"`{name}`" not in page] == []


def test_the_version_is_the_newest_one_of_the_changelog() -> None:
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    assert newest == RELEASE


def test_every_ability_names_a_test() -> None:
    rows = re.findall(r"^\| (.*) \|$", (DOCS / "reference/abilities.md").read_text("utf-8"), re.MULTILINE)
    rows = [row.split(" | ") for row in rows if row != "ability | here | shown by"]
    assert all(len(row) == 3 for row in rows)
    # The column has nothing but names; otherwise a misspelt name would be overlooked.
    others = [(row[0], row[2]) for row in rows if not _NAMED_TEST.search(row[2])]
    assert [shown for _ability, shown in others] == ["not applicable"], others
    assert {_NAMED_TEST.sub("", row[2]).strip(" ,") for row in rows} == {"", "not applicable"}
