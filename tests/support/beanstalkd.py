"""A real beanstalkd, with which the server is compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.programs import Program
from tests.support.requirements import need


class Beanstalkd(Program):
    """A beanstalkd on a port that it has again after a restart. With `folder` it keeps its jobs there."""

    def __init__(self, folder: Path | None = None) -> None:
        self.port = free_ports(1)[0]
        self._command = [need("beanstalkd", "beanstalkd"), "-l", "127.0.0.1", "-p", str(self.port)]
        if folder is not None:
            self._command += ["-b", str(folder), "-f", "0"]  # it syncs each write
        self.start()

    def start(self) -> None:
        self.launch()
        self.connected(self.port).close()


@contextmanager
def running_beanstalkd() -> Iterator[int]:
    """Run beanstalkd; yield its port."""
    beanstalkd = Beanstalkd()
    try:
        yield beanstalkd.port
    finally:
        beanstalkd.kill()
