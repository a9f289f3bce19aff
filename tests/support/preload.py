"""Preloads: libraries in C beside this file that change what a program sees of its machine (LD_PRELOAD)."""

import functools
import subprocess
import tempfile
from pathlib import Path

from tests.support.requirements import need


@functools.cache
def preload(name: str) -> Path:
    """Return the library of the source `name`.c, compiled once per process."""
    library = Path(tempfile.mkdtemp(prefix=f"{name}-")) / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    compiler = need("gcc", "gcc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True
    )
    return library
