"""PRESSURE.PUT … EXPIRE: a message that is not taken in time is dropped."""

import time
from functools import partial

import pytest

from tests.support.faults import hanging
from tests.support.programs import Client, Server, Valkey, wait_for
from tests.support.waiters import Waiter, create, wait_for_waiting, waiters


@pytest.mark.parametrize("take", ["SPOP", "PRESSURE.RESERVE"])
@pytest.mark.parametrize("options", ["", "MAX-BYTES 1000", "TYPE JOBS", "TYPE LIFO", "TYPE RANDOM"])
@pytest.mark.parametrize("words", ["", "PRIORITY 5", "UNIQUE", "OVERFILL", "NOWAIT"])
def test_a_put_can_say_when_its_message_expires(
    client: Client, waiter: Waiter, options: str, words: str, take: str
) -> None:
    create(client, "q", *options.split())
    assert waiter("PRESSURE.PUT", "q", "soon", *words.split(), "EXPIRE", "0.05")
    assert waiter("PRESSURE.PUT", "q", "late", *words.split(), "EXPIRE", 100)
    time.sleep(0.06)  # a time: the message expires by the clock of the backend
    assert b"late" in waiter(take, "q")
    assert waiter(take, "q") is None


def test_a_put_with_an_expiry_waits_for_room(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 1)
    client.rpush("q", "a")
    waiter.send("PRESSURE.PUT", "q", "b", "EXPIRE", 100)
    wait_for_waiting(client, "q", producers=1)
    assert client.spop("q") == b"a"
    assert waiter.reply() == 1
    assert client.spop("q") == b"b"


@pytest.mark.parametrize("options", ["", "TYPE JOBS", "UNIQUE QUEUED"])
def test_each_put_that_waits_for_room_keeps_its_own_expiry(
    client: Client, server: Server, backend: Valkey, options: str
) -> None:
    create(client, "q", "BOUND", 2, *options.split())
    client.rpush("q", "a")
    client.config_resetstat()
    with waiters(server, 4) as clients:
        commands = ("LLEN q", "PRESSURE.PUT q soon EXPIRE 0.05", "PRESSURE.PUT q late EXPIRE 100", "LPOP q")
        with hanging(backend):
            # While the first call has no reply, the others gather in the next one: there the pop makes room.
            for number, (waiter, command) in enumerate(zip(clients, commands, strict=True), 1):
                waiter.send(*command.split())
                wait_for(partial(has_called, client, number), f"command {number}", 3)
        assert [waiter.reply() for waiter in clients][::3] == [1, b"a"]
    time.sleep(0.06)  # a time: the message expires by the clock of the backend
    assert client.lpop("q") == b"late"


def has_called(client: Client, commands: int) -> bool:
    """Return whether the server has executed at least this many commands. INFO does not count."""
    statistics = client.info("commandstats").items()
    return sum(int(one["calls"]) for name, one in statistics if name != "cmdstat_info") >= commands


@pytest.mark.parametrize(
    "words", ["EXPIRE 0", "EXPIRE -1", "EXPIRE x", "EXPIRE", "NX EXPIRE 5", "TXN 1 EXPIRE 5"]
)
def test_bad_expiries(client: Client, waiter: Waiter, words: str) -> None:
    create(client, "q")
    assert isinstance(waiter("PRESSURE.PUT", "q", "m", *words.split()), Exception)
    assert client.llen("q") == 0
