"""`python -m handlers.resp FILE` puts the command table's documentation into the file, behind its marker."""

import sys
from pathlib import Path

from handlers.resp import commands
from handlers.resp.describe import with_tables

if __name__ == "__main__":
    commands.load()
    document = Path(sys.argv[1])
    document.write_text(with_tables(document.read_text(encoding="utf-8")), encoding="utf-8")
