"""`python -m handlers.memcached FILE` puts the command table's documentation into the file."""

import sys
from pathlib import Path

from handlers.memcached import commands
from handlers.memcached.describe import commands_markdown
from pressure_server.documents import write_tables

if __name__ == "__main__":
    commands.load()
    write_tables(Path(sys.argv[1]), commands_markdown())
