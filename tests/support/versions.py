"""Another version of the source: this one with a line more in the library, which gives it another name."""

import shutil
from pathlib import Path

import handlers
import pressure_server


def version_with(text: str, folder: Path) -> Path:
    """Return a folder with a version of the source whose library does this at the beginning of a call."""
    for package in (pressure_server, handlers):
        source = Path(package.__path__[0])
        shutil.copytree(
            source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.sha256")
        )
    module = folder / "pressure_server" / "lua" / "core" / "library.lua"
    start = "local function do_call(keys, arguments, full, refusal)\n"
    assert module.read_text().count(start) == 1
    module.write_text(module.read_text().replace(start, f"{start}  {text}\n"))
    return folder
