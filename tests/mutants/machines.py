"""The machines: tests that drive the server by random steps, and the unit tests of queues, as commands."""

import sys
from typing import NamedTuple


class Machine(NamedTuple):
    """A command that fails if it finds a fault. `environment` bounds what it plays."""

    command: tuple[str, ...]
    environment: dict[str, str] = {}  # noqa: RUF012 -- nobody changes it
    sees_lua: bool = True


def _pytest(*arguments: str) -> tuple[str, ...]:
    plugins = ("-p", "no:cacheprovider", "-p", "tests.mutants.unshrunk")
    return (sys.executable, "-m", "pytest", "-qx", *plugins, *arguments)


MACHINES = {
    "simulator": Machine(
        (sys.executable, "-m", "tests.simulate", "--minutes", "0.9", "--programs", "220", "--most", "1")
    ),
    "waiting": Machine(_pytest("tests/waiting/matrix/test_matrix.py")),
    "units": Machine(_pytest("tests/unit/queues"), {}, sees_lua=False),
    "interleavings": Machine(
        _pytest("tests/interleavings"), {"PRESSURE_INTERLEAVINGS": "500"}, sees_lua=False
    ),
    "beanstalk": Machine(_pytest("tests/protocols/beanstalk/test_concurrency.py")),
}
