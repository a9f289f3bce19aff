"""beanstalkd and the server side by side: send the same requests to both, and compare the replies.

Ids of jobs differ, as the server gives them in blocks. Requests and compared replies have `<n>` for the n-th
job of a session.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence

from tests.support.programs import wait_for
from tests.support.protocols import BEANSTALK, Wire

_JOB = re.compile(rb"<(\d+)>")
_ENDS_WITH_ID = re.compile(rb"(INSERTED|BURIED) (\d+)\r\n")
_HAS_MESSAGE = re.compile(rb"(RESERVED|FOUND) (\d+) (\d+)\r\n")
# Figures of the machine or the process, and those that polls change.
_VARYING = ("pid", "uptime", "rusage-utime", "rusage-stime", "cmd-stats")
# Seconds that may pass by while both servers reply.
_TIMES = ("age", "time-left", "pause-time-left")
# Cumulative over the life of the process or of the tubes: compared since the beginning of the session.
_SINCE_START = ("total-jobs", "job-timeouts", "total-connections")
_STATS = b"stats\r\n"
# The server's last figure, which beanstalkd does not have.
_OURS = "current-unlisted-queues: 0"


class DifferenceError(AssertionError):
    """The two replies differ."""


class Side:
    """One of the two servers, with the jobs of a session in the order of their puts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.jobs: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._first: dict[str, int] = {}
        self.control = self.connect()

    def connect(self) -> Wire:
        return Wire(BEANSTALK, self._port)

    def begin(self) -> None:
        """Begin a session: forget the jobs, and note the cumulative figures."""
        self.jobs.clear()
        self._numbers.clear()
        self._first = {key: int(value) for key, value in self.stats().items() if key in _SINCE_START}

    def request(self, data: bytes) -> bytes:
        """Return the request with this server's ids."""
        return _JOB.sub(lambda found: self.jobs[int(found[1])], data)

    def stats(self) -> dict[str, str]:
        """Return the figures of the server."""
        self.control.send(_STATS)
        size = int(self.control.line().split()[1])
        return dict(
            line.split(": ", 1) for line in self.control.exactly(size + 2).decode().splitlines()[1:-1]
        )

    def reply(self, wire: Wire) -> bytes:
        """Return the next reply, in which ids are numbers of jobs. It is empty at the end of the stream."""
        try:
            line = wire.line()
        except ConnectionError:
            return wire.rest()
        if found := _ENDS_WITH_ID.fullmatch(line):
            if found[2] not in self._numbers:
                self._numbers[found[2]] = len(self.jobs)
                self.jobs.append(found[2])
            return b"%b <%d>\r\n" % (found[1], self._numbers[found[2]])
        if found := _HAS_MESSAGE.fullmatch(line):
            message = wire.exactly(int(found[3]) + 2)
            return b"%b %b %b\r\n%b" % (found[1], self._number(found[2]), found[3], message)
        if line.startswith(b"OK "):
            data = wire.exactly(int(line[3:]) + 2)
            return b"OK\r\n" + self._without_variations(data)
        return line

    def _number(self, job: bytes) -> bytes:
        number = self._numbers.get(job)
        return b"unknown" if number is None else b"<%d>" % number

    def _without_variations(self, data: bytes) -> bytes:
        lines = [line for line in data.decode().split("\n") if line != _OURS]
        if not any(": " in line for line in lines):
            return "\n".join([lines[0], *sorted(lines[1:-2]), *lines[-2:]]).encode()  # names, in any order
        is_of_job = any(line.startswith("state: ") for line in lines)
        is_of_server = any(line.startswith("pid: ") for line in lines)
        for at, line in enumerate(lines):
            key, _, value = line.partition(": ")
            if key in _VARYING or (key == "id" and not is_of_job):
                lines[at] = key
            elif key == "id":
                lines[at] = f"id: {self._number(value.encode()).decode()}"
            elif is_of_server and key in self._first:
                lines[at] = f"{key}: {int(value) - self._first[key]}"
        return "\n".join(lines).encode()


def _is_equal(theirs: bytes, ours: bytes) -> bool:
    """Compare two replies. Times may differ by a second."""
    if theirs == ours:
        return True
    pairs = list(zip(theirs.split(b"\n"), ours.split(b"\n"), strict=False))
    return theirs.count(b"\n") == ours.count(b"\n") and all(
        one == other or _differ_by_a_second(one.decode(), other.decode()) for one, other in pairs
    )


def _differ_by_a_second(one: str, other: str) -> bool:
    (key, _, left), (other_key, _, right) = one.partition(": "), other.partition(": ")
    return (
        key == other_key and key in _TIMES and left.isdigit() and right.isdigit()
        and abs(int(left) - int(right)) <= 1
    )  # fmt: skip


class PairedClient:
    """A connection to each of the servers."""

    def __init__(self, pair: BeanstalkPair, wires: Sequence[Wire] = ()) -> None:
        self._pair = pair
        self.wires = wires or [side.connect() for side in pair.sides]
        self.is_waiting = False

    def send(self, request: bytes, *, ends: bool = False) -> None:
        """Send a request to both; `ends` is whether it is the last one."""
        self._pair.trace.append(request)
        for side, wire in zip(self._pair.sides, self.wires, strict=True):
            wire.send(side.request(request))
            if ends:
                wire.socket.shutdown(socket.SHUT_WR)

    def compare(self, count: int) -> list[bytes]:
        """Compare so many replies; return those of beanstalkd."""
        found = []
        for _ in range(count):
            theirs, ours = (side.reply(wire) for side, wire in zip(self._pair.sides, self.wires, strict=True))
            self._pair.check(theirs, ours)
            found.append(theirs)
        return found

    def compare_rest(self) -> None:
        """Compare all replies until both servers close."""
        while any(self.compare(1)):
            pass
        self.close()

    def compare_wait(self) -> None:
        """Compare whether the last request still waits; if not, compare the replies."""
        waits = [side_waits(side, wire) for side, wire in zip(self._pair.sides, self.wires, strict=True)]
        if waits[0] and not waits[1]:
            raise DifferenceError(self._pair.told(b"(waits)", self._pair.sides[1].reply(self.wires[1])))
        self.is_waiting = waits[0]
        if not waits[0]:
            # The server may take a moment longer.
            wait_for(self.wires[1].has_reply, f"a reply to {self._pair.told(b'(a reply)', b'(none)')}")
            self.compare(1)

    def close(self) -> None:
        for wire in self.wires:
            wire.close()


def side_waits(side: Side, wire: Wire) -> bool:
    """Return whether the only request that may wait does so; if not, it has its reply."""

    def state() -> str | None:
        if wire.has_reply():
            return "replied"
        return "waits" if side.stats()["current-waiting"] == "1" else None

    return bool(wait_for(state, "a reserve to wait or to reply") == "waits")


class BeanstalkPair:
    """beanstalkd and the server, whose replies are compared."""

    def __init__(self, theirs: int, ours: int) -> None:
        self.sides = (Side(theirs), Side(ours))
        self.trace: list[bytes] = []
        self.commands = 0

    def begin(self, connections: int) -> list[PairedClient]:
        """Begin a session with so many clients."""
        self.await_equal("current-connections", lambda value: value == "1")
        for side in self.sides:
            side.begin()
        self.trace.clear()
        return [PairedClient(self) for _ in range(connections)]

    def await_equal(self, key: str, condition: Callable[[str], bool] = lambda _: True) -> None:
        """Wait until a figure of both servers is the same and meets the condition."""

        theirs = ours = ""

        def is_reached() -> bool:
            nonlocal theirs, ours
            theirs, ours = (side.stats()[key] for side in self.sides)
            return theirs == ours and condition(ours)

        try:
            wait_for(is_reached, key, timeout=5)
        except AssertionError:
            raise DifferenceError(f"{key}: {self.told(theirs.encode(), ours.encode())}") from None

    def control(self, request: bytes) -> None:
        """Send a request on the connections of the pair itself, and compare the reply."""
        own = PairedClient(self, [side.control for side in self.sides])
        own.send(request)
        own.compare(1)

    def check(self, theirs: bytes, ours: bytes) -> None:
        """Raise DifferenceError if the replies differ."""
        if not _is_equal(theirs, ours):
            raise DifferenceError(self.told(theirs, ours))

    def told(self, theirs: bytes, ours: bytes) -> str:
        """Return both replies and the latest requests, for an error's text."""
        lines = list(zip(theirs.split(b"\n"), ours.split(b"\n"), strict=False))
        if len(lines) > 10:  # YAML
            theirs, ours = (
                b"\n".join(some) for some in zip(*(each for each in lines if each[0] != each[1]), strict=True)
            )
        requests = "\n".join(
            request[:200].decode("ascii", "backslashreplace") for request in self.trace[-25:]
        )
        return f"\nbeanstalkd: {theirs!r}\nserver:     {ours!r}\nafter:\n{requests}"

    def close(self) -> None:
        for side in self.sides:
            side.control.close()
