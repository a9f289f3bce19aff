"""PRESSURE.PUT … EXPIRE: a message that is not taken in time is dropped."""

import time

import pytest

from tests.support.programs import Client
from tests.support.waiters import Waiter, create, wait_for_waiting


@pytest.mark.parametrize("options", ["", "MAX-BYTES 1000", "TYPE JOBS", "TYPE LIFO", "TYPE RANDOM"])
@pytest.mark.parametrize("words", ["", "PRIORITY 5", "UNIQUE", "OVERFILL", "NOWAIT"])
def test_a_put_can_say_when_its_message_expires(
    client: Client, waiter: Waiter, options: str, words: str
) -> None:
    create(client, "q", *options.split())
    assert waiter("PRESSURE.PUT", "q", "soon", *words.split(), "EXPIRE", "0.05")
    assert waiter("PRESSURE.PUT", "q", "late", *words.split(), "EXPIRE", 100)
    time.sleep(0.06)  # a time: the message expires by the clock of the backend
    assert waiter("SPOP", "q") == b"late"
    assert waiter("SPOP", "q") is None


def test_a_put_with_an_expiry_waits_for_room(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 1)
    client.rpush("q", "a")
    waiter.send("PRESSURE.PUT", "q", "b", "EXPIRE", 100)
    wait_for_waiting(client, "q", producers=1)
    assert client.spop("q") == b"a"
    assert waiter.reply() == 1
    assert client.spop("q") == b"b"


@pytest.mark.parametrize(
    "words", ["EXPIRE 0", "EXPIRE -1", "EXPIRE x", "EXPIRE", "NX EXPIRE 5", "TXN 1 EXPIRE 5"]
)
def test_bad_expiries(client: Client, waiter: Waiter, words: str) -> None:
    create(client, "q")
    assert isinstance(waiter("PRESSURE.PUT", "q", "m", *words.split()), Exception)
    assert client.llen("q") == 0
