"""Random sessions of beanstalk commands on beanstalkd and on a server: equal replies, byte for byte.

PRESSURE_BEANSTALK_COMMANDS is the number of commands, PRESSURE_BEANSTALK_SEED the first session's seed.
Differences that are on purpose are in docs/reference/beanstalk.md; the sessions avoid these.
"""

import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.support.beanstalk_pair import BeanstalkPair, DifferenceError, PairedClient
from tests.support.beanstalkd import running_beanstalkd
from tests.support.programs import Client, Server, Valkey

pytestmark = pytest.mark.clients

COMMANDS = int(os.environ.get("PRESSURE_BEANSTALK_COMMANDS", "500"))
SEED = int(os.environ.get("PRESSURE_BEANSTALK_SEED", "1"))
_STEPS, _TIMED_STEPS = 25, 8
# In a session with times, every delay and pause of one or two seconds ends between two phases. Reservations
# do not end by themselves: beanstalkd 1.12 now and then misses that (test_protocol.py).
_TIMED_EVERY = 8
_PHASES, _PHASE, _PAUSE = 4, 0.4, 1.1
_LONG = 100_000
_NO_JOB = b"99999999999"
_PUT = re.compile(rb"put( +[0-9]{1,20}){4}\r\n")

# Well-formed lines, of which one byte is changed. No job has the id. Reserves watch a tube without jobs.
_LINES = [
    b"put 5 0 100000 3\r\nabc", b"put 4294967295 0 100000 0\r\n", b"put 0 4294967295 4294967295 1\r\na",
    b"use other", b"watch other", b"ignore other", b"peek " + _NO_JOB, b"peek-ready", b"peek-delayed",
    b"peek-buried", b"delete " + _NO_JOB, b"release " + _NO_JOB + b" 1 0", b"bury " + _NO_JOB + b" 1",
    b"touch " + _NO_JOB, b"kick 10", b"kick-job " + _NO_JOB, b"stats-job " + _NO_JOB, b"stats-tube other",
    b"stats-tube default", b"list-tubes", b"list-tube-used", b"list-tubes-watched",
    b"pause-tube other 1000", b"reserve-job " + _NO_JOB, b"reserve", b"reserve-with-timeout 0", b"quit",
    b"release 18446744073709551615 4294967295 4294967295", b"use " + b"t" * 200, b"watch " + b"t" * 201, b"",
]  # fmt: skip
_BYTES = [bytes([byte]) for byte in b"\0\t -+/;.$_()09azAZ:,\x7f\x80\xff"]


class TooSlowError(Exception):
    """The machine was too slow for the times of the session."""


class Session:
    """A random session of three clients, one of which waits at most."""

    def __init__(self, pair: BeanstalkPair, rng: random.Random, name: str, *, timed: bool) -> None:
        self.pair, self.rng, self.timed = pair, rng, timed
        self.tubes = [f"{name}-{letter}".encode() for letter in "abc"]
        for tube in self.tubes:
            pair.control(b"watch %b\r\n" % tube)  # the tubes exist during the whole session
        self.clients = pair.begin(3)

    def run(self) -> None:
        """Run the session. Raises TooSlowError if a phase took too long for its times."""
        for phase in range(_PHASES if self.timed else 1):
            if phase:
                time.sleep(_PAUSE)  # a time: delays and pauses of beanstalkd end by its clock
            began = time.monotonic()
            try:
                self.look_at_waiting()
                for _ in range(_TIMED_STEPS if self.timed else _STEPS):
                    self.step()
            finally:
                if self.timed and time.monotonic() - began > _PHASE:
                    raise TooSlowError
        self.pair.control(b"stats\r\n")

    def end(self, redis: Client) -> None:
        """Close all connections, and delete the jobs and the queues."""
        for client in self.clients:
            client.close()
        self.pair.await_equal("current-connections", lambda value: value == "1")
        self.pair.await_equal("current-jobs-reserved", lambda value: value == "0")
        for number in range(len(self.pair.sides[0].jobs)):
            self.pair.control(b"delete <%d>\r\n" % number)
        for tube in self.tubes:
            self.pair.control(b"stats-tube %b\r\n" % tube)
            self.pair.control(b"ignore %b\r\n" % tube)
        # beanstalkd deletes tubes without jobs and clients.
        redis.delete(*self.tubes, *set(redis.execute_command("PRESSURE.LIST")) - {b"default"})

    def is_anyone_waiting(self) -> bool:
        """Return whether a client waits.

        It gets the best of the jobs that become ready together: in beanstalkd the first. So while a client
        waits, commands that make several jobs ready are left out.
        """
        return any(each.is_waiting for each in self.clients)

    def look_at_waiting(self) -> None:
        """Compare whether the client that waits still does so."""
        for client in self.clients:
            if client.is_waiting:
                client.compare_wait()

    def step(self) -> None:
        """Let a client send some commands at once, or one that may wait, or leave."""
        client = self.rng.choice([each for each in self.clients if not each.is_waiting])
        kind = self.rng.randrange(12)
        if kind == 0:
            self.malformed()
        elif kind == 1 and not self.is_anyone_waiting():
            client.send(self.rng.choice([b"reserve\r\n", b"reserve-with-timeout 100\r\n"]))
            self.pair.commands += 1
            client.compare_wait()
        elif kind == 2 and self.rng.randrange(3) == 0 and not self.is_anyone_waiting():
            self.leave(client)
        else:
            most = 1 if self.is_anyone_waiting() else 8
            commands = [self.command() for _ in range(min(most, self.rng.choice([1, 1, 1, 2, 4, 8])))]
            self.pair.commands += len(commands)
            client.send(b"".join(commands))
            client.compare(len(commands))
        self.look_at_waiting()

    def leave(self, client: PairedClient) -> None:
        """Let a client quit, and connect another one."""
        client.send(b"quit\r\nlist-tube-used\r\n")
        client.compare_rest()
        self.pair.commands += 1
        self.pair.await_equal("current-connections")
        self.pair.await_equal("current-jobs-reserved")
        self.clients[self.clients.index(client)] = PairedClient(self.pair)

    def malformed(self) -> None:
        """Send lines with a changed byte on a connection of their own, and half-close."""
        client = PairedClient(self.pair)
        lines = [self.changed(self.rng.choice(_LINES)) for _ in range(self.rng.choice([1, 1, 3]))]
        # After a reserve that waits, the server executes no line of a client that has half-closed.
        waiting = [line for line in lines if line.split()[:1] in ([b"reserve"], [b"reserve-with-timeout"])]
        lines = [line for line in lines if line not in waiting] + waiting[:1]
        self.pair.commands += len(lines)
        client.send(b"watch empty\r\nignore default\r\n" + b"\r\n".join([*lines, b""]), ends=True)
        client.compare_rest()
        self.pair.await_equal("current-connections")

    def changed(self, line: bytes) -> bytes:
        """Return the line with one byte more, less, or another one."""
        at = self.rng.randrange(max(1, len(line.partition(b"\r")[0])))
        removed = self.rng.randrange(2)
        added = self.rng.choice([b"", self.rng.choice(_BYTES), self.rng.choice(_BYTES)])
        changed = line[:at] + added + line[at + removed :]
        if changed[:4].lower() == b"put " and not _PUT.match(changed):
            return line  # beanstalkd reads the message of a put that is not well-formed as commands
        # beanstalkd needs no space after this name.
        is_joined = changed.startswith(b"pause-tube") and not changed.startswith(b"pause-tube ")
        return line if is_joined else changed

    def seconds(self) -> int:
        return self.rng.choice([1, 2, _LONG] if self.timed else [_LONG])

    def command(self) -> bytes:
        """Return a command that does not wait."""
        rng = self.rng
        tube = rng.choice([*self.tubes, *self.tubes, b"default", b"none"])
        owned = rng.choice(self.tubes)
        known = len(self.pair.sides[0].jobs)
        # The latest jobs, as these are more often there.
        job = b"<%d>" % rng.randrange(max(0, known - 10), known) if known and rng.randrange(20) else _NO_JOB
        priority = rng.choice([0, 1, 1023, 1024, 4294967295])
        delay = rng.choice([0, 0, 0, self.seconds()])
        body = rng.randbytes(rng.choice([0, 1, 10, 10, 300])).replace(b"<", b"")
        put = b"put %d %d %d %d\r\n%b" % (priority, delay, _LONG, len(body), body)
        kicked = rng.choice([0, 1] if self.is_anyone_waiting() else [0, 1, 2, 100])
        choices: list[tuple[int, bytes]] = [
            (12, put), (6, b"use " + owned), (6, b"watch " + owned), (4, b"ignore " + tube),
            (16, b"reserve-with-timeout 0"), (3, b"reserve-job " + job), (6, b"delete " + job),
            (6, b"release %b %d %d" % (job, priority, delay)), (6, b"bury %b %d" % (job, priority)),
            (3, b"touch " + job), (3, b"peek " + job), (2, b"peek-ready"), (2, b"peek-delayed"),
            (2, b"peek-buried"), (3, b"kick %d" % kicked), (3, b"kick-job " + job),
            (6, b"stats-job " + job), (3, b"stats-tube " + tube), (2, b"stats"), (1, b"list-tubes"),
            (1, b"list-tube-used"), (1, b"list-tubes-watched"),
            (1, b"pause-tube %b %d" % (tube, rng.choice([0, 0, self.seconds()]))),
            (1, b"put 1 0 1 65536\r\n" + bytes(65536)), (1, b"nonsense"), (1, b"x" * 300),
        ]  # fmt: skip
        weights, lines = zip(*choices, strict=True)
        line = bytes(rng.choices(lines, weights)[0])
        return line + b"\r\n"


@contextmanager
def compared(folder: Path) -> Iterator[tuple[BeanstalkPair, Client]]:
    """Yield a beanstalkd and a server, both without jobs; and a Redis client of the server."""
    folder.mkdir()
    valkey = Valkey(folder)
    server = Server(folder / "log", "--backend", valkey.url, "--listen", "beanstalk://127.0.0.1:0")
    try:
        with running_beanstalkd() as theirs, server.client() as redis:
            pair = BeanstalkPair(theirs, server.port_of("beanstalk"))
            yield pair, redis
            pair.close()
        server.end_well()
    finally:
        server.stop()
        valkey.stop()


def run_sessions(pair: BeanstalkPair, redis: Client, numbers: Iterator[int], most: int) -> None:
    """Run sessions with these seeds until so many commands have been compared."""
    while pair.commands < most:
        number = next(numbers)
        try:
            session = Session(pair, random.Random(number), f"s{number}", timed=number % _TIMED_EVERY == 0)
            session.run()
            session.end(redis)
        except (DifferenceError, TimeoutError) as reason:
            reason.add_note(f"PRESSURE_BEANSTALK_SEED={number}{pair.told(b'', b'')}")
            raise


@pytest.mark.timeout(300 + COMMANDS // 20)
def test_random_sessions_have_the_replies_of_beanstalkd(tmp_path: Path) -> None:
    numbers, compared_commands, slow = count(SEED), 0, 0
    while compared_commands < COMMANDS:
        with compared(tmp_path / f"{slow}") as (pair, redis):
            try:
                run_sessions(pair, redis, numbers, COMMANDS - compared_commands)
            except TooSlowError:
                # What has timed out is unknown: the next sessions begin with new servers.
                slow += 1
                assert slow < 10 + COMMANDS // 500, "the machine is too slow"
            compared_commands += pair.commands
    print(f"{compared_commands} commands in {next(numbers) - SEED} sessions, {slow} too slow")
