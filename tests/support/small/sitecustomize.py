"""Gives a server a library with small limits: Python imports this if PYTHONPATH has its folder."""

from pressure_server.lua import scripts
from tests.support.small_library import SMALL, with_constants

_library = with_constants(scripts.library(), SMALL)
scripts.library = lambda: _library  # type: ignore[assignment]
