"""A network of two machines, in network namespaces, with a link between them that a test can cut."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

from tests.support.programs import TIMEOUT
from tests.support.requirements import need, require

SERVER_HOST, CLIENT_HOST = "10.99.0.1", "10.99.0.2"
_CLONE_NEWNET = 0x40000000
_NUMBERS = count()

T = TypeVar("T")


class Network:
    """The machines have the addresses SERVER_HOST and CLIENT_HOST. They reach only each other."""

    def __init__(self, ip: str, name: str) -> None:
        self._ip = ip
        self._server, self._client = f"{name}-server", f"{name}-client"

    def set_up(self) -> None:
        for namespace in (self._server, self._client):
            self._run("netns", "add", namespace)
        self._run(*f"link add wire netns {self._server} type veth peer wire netns {self._client}".split())
        for namespace, host in ((self._server, SERVER_HOST), (self._client, CLIENT_HOST)):
            self._run("-n", namespace, "address", "add", f"{host}/24", "dev", "wire")
            for device in ("lo", "wire"):
                self._run("-n", namespace, "link", "set", device, "up")

    def cut(self) -> None:
        """Cut the link: from now on all packets are lost, and nobody is told."""
        self._run("-n", self._client, "link", "set", "wire", "down")

    def on_server(self, act: Callable[[], T]) -> T:
        """Call `act` on the server's machine: sockets and processes that it makes belong there."""
        return self._within(self._server, act)

    def connect(self, port: int) -> socket.socket:
        """Connect from the client's machine to a port of the server's."""
        return self._within(self._client, lambda: socket.create_connection((SERVER_HOST, port), TIMEOUT))

    def remove(self) -> None:
        """Remove what has been set up."""
        for namespace in (self._server, self._client):
            subprocess.run([self._ip, "netns", "delete", namespace], capture_output=True, check=False)

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._ip, *arguments], check=True, timeout=TIMEOUT)

    def _within(self, namespace: str, act: Callable[[], T]) -> T:
        # Only the thread moves, and it ends with the pool.
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(namespace,)) as pool:
            return pool.submit(act).result()


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with (Path("/run/netns") / namespace).open("rb") as opened:
        if libc.setns(opened.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


@contextmanager
def network() -> Iterator[Network]:
    """Set up a network, and remove it at the end."""
    ip = need("ip", "iproute2")
    require(os.geteuid() == 0, "the right to make network namespaces, which only root has")
    made = Network(ip, f"pressure-{os.getpid()}-{next(_NUMBERS)}")
    try:
        made.set_up()
        yield made
    finally:
        made.remove()
