"""What holds for all tests of faults."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import StartServer


@pytest.fixture
def no_error_in_the_log(start_server: StartServer, tmp_path: Path) -> Iterator[None]:
    """Check at the end that the servers of the test have logged no error."""
    yield
    for log in tmp_path.glob("server-*.log"):
        assert not re.search("Traceback|ERROR", log.read_text())
