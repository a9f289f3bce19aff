"""Documents with tables from the code, and files made of the options.

`python -m tests.documents` writes them.
"""

from __future__ import annotations

from collections.abc import Callable

from handlers.beanstalk import commands as beanstalk_commands
from handlers.beanstalk.table import commands_markdown as beanstalk_table
from handlers.memcached import commands as memcached_commands
from handlers.memcached.table import commands_markdown as memcached_tables
from handlers.resp import commands as resp_commands
from handlers.resp.table import commands_markdown as resp_tables
from tests.option_documents import options_markdown, sample_config
from tests.redis_suite.expectations import markdown as redis_tests_tables
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
_MARKER = "<!-- from the tables in the code: make docs -->\n"
# By file: the function that returns its tables.
TABLES: dict[str, Callable[[], str]] = {
    "internals/redis-tests.md": redis_tests_tables,
    "reference/beanstalk.md": beanstalk_table,
    "reference/commands.md": resp_tables,
    "reference/memcached.md": memcached_tables,
    "reference/options.md": options_markdown,
}


def with_tables(name: str) -> str:
    """Return the document with everything after its marker replaced by the tables."""
    resp_commands.load()
    memcached_commands.load()
    beanstalk_commands.load()
    text = (DOCS / name).read_text(encoding="utf-8")
    return text.partition(_MARKER)[0] + _MARKER + "\n" + TABLES[name]()


# Files that have nothing but what comes from the code, by their paths in the repository.
GENERATED: dict[str, Callable[[], str]] = {"deploy/pressure-server.toml": sample_config}


if __name__ == "__main__":
    for document in TABLES:
        (DOCS / document).write_text(with_tables(document), encoding="utf-8")
    for path, write in GENERATED.items():
        (ROOT / path).write_text(write(), encoding="utf-8")
