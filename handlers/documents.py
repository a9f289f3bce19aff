"""Documents with a part that is made by a program: what `make docs` puts into them."""

from __future__ import annotations

from pathlib import Path

_MARKER = "<!-- from the tables in the code: make docs -->\n"


def with_tables(document: str, tables: str) -> str:
    """The document with all behind its marker replaced by the tables."""
    return document.partition(_MARKER)[0] + _MARKER + "\n" + tables


def write_tables(path: Path, tables: str) -> None:
    """Put the tables into that file, behind its marker."""
    path.write_text(with_tables(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
