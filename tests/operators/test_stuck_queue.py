"""The page docs/guides/stuck-queue.md: each reason shows as it says, and its remedy helps, as written."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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


class Place:
    """A queue that stops: what brings it about, and what the page does then, with the words of the page."""

    def __init__(self, client: Client, direct: Client, worker: Waiter) -> None:
        self.client, self._direct, self.worker = client, direct, worker
        # A job and a client, by the numbers that they have on the page.
        self._told = {"42": str(worker("CLIENT", "ID"))}

    def do(self, command: str) -> None:
        """Do a command. `worker` begins one of a worker, and `dies as` one of a native client."""
        words = [self._told.get(word, word) for word in command.split()]
        if words[0] == "worker":
            assert self.worker(*words[1:]) == b"message"
        elif words[:2] == ["dies", "as"]:
            native = NativeSteps(self._direct, "mails", "native-1")
            steps = native.put(b"x") if words[2] == "producer" else native.get()
            step_until(steps, lambda: self._direct.get(f"__pressure__:mails:{words[2]}") == b"native-1")
            steps.close()
        else:
            reply = self.client.execute_command(*words)
            if words[0] == "PRESSURE.RESERVE":
                self._told["65"] = str(reply[1])


# By reason: how it comes about, and what PRESSURE.INFO must show then. All begin with one message.
Case = tuple[list[str], Callable[[Info], bool]]
RESERVE = "PRESSURE.RESERVE mails DETACHED web-17 TTR 600"
GETS: dict[str, Case] = {
    "paused": (["PRESSURE.PAUSE mails 600"], lambda shown: shown[b"paused_ms"] > 0),
    "delayed": (
        [RESERVE, "PRESSURE.RELEASE mails 65 TOKEN web-17 DELAY 600"],
        lambda shown: shown[b"ready"] == 0 < shown[b"delayed"],
    ),
    "buried": (
        [RESERVE, "PRESSURE.BURY mails 65 TOKEN web-17"],
        lambda shown: shown[b"ready"] == 0 < shown[b"buried"],
    ),
    "failed too often": (
        [
            *("PRESSURE.ALTER mails MAX-DELIVERIES 1 DEAD-LETTER failed", RESERVE),
            "PRESSURE.RELEASE mails 65 TOKEN web-17",
        ],
        lambda shown: shown[b"dead_letter"] == b"failed",
    ),
    "reserved by a worker that hangs": (
        ["PRESSURE.ALTER mails ACK NEXT", "worker LPOP mails"],
        lambda shown: shown[b"ready"] == 0 < shown[b"reserved"],
    ),
    "reserved with a token": ([RESERVE], lambda shown: shown[b"ready"] == 0 < shown[b"reserved"]),
    "as many in work as may be": (
        ["PRESSURE.ALTER mails IN-FLIGHT 1", RESERVE, "RPUSH mails message"],
        lambda shown: shown[b"in_flight"] == shown[b"reserved"] > 0,
    ),
    "as fast as may be": (
        ["PRESSURE.ALTER mails RATE 1/600", "RPUSH mails message", "worker LPOP mails"],
        lambda shown: shown[b"rate"] != b"",
    ),
    "a native client died in its turn": (
        ["dies as consumer"],
        lambda shown: shown[b"consumer_role"] == b"held",
    ),
}
PUTS: dict[str, Case] = {
    "full": (["PRESSURE.ALTER mails BOUND 1"], lambda shown: shown[b"length"] == shown[b"bound"]),
    "closed": (["PRESSURE.CLOSE mails", "LPOP mails"], lambda shown: shown[b"closed"] == 1),
    "a native client died in its turn": (
        ["dies as producer"],
        lambda shown: shown[b"producer_role"] == b"held",
    ),
}


@pytest.fixture
def place(server: Server, direct: Client) -> Iterator[Place]:
    with server.client() as client, Waiter(server.port) as worker:
        client.rpush("mails", "message")
        yield Place(client, direct, worker)


def bring_about(case: Case, place: Place) -> None:
    """Stop the queue, and check that PRESSURE.INFO shows it."""
    commands, is_shown = case
    for command in commands:
        place.do(command)
    assert is_shown(place.client.execute_command("PRESSURE.INFO", "mails"))


def remedy(cell: str, place: Place, backend: Valkey) -> None:
    """Do what the cell says."""
    commands = _COMMAND.findall(cell)
    assert commands, cell
    for command in commands:
        program, *words = command.split()
        if program == "pressure-server":
            # Without --repair, its status says that something is wrong.
            status = run_command(*words, "--backend", backend.url, "--wait", "0.5").returncode
            assert status == ("--repair" not in words)
        else:
            place.do(command)


def test_the_tables_have_a_test_for_each_reason() -> None:
    # The others are what clients see, or need more than a command.
    assert rows_of("Workers get nothing").keys() - GETS == {"nobody takes"}
    assert rows_of("Puts wait or fail").keys() - PUTS == {"the backend is full", "too many queues"}


@pytest.mark.parametrize("reason", GETS)
def test_a_worker_gets_messages_again(reason: str, place: Place, backend: Valkey) -> None:
    bring_about(GETS[reason], place)
    if "native" not in reason:  # there a pop fails after five seconds
        assert place.client.lpop("mails") is None
    remedy(rows_of("Workers get nothing")[reason][1], place, backend)
    wait_for(lambda: place.client.lpop("mails") == b"message", "the message")


@pytest.mark.parametrize("reason", PUTS)
def test_a_put_is_done_again(reason: str, place: Place, backend: Valkey) -> None:
    bring_about(PUTS[reason], place)
    put = ("PRESSURE.PUT", "mails", "another", "NOWAIT")
    assert isinstance(place.worker(*put), Exception)
    remedy(rows_of("Puts wait or fail")[reason][1], place, backend)
    assert place.client.rpush("mails", "another")
