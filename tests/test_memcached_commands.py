"""Commands of the memcached handler that are about the server; and the document made from its table."""

from __future__ import annotations

from pathlib import Path

from handlers.memcached import commands
from handlers.memcached.describe import commands_markdown
from pressure_server.documents import with_tables

ROOT = Path(__file__).parent.parent


def test_the_document_of_memcached_commands_is_the_table_s() -> None:
    commands.load()
    text = (ROOT / "docs" / "memcached.md").read_text(encoding="utf-8")
    assert text == with_tables(text, commands_markdown()), "run: make docs"
