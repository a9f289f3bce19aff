"""Machines in network namespaces, on one network, which a test cuts from each other.

A cut loses packets in silence, in one direction or in both: nobody gets a FIN, an RST or an error. The test
is on the network, too, and cannot be cut off.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from tests.support.programs import TIMEOUT
from tests.support.requirements import need, require

_CLONE_NEWNET = 0x40000000
_DEVICE = "wire"
# No machine has this address on the wire: what is sent to it is lost.
_NOWHERE = "02:00:00:00:00:01"
_NUMBERS = count()

Result = TypeVar("Result")
# Senders, each with a machine that it cannot reach.
Cuts = Sequence[tuple["Machine", "Machine"]]


@dataclass(frozen=True)
class Machine:
    """A machine: its namespace, and its address."""

    namespace: str
    host: str

    def do(self, act: Callable[[], Result]) -> Result:
        """Call `act` on the machine: sockets and processes that it makes belong there."""
        # Only the thread moves, and it ends with the pool.
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.namespace,)) as pool:
            return pool.submit(act).result()


class Network:
    """A network, as a context manager."""

    def __init__(self) -> None:
        require(os.geteuid() == 0, "the right to make network namespaces, which only root has")
        self._ip = need("ip", "iproute2")
        number = next(_NUMBERS)
        self._name = f"p{os.getpid()}n{number}"
        # Several processes of a test run have networks at the same time. These addresses are for tests.
        subnet = (2 * os.getpid() + number) % 512
        self._subnet = f"198.{18 + subnet // 256}.{subnet % 256}"
        self.machines: list[Machine] = []
        self._cuts: set[tuple[Machine, Machine]] = set()

    def __enter__(self) -> Self:
        self._run("link", "add", self._name, "type", "bridge")
        self._run("address", "add", f"{self._subnet}.254/24", "dev", self._name)
        self._run("link", "set", self._name, "up")
        return self

    def __exit__(self, *_exception: object) -> None:
        for machine in self.machines:
            subprocess.run([self._ip, "netns", "delete", machine.namespace], capture_output=True, check=False)
        subprocess.run([self._ip, "link", "delete", self._name], capture_output=True, check=False)

    def add_machine(self) -> Machine:
        """Add a machine, which reaches all others."""
        number = len(self.machines) + 1
        made = Machine(f"{self._name}-{number}", f"{self._subnet}.{number}")
        self._run("netns", "add", made.namespace)
        self.machines.append(made)
        port = f"{self._name}.{number}"
        self._run("link", "add", port, "type", "veth", "peer", _DEVICE, "netns", made.namespace)
        self._run("link", "set", port, "master", self._name, "up")
        self._run("-n", made.namespace, "address", "add", f"{made.host}/24", "dev", _DEVICE)
        for device in ("lo", _DEVICE):
            self._run("-n", made.namespace, "link", "set", device, "up")
        return made

    def cut(self, cuts: Cuts) -> None:
        """Let no packet of the first machine of each pair reach the second one, until `heal`."""
        for sender, receiver in cuts:
            self._cuts.add((sender, receiver))
            self._neighbour(sender, "replace", receiver, "lladdr", _NOWHERE, "nud", "permanent")

    def heal(self, cuts: Cuts) -> None:
        """End these cuts."""
        for sender, receiver in cuts:
            if (sender, receiver) in self._cuts:
                self._cuts.remove((sender, receiver))
                self._neighbour(sender, "delete", receiver)

    def cut_off(self, machine: Machine) -> None:
        """Let no packet from or to the machine through: it is as if it had vanished."""
        self._run("-n", machine.namespace, "link", "set", _DEVICE, "down")

    def _neighbour(self, sender: Machine, action: str, receiver: Machine, *words: str) -> None:
        self._run("-n", sender.namespace, "neighbour", action, receiver.host, "dev", _DEVICE, *words)

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._ip, *arguments], check=True, timeout=TIMEOUT)


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with (Path("/run/netns") / namespace).open("rb") as opened:
        if libc.setns(opened.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
