"""A wait ends in each client library as with its usual server, when that is stopped: by a connection error.

Applications connect again after such an error.
"""

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.client_scripts import need_library, need_php_files
from tests.support.installed_applications import NODE_MODULES, SCRIPTS
from tests.support.programs import BackgroundProgram, wait_for
from tests.support.requirements import need_success
from tests.support.stores import BeanstalkdStore, EmbeddedStore, ListQueue, Queue, RedisStore, StoreType, Tube

pytestmark = pytest.mark.clients

_RUNNERS = {"py": sys.executable, "php": "php", "rb": "ruby", "js": "node"}


class Library(NamedTuple):
    """The language of a client library, and the server with which it is compared."""

    language: str
    control: StoreType


LIBRARIES = {
    "redis-py": Library("py", RedisStore),
    "phpredis": Library("php", RedisStore),
    "Predis": Library("php", RedisStore),
    "redis-rb": Library("rb", RedisStore),
    "ioredis": Library("js", RedisStore),
    "node-redis": Library("js", RedisStore),
    "greenstalk": Library("py", BeanstalkdStore),
    "pystalk": Library("py", BeanstalkdStore),
    "beanstalkc": Library("py", BeanstalkdStore),
    "Pheanstalk": Library("php", BeanstalkdStore),
    "Beaneater": Library("rb", BeanstalkdStore),
    "jackd": Library("js", BeanstalkdStore),
    "fivebeans": Library("js", BeanstalkdStore),
    # memcached has no command that waits: these are compared with a server that is killed.
    "pymemcache": Library("py", EmbeddedStore),
    "python-memcached": Library("py", EmbeddedStore),
    "php-memcached": Library("php", EmbeddedStore),
}
# What must be installed, apart from what `make test-applications` installs.
_NEEDS: dict[str, Callable[[], object]] = {
    "phpredis": lambda: need_library("wait.php"),
    "Predis": lambda: need_library("wait_predis.php"),
    "redis-rb": lambda: need_library("wait.rb"),
    "Pheanstalk": lambda: need_php_files({"php-pda-pheanstalk": "Pheanstalk/autoload.php"}),
    "Beaneater": lambda: need_success("ruby-beaneater", "ruby", "-e", "require 'beaneater'"),
    "php-memcached": lambda: need_success(
        "php-memcached", "php", "-r", "exit(class_exists('Memcached') ? 0 : 1);"
    ),
}


def _end_of_a_wait(library: str, make: StoreType, number: int, folder: Path) -> str:
    """Return what the library makes of the signal that its server gets while it waits."""
    language, control = LIBRARIES[library]
    for name in ("store", "client"):
        (folder / name).mkdir(parents=True)
    store = make(folder / "store")
    queue: Queue
    if control is BeanstalkdStore:
        queue, port = Tube(store, "default"), store.beanstalk_port
    else:
        queue = ListQueue(store, "mails")
        port = store.port if control is RedisStore else store.memcached_port
    command = [_RUNNERS[language], str(SCRIPTS / f"wait_with.{language}"), library, str(port)]
    environment = {"NODE_PATH": str(NODE_MODULES)}
    try:
        with BackgroundProgram(folder / "client" / "log", *command, environment=environment) as client:
            wait_for(queue.waiting, "the client to wait")
            store.stop(number)
            assert client.wait() == 0
            return client.output
    finally:
        store.stop(signal.SIGTERM)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_wait(library: str, tmp_path: Path) -> None:
    _NEEDS.get(library, lambda: None)()
    control = LIBRARIES[library].control
    number = signal.SIGKILL if control is EmbeddedStore else signal.SIGTERM
    with ThreadPoolExecutor() as threads:
        ours = threads.submit(_end_of_a_wait, library, EmbeddedStore, signal.SIGTERM, tmp_path / "ours")
        theirs = threads.submit(_end_of_a_wait, library, control, number, tmp_path / "control")
    print(f"{library}: {ours.result()!r}, control {theirs.result()!r}")
    assert ours.result() == theirs.result()
