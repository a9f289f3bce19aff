"""The man pages, from the same texts as `--help`. `python -m tests.man_pages FOLDER` writes them."""

import sys
from pathlib import Path

from click_man.core import write_man_pages  # type: ignore[import-untyped] # it has no types

from pressure_server import __version__
from pressure_server.app.cli import cli


def write_pages(folder: Path) -> list[Path]:
    """Write a page for the program, and one for each command. Return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    write_man_pages("pressure-server", cli, version=__version__, target_dir=str(folder))
    return sorted(folder.glob("*.1"))


if __name__ == "__main__":
    for page in write_pages(Path(sys.argv[1])):
        print(page)
