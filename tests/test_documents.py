"""The pages in docs/: their tables from the code, the files that they name, and their links."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.documents import DOCS, TABLES, with_tables

ROOT = DOCS.parent
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
_NAMED_FILE = re.compile(r"`[^`\n]*?([\w/.-]*\w\.(?:py|lua))\b[^`\n]*`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


@pytest.mark.parametrize("name", TABLES)
def test_a_document_has_the_current_tables_of_the_code(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == with_tables(name), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_and_pages_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    for name in _NAMED_FILE.findall(text):
        assert any(f"/{path}".endswith(f"/{name}") for path in tracked), name
    for link in _LINK.findall(text):
        assert "://" in link or (page.parent / link).exists(), link
