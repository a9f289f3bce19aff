"""A real beanstalkd, with which the server is compared."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.programs import TIMEOUT, wait_for
from tests.support.requirements import need


@contextmanager
def running_beanstalkd() -> Iterator[int]:
    """Run beanstalkd; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    command = [need("beanstalkd", "beanstalkd"), "-l", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: _answers(port), "beanstalkd to answer")
            yield port
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), TIMEOUT).close()
    except ConnectionRefusedError:
        return False
    return True
