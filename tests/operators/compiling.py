"""Builds that compile little: `make test-compiled` compiles everything, and that takes minutes."""

import re
from pathlib import Path

# Tells whether the server is compiled. It imports little, so mypyc reads little.
SOURCE = "pressure_server/words.py"


def compile_one_module(folder: Path) -> None:
    """Let setup.py in a copy of the sources compile one module only."""
    setup = folder / "setup.py"
    one = 'MODULES = "pressure_server/ words"'
    text, found = re.subn(r'^MODULES = """.*?"""', one, setup.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert found == 1
    setup.write_text(text)
