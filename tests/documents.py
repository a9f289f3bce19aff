"""Documents with tables from the code, and files made of the options.

`python -m tests.documents` writes them.
"""

from collections.abc import Callable

from handlers.beanstalk import commands as beanstalk_commands
from handlers.beanstalk.table import commands_markdown as beanstalk_table
from handlers.memcached import commands as memcached_commands
from handlers.memcached.table import commands_markdown as memcached_tables
from handlers.resp import commands as resp_commands
from handlers.resp.table import COMMANDS
from pressure_server.net.command_table import markdown
from tests.option_documents import options_markdown, sample_config
from tests.redis_suite.expectations import markdown as redis_tests_tables
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
_MARKER = "<!-- from the tables in the code: make docs -->\n"
# By group of commands.
_RESP_TITLES = {
    "set": "A queue as a set",
    "list": "A queue as a list",
    "pressure": "The pressure protocol's operations",
    "jobs": "Jobs",
    "logs": "Logs",
    "generic": "Queues as keys",
    "transactions": "Transactions",
    "connection": "The connection",
    "server": "The server",
}


def resp_tables() -> str:
    """Return the tables of docs/reference/commands.md."""
    shown = [one for entry in COMMANDS.values() for one in entry.subcommands.values() or [entry]]
    lines: list[str] = []
    for group, title in _RESP_TITLES.items():
        lines += markdown(title, [entry for entry in shown if entry.group == group])
    return "\n".join(lines)


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
