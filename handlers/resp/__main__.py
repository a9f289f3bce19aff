"""`python -m handlers.resp FILE` puts the command table's documentation into the file."""

import sys
from pathlib import Path

from handlers.documents import write_tables
from handlers.resp import commands
from handlers.resp.describe import commands_markdown

if __name__ == "__main__":
    commands.load()
    write_tables(Path(sys.argv[1]), commands_markdown())
