"""`python -m handlers.memcached FILE` puts the command table's documentation into the file."""

import sys
from pathlib import Path

from handlers.documents import write_tables
from handlers.memcached import commands
from handlers.memcached.describe import commands_markdown

if __name__ == "__main__":
    commands.load()
    write_tables(Path(sys.argv[1]), commands_markdown())
