"""The library with other limits: with small ones, a few messages need many slices, scans and calls."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pressure_server.lua.scripts import Library
from tests.support.paths import ROOT

# The fast path has fewer arguments than CHUNK, five of which are no messages.
SMALL = {b"SLICE": 2, b"SCAN": 3, b"CHUNK": 7, b"MESSAGES": 2, b"BYTES": 8}


def with_constants(library: Library, constants: Mapping[bytes, int]) -> Library:
    """Return the library with other values for these constants."""
    body = library.body
    for name, value in constants.items():
        body, found = re.subn(rb"\b%b = \d+" % name, b"%b = %d" % (name, value), body)
        assert found == 1, f"the library has no constant {name.decode()}"
    return Library(body)


def small_library() -> dict[str, str]:
    """Return the environment of a server whose library has small limits."""
    return {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent / "small"), str(ROOT)))}
