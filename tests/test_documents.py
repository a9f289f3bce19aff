"""Documents that have tables from the code."""

from __future__ import annotations

import pytest

from tests.documents import DOCS, TABLES, with_tables


@pytest.mark.parametrize("name", TABLES)
def test_a_document_has_the_tables_of_the_code(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == with_tables(name), "run: make docs"
