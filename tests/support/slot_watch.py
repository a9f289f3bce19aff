"""The commands that nodes of a cluster do, by MONITOR: whether a script leaves the slot of its keys."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from tests.support.cluster import Cluster
from tests.support.waiters import Waiter

_LINE = re.compile(rb"[\d.]+ \[\d+ (\S+)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
# The words that are keys of a server with the usual prefix, and of a server with any other one.
_KEY = re.compile(rb"__pressure__.*", re.DOTALL)
_TAG = re.compile(rb"__pressure__:\{(\d+)\}")
_CALLS = (b"FCALL", b"EVAL", b"EVALSHA")
# Commands of scripts that have no key.
_KEYLESS = {b"TIME", b"PING", b"INFO", b"PUBLISH"}


class Call(NamedTuple):
    """A call of a script, and the commands that it has done."""

    words: list[bytes]
    commands: list[list[bytes]]

    @property
    def keys(self) -> list[bytes]:
        """The keys that the call declares."""
        return self.words[3 : 3 + int(self.words[2])]

    def faults(self) -> list[str]:
        """Return what is wrong with the call: it declares no slot or several, or leaves its slot."""
        slots = {_slot(key) for key in self.keys}
        if len(slots) != 1:
            return [f"{self.words[:8]} declares keys of {len(slots)} slots"]
        faults = []
        for command in self.commands:
            # Any word that is a key: also one that is stored as a value would be used later.
            keys = {word for word in command[1:] if _KEY.match(word)}
            if not keys and command[0].upper() not in _KEYLESS:
                faults.append(f"{command[:4]} has no key of this server")
            if {_slot(key) for key in keys} - slots:
                faults.append(f"{command[:6]} leaves the slot of {self.keys[:3]}")
        return faults


def _slot(key: bytes) -> bytes | None:
    found = _TAG.match(key)
    return found[1] if found else None


def calls_in(lines: Iterable[bytes]) -> list[Call]:
    """Return the calls of scripts in the lines of MONITOR of one node."""
    calls: list[Call] = []
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        words = _WORD.findall(found[2])
        if found[1] == b"lua":
            calls[-1].commands.append(words)
        elif words[0].upper() in _CALLS:
            calls.append(Call(words, []))
    return calls


def faults_in(calls: Sequence[Call]) -> list[str]:
    """Return all faults, each once."""
    return list(dict.fromkeys(fault for call in calls for fault in call.faults()))


@contextmanager
def watched(cluster: Cluster) -> Iterator[list[Call]]:
    """Collect the calls of all nodes; the list is complete after the block."""
    calls: list[Call] = []
    with ExitStack() as stack:
        watches = [stack.enter_context(_NodeWatch(node.port)) for node in cluster.nodes]
        yield calls
        for watch in watches:
            calls += calls_in(watch.lines())


class _NodeWatch(Waiter):
    """A connection to a node that sends it the commands of all clients."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._port = port
        assert self("MONITOR") == b"OK"

    def lines(self) -> list[bytes]:
        """Return all lines until now."""
        end = secrets.token_hex(8).encode()
        with Waiter(self._port) as last:
            assert last("ECHO", end) == end
        found = [self.reply()]
        while end not in found[-1]:
            found.append(self.reply())
        return found[:-1]
