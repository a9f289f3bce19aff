"""`python -m pressure_server.app FILE` puts the table of options into the file."""

import sys
from pathlib import Path

from handlers.documents import write_tables
from pressure_server.app.options import options_markdown

if __name__ == "__main__":
    write_tables(Path(sys.argv[1]), options_markdown())
