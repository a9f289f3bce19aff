"""`pressure-server queues` and `top`: what they show of queues of all types, as users run them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from pressure_server.app.queues_command import RATES, TOTALS, duration, lines_of, sorted_by_column
from pressure_server.queues.survey import Figures, Surveyed
from tests.support.programs import Server, Valkey


def _figures(**changes: int | bytes) -> Figures:
    zeros = dict.fromkeys(Figures._fields, 0)
    return Figures(**{**zeros, "type": b"fifo", **changes})  # type: ignore[arg-type] # all others are numbers


def _run(backend: Valkey, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pressure_server", *arguments, "--backend", backend.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (61, "1m01s"), (3661, "1h01m"), (90000, "1d01h")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_are_sorted_from_the_highest_and_names_from_a() -> None:
    queues = [
        Surveyed(0, name, _figures(length=length), 0.0) for name, length in ((b"b", 1), (b"a", 1), (b"c", 5))
    ]
    assert [queue.name for queue in sorted_by_column(queues, TOTALS, "messages")] == [b"c", b"a", b"b"]
    assert [queue.name for queue in sorted_by_column(queues, TOTALS, "queue")] == [b"a", b"b", b"c"]


def test_a_table_shows_states_and_escapes_names() -> None:
    queue = Surveyed(0, b"a\n\x1b[2J", _figures(length=3, bound=3, is_closed=1, paused=5000), 0.0)
    text = "\n".join(lines_of([queue], RATES))
    assert "closed,full,paused" in text
    assert "\x1b" not in text
    assert text.count("\n") == 1


def test_queues_lists_queues_of_all_types(server: Server, backend: Valkey) -> None:
    with server.client() as client:
        for kind in ("FIFO", "JOBS", "LIFO", "RANDOM", "LOG"):
            client.execute_command("PRESSURE.CREATE", kind.lower(), "TYPE", kind, "BOUND", "2")
            client.execute_command("SADD", kind.lower(), "a", "b")
        client.execute_command("SPOP", "fifo")
        client.execute_command("PRESSURE.CLOSE", "lifo")
    done = _run(backend, "queues", "--json", "--sort", "messages")
    assert done.returncode == 0, done.stderr
    found = {one["queue"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert {name: one["type"] for name, one in found.items()} == {
        name: name for name in ("fifo", "jobs", "lifo", "random", "log")
    }
    assert (found["fifo"]["messages"], found["fifo"]["put"], found["fifo"]["taken"]) == (1, 2, 1)
    assert found["jobs"]["state"] == "full"
    assert found["lifo"]["state"] == "closed,full"
    table = _run(backend, "queues", "l*", "--sort", "dead_letters").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["queue", "lifo", "log"]


def test_a_wrong_pattern_or_backend_is_an_error(backend: Valkey) -> None:
    refused = _run(backend, "queues", "[" * 5000)
    assert refused.returncode in (0, 2)
    away = subprocess.run(
        [sys.executable, "-m", "pressure_server", "queues", "--backend", "redis://127.0.0.1:1"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert away.returncode == 1
    assert "cannot be reached" in away.stderr or "away" in away.stderr or "refused" in away.stderr


def test_where_says_how_the_keys_begin_and_which_node_has_them(backend: Valkey) -> None:
    done = _run(backend, "where", "q")
    assert (done.returncode, done.stdout) == (0, f"prefix __pressure__: on {backend.url.partition('?')[0]}\n")


def test_top_needs_a_terminal(backend: Valkey) -> None:
    done = _run(backend, "top")
    assert done.returncode == 2
    assert "terminal" in done.stderr


def test_top_is_live_until_q(server: Server, backend: Valkey) -> None:
    ours, theirs = pty.openpty()
    command = (
        sys.executable,
        "-m",
        "pressure_server",
        "top",
        "--interval",
        "100ms",
        "--backend",
        backend.url,
    )
    environment = {**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "120"}
    top = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment)
    try:
        with server.client() as client:
            client.execute_command("SADD", "letters", "a")
            _read_until(ours, r"letters")
            client.execute_command("SADD", "numbers", "1", "2")
            _read_until(ours, r"numbers")
        os.write(ours, b"n")
        _read_until(ours, r"queue")
        os.write(ours, b"q")
        assert top.wait(20) == 0
    finally:
        top.kill()
        top.wait()
        os.close(ours)
        os.close(theirs)


def _read_until(terminal: int, pattern: str) -> None:
    shown, end = "", time.monotonic() + 30
    while not re.search(pattern, shown):
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode("utf-8", "replace")
