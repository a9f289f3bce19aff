"""Puts that wait for room in a queue with a limit of bytes go on, whatever makes the room, at any server."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.support.programs import Client
from tests.support.waiters import Waiter, create, wait_for_waiting

# Seconds for a reply that comes when there is room.
SOON = 4.0

FULL = [f"PRESSURE.CREATE q TYPE {kind} MAX-BYTES 1|LPUSH q x" for kind in ("FIFO", "JOBS", "LIFO", "RANDOM")]
MAKES_ROOM = [
    *("PRESSURE.ALTER q MAX-BYTES 0", "PRESSURE.ALTER q MAX-BYTES 9"),
    *("LPOP q", "LMOVE q elsewhere LEFT RIGHT", "SREM q x", "LTRIM q 1 0", "PRESSURE.PURGE q"),
    *("PRESSURE.RESERVE q", "PRESSURE.RESERVE q|PRESSURE.BURY q 1"),
]
# Logs that are full for the slower one of their groups.
FULL_LOGS = [
    f"PRESSURE.CREATE q TYPE LOG {limit} 1|PRESSURE.GROUP CREATE q g|PRESSURE.GROUP CREATE q faster|"
    "LPUSH q x|LPOP q+faster"
    for limit in ("MAX-BYTES", "BOUND")
]
READ = "PRESSURE.READ q GROUP g ann"
MAKES_ROOM_IN_LOG = [
    *(f"{READ}|PRESSURE.ACK q+g ID TOKEN ann", f"{READ}|PRESSURE.BURY q+g ID TOKEN ann"),
    *("BLPOP q+g 1", "PRESSURE.PURGE q+g", "PRESSURE.GROUP SEEK q g FROM TAIL", "PRESSURE.GROUP DELETE q g"),
]


@pytest.mark.parametrize("at", ["same server", "other server"])
@pytest.mark.parametrize(
    ("before", "act"), [*product(FULL, MAKES_ROOM), *product(FULL_LOGS, MAKES_ROOM_IN_LOG)]
)
def test_a_put_goes_on_when_there_is_room(
    client: Client, waiter: Waiter, busy_at: Callable[[str], Waiter], before: str, act: str, at: str
) -> None:
    with busy_at(at) as busy:
        for line in before.split("|"):
            busy(*line.split())
        waiter.send("LPUSH", "q", "m")
        wait_for_waiting(client, "q", producers=1)
        read: Any = None
        for line in act.split("|"):
            read = busy(*(read[0][0] if word == "ID" else word for word in line.split()))
        assert isinstance(waiter.reply(SOON), int)


@pytest.mark.parametrize("convert", [True, False])
def test_what_is_reserved_does_not_count(client: Client, waiter: Waiter, *, convert: bool) -> None:
    create(client, "q", *(() if convert else ("TYPE", "jobs")))
    client.rpush("q", "0123456789", "0123456789", "0123456789")
    for _ in range(2):
        assert waiter("PRESSURE.RESERVE", "q")[2] == b"0123456789"
    waiter("PRESSURE.BURY", "q", 1)
    client.execute_command("PRESSURE.ALTER", "q", "MAX-BYTES", 20, "OVERFLOW", "error")
    if convert:
        client.execute_command("PRESSURE.RELEASE", "q", 2, "PRIORITY", 1)
        client.execute_command("PRESSURE.PUT", "q", "0123456789", "PRIORITY", 1)
    else:
        client.rpush("q", "0123456789")
    assert isinstance(waiter("RPUSH", "q", "0123456789"), Exception)
    waiter("PRESSURE.ACK", "q", 2)
    assert isinstance(waiter("RPUSH", "q", "0123456789"), Exception)
    waiter("LPOP", "q")
    assert waiter("RPUSH", "q", "0123456789") == 2
    client.execute_command("PRESSURE.KICK", "q", 1)
    assert waiter("LLEN", "q") == 3
