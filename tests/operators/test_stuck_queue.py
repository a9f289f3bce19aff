"""The page docs/guides/stuck-queue.md: each reason shows as it says, and its remedy helps, as written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.support.native import NativeSteps, step_until
from tests.support.paths import ROOT
from tests.support.programs import Client, Server, Valkey, run_command, wait_for
from tests.support.waiters import Waiter

Info = Mapping[bytes, Any]
_COMMAND = re.compile(r"`((?:PRESSURE\.\w+ |CLIENT KILL |DEL |pressure-server )[^`]*)`")


def rows_of(section: str) -> dict[str, list[str]]:
    """Return the cells of a table after the reason, by the reason."""
    page = (ROOT / "docs/guides/stuck-queue.md").read_text("utf-8")
    table = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells[1:]}


class Place(NamedTuple):
    """What a setup uses."""

    client: Client
    direct: Client
    worker: Waiter
    told: dict[str, str]  # what the page has as an example, and what it is here


def paused(at: Place) -> None:
    at.client.execute_command("PRESSURE.PAUSE", "mails", 600)


def delayed(at: Place) -> None:
    reserve(at)
    at.client.execute_command("PRESSURE.RELEASE", "mails", at.told["65"], "TOKEN", "web-17", "DELAY", 600)


def buried(at: Place) -> None:
    reserve(at)
    at.client.execute_command("PRESSURE.BURY", "mails", at.told["65"], "TOKEN", "web-17")


def dead(at: Place) -> None:
    at.client.execute_command("PRESSURE.ALTER", "mails", "MAX-DELIVERIES", 1, "DEAD-LETTER", "failed")
    reserve(at)
    at.client.execute_command("PRESSURE.RELEASE", "mails", at.told["65"], "TOKEN", "web-17")


def hanging(at: Place) -> None:
    at.client.execute_command("PRESSURE.ALTER", "mails", "ACK", "NEXT")
    at.told["42"] = str(at.worker("CLIENT", "ID"))
    assert at.worker("LPOP", "mails") == b"message"


def reserve(at: Place) -> None:
    reply = at.client.execute_command("PRESSURE.RESERVE", "mails", "DETACHED", "web-17", "TTR", 600)
    at.told["65"] = str(reply[1])


def busy(at: Place) -> None:
    at.client.execute_command("PRESSURE.ALTER", "mails", "IN-FLIGHT", 1)
    reserve(at)
    at.client.rpush("mails", "message")


def slow(at: Place) -> None:
    at.client.execute_command("PRESSURE.ALTER", "mails", "RATE", "1/600")
    at.client.rpush("mails", "message")
    assert at.client.lpop("mails") == b"message"


def held(role: str) -> Callable[[Place], None]:
    def die(at: Place) -> None:
        native = NativeSteps(at.direct, "mails", "native-1")
        steps = native.put(b"x") if role == "producer" else native.get()
        step_until(steps, lambda: at.direct.get(f"__pressure__:mails:{role}") == b"native-1")
        steps.close()

    return die


def full(at: Place) -> None:
    at.client.execute_command("PRESSURE.ALTER", "mails", "BOUND", 1)


def closed(at: Place) -> None:
    at.client.execute_command("PRESSURE.CLOSE", "mails")
    at.client.lpop("mails")


# By reason: how it comes about, and what PRESSURE.INFO must show then. Most begin with one message.
Case = tuple[Callable[[Place], None], Callable[[Info], bool]]
GETS: dict[str, Case] = {
    "paused": (paused, lambda shown: shown[b"paused_ms"] > 0),
    "delayed": (delayed, lambda shown: shown[b"ready"] == 0 < shown[b"delayed"]),
    "buried": (buried, lambda shown: shown[b"ready"] == 0 < shown[b"buried"]),
    "failed too often": (dead, lambda shown: shown[b"dead_letter"] == b"failed"),
    "reserved by a worker that hangs": (hanging, lambda shown: shown[b"ready"] == 0 < shown[b"reserved"]),
    "reserved with a token": (reserve, lambda shown: shown[b"ready"] == 0 < shown[b"reserved"]),
    "as many in work as may be": (busy, lambda shown: shown[b"in_flight"] == shown[b"reserved"] > 0),
    "as fast as may be": (slow, lambda shown: shown[b"rate"] != b""),
    "a native client died in its turn": (held("consumer"), lambda shown: shown[b"consumer_role"] == b"held"),
}
PUTS: dict[str, Case] = {
    "full": (full, lambda shown: shown[b"length"] == shown[b"bound"]),
    "closed": (closed, lambda shown: shown[b"closed"] == 1),
    "a native client died in its turn": (held("producer"), lambda shown: shown[b"producer_role"] == b"held"),
}


@pytest.fixture
def place(server: Server, direct: Client) -> Iterator[Place]:
    with server.client() as client, Waiter(server.port) as worker:
        client.rpush("mails", "message")
        yield Place(client, direct, worker, {})


def remedy(cell: str, at: Place, backend: Valkey) -> None:
    """Do what the cell says."""
    commands = _COMMAND.findall(cell)
    assert commands, cell
    for command in commands:
        words = [at.told.get(word, word) for word in command.split()]
        if words[0] == "pressure-server":
            # Without --repair, its status says that something is wrong.
            status = run_command(*words[1:], "--backend", backend.url, "--wait", "0.5").returncode
            assert status == ("--repair" not in words)
        else:
            at.client.execute_command(*words)


def test_the_tables_have_a_test_for_each_reason() -> None:
    # The others are what clients see, or need more than a command.
    assert rows_of("Workers get nothing").keys() - GETS == {"nobody takes"}
    assert rows_of("Puts wait or fail").keys() - PUTS == {"the backend is full", "too many queues"}


@pytest.mark.parametrize("reason", GETS)
def test_a_worker_gets_messages_again(reason: str, place: Place, backend: Valkey) -> None:
    begin, is_shown = GETS[reason]
    begin(place)
    assert is_shown(place.client.execute_command("PRESSURE.INFO", "mails"))
    if "native" not in reason:  # there a pop fails after five seconds
        assert place.client.lpop("mails") is None
    remedy(rows_of("Workers get nothing")[reason][1], place, backend)
    wait_for(lambda: place.client.lpop("mails") == b"message", "the message")


@pytest.mark.parametrize("reason", PUTS)
def test_a_put_is_done_again(reason: str, place: Place, backend: Valkey) -> None:
    begin, is_shown = PUTS[reason]
    begin(place)
    assert is_shown(place.client.execute_command("PRESSURE.INFO", "mails"))
    put = ("PRESSURE.PUT", "mails", "another", "NOWAIT")
    assert isinstance(place.worker(*put), Exception)
    remedy(rows_of("Puts wait or fail")[reason][1], place, backend)
    assert place.client.rpush("mails", "another")
