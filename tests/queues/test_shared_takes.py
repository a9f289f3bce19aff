"""Each command on each type of queue, in one call with takes of other clients: the call's record is dropped.

A record that stayed would be put back when the server stops, although its messages have been delivered.
"""

from contextlib import ExitStack
from typing import NamedTuple

import pytest

from pressure_server.queues.calls.courier import MOST_IN_FLIGHT
from tests.support.faults import stopped
from tests.support.programs import Client, Server, Valkey, records, wait_for, wait_until_settled
from tests.support.waiters import Waiter, create

READS = """
LLEN q|LRANGE q 0 -1|LINDEX q 0|LPOS q m1|SCARD q|SISMEMBER q m1|SMISMEMBER q m1 x|SMEMBERS q|SRANDMEMBER q
SRANDMEMBER q 2|SSCAN q 0|SINTER q other|SINTERCARD 2 q other|SUNION q other|SDIFF q other|EXISTS q|TYPE q
PRESSURE.INFO q|PRESSURE.PEEK q|MEMORY USAGE q|OBJECT IDLETIME q
"""
CHANGES = """
SADD q new|RPUSH q new|LPUSH q new|SREM q m1|LREM q 1 m1|LTRIM q 1 -1|SPOP q|SPOP q 2|LPOP q|RPOP q|BLPOP q 1
BLPOP q other 1|LMPOP 2 q other LEFT COUNT 2|LMOVE q other LEFT RIGHT|SMOVE q other m1|SINTERSTORE d q other
SUNIONSTORE d q other|PRESSURE.PUT q new|PRESSURE.GET q|PRESSURE.RESERVE q TTR 60|PRESSURE.ALTER q BOUND 9
PRESSURE.CLOSE q|PRESSURE.PURGE q|PRESSURE.DELETE q|DEL q|WATCH q|MULTI;SPOP q;LRANGE q 0 -1;SADD q new;EXEC
"""


class Kind(NamedTuple):
    """A type of queue: the options of its creation, and the queue that the commands name."""

    options: str = ""
    queue: str = "q"


KINDS = {
    "list": Kind(),
    "jobs": Kind("TYPE jobs"),
    "lifo": Kind("TYPE lifo"),
    "random": Kind("TYPE random"),
    "log": Kind("TYPE log"),
    "group": Kind("TYPE log", "q+g"),
}


def _lines(text: str) -> list[str]:
    return [line for lines in text.strip().splitlines() for line in lines.split("|")]


def _make(client: Client, kind: Kind) -> None:
    client.flushall()
    create(client, "q", *kind.options.split())
    client.rpush("q", *(f"m{number}" for number in range(4)))
    if kind.queue != "q":
        client.execute_command("PRESSURE.GROUP", "CREATE", "q", "g", "FROM", 0)
    client.rpush("other", "m1", "o1")
    client.rpush("plain", *range(20))


def _fill(server: Server, client: Client, stack: ExitStack) -> None:
    """Have as many calls in flight as there may be: what follows gathers, and leaves in one call."""
    for _ in range(MOST_IN_FLIGHT):
        stack.enter_context(Waiter(server.port)).send("LLEN", "plain")
        client.ping()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_call_with_takes_of_others_leaves_no_record(
    server: Server, backend: Valkey, direct: Client, client: Client, kind: Kind
) -> None:
    for line in _lines(READS) + _lines(CHANGES):
        _make(client, kind)
        wait_until_settled(direct)
        commands = [
            [kind.queue if word == "q" else word for word in command.split()] for command in line.split(";")
        ]
        with ExitStack() as stack:
            takers = [stack.enter_context(Waiter(server.port)) for _ in range(4)]
            asking = stack.enter_context(Waiter(server.port))
            with stopped(backend.process):
                _fill(server, client, stack)
                for taker in takers[:2]:
                    taker.send("SPOP", "plain")
                for command in commands:
                    asking.send(*command)
                for taker in takers[2:]:
                    taker.send("SPOP", "plain")
                client.ping()
            for taker in takers:
                assert isinstance(taker.reply(), bytes)
            for _ in commands:
                asking.reply()
        wait_for(lambda: not records(direct), f"no record to be left after {line}")
