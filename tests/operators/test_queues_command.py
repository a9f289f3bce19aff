"""`pressure-server queues` and `top`: what they show of queues of all types, as users run them."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pressure_server.app.queues_command import RATES, TOTALS, duration, lines_of, sorted_by_column
from pressure_server.queues.survey import Figures, Surveyed
from tests.support.programs import Client, Server, Valkey, run_command
from tests.support.waiters import about, create


def _figures(**changes: int | bytes) -> Figures:
    zeros = dict.fromkeys(Figures._fields, 0)
    return Figures(**{**zeros, "type": b"fifo", **changes})  # type: ignore[arg-type] # all others are numbers


def _run(backend: Valkey, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, "--backend", backend.url)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (61, "1m01s"), (3661, "1h01m"), (90000, "1d01h")]
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
    away = run_command("queues", "--backend", "redis://127.0.0.1:1")
    assert away.returncode == 1
    assert "cannot be reached" in away.stderr or "away" in away.stderr or "refused" in away.stderr


def test_a_pattern_may_be_any_bytes(server: Server, backend: Valkey) -> None:
    with server.client() as client:
        client.execute_command("SADD", b"\xffq", "a")
        client.execute_command("SADD", "q", "a")
    done = _run(backend, "queues", os.fsdecode(b"\xff*"))
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["queue", r"\xffq"]


def test_where_says_how_the_keys_begin_and_which_node_has_them(backend: Valkey) -> None:
    done = _run(backend, "where", "q")
    assert (done.returncode, done.stdout) == (0, f"prefix __pressure__: on {backend.url.partition('?')[0]}\n")


def test_top_needs_a_terminal(backend: Valkey) -> None:
    done = _run(backend, "top")
    assert done.returncode == 2
    assert "terminal" in done.stderr


@contextmanager
def _top(backend: Valkey, lines: int, columns: int) -> Iterator[int]:
    """Run `top` in a terminal of that size, which is yielded, and type q in the end."""
    ours, theirs = pty.openpty()
    command = [
        sys.executable, "-m", "pressure_server", "top", "--interval", "100ms", "--backend", backend.url,
    ]  # fmt: skip
    size = {"LINES": str(lines), "COLUMNS": str(columns)}
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **size}
    top = subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment)
    try:
        yield ours
        os.write(ours, b"q")
        assert top.wait(20) == 0
    finally:
        top.kill()
        top.wait()
        os.close(ours)
        os.close(theirs)


def test_top_is_live_until_q(server: Server, backend: Valkey) -> None:
    with _top(backend, 24, 120) as terminal:
        with server.client() as client:
            client.execute_command("SADD", "letters", "a")
            _read_until(terminal, r"letters")
            client.execute_command("SADD", "numbers", "1", "2")
            _read_until(terminal, r"numbers")
        os.write(terminal, b"n")
        _read_until(terminal, r"queue")


def test_top_cuts_names_whose_characters_are_two_cells_wide(server: Server, backend: Valkey) -> None:
    with server.client() as client:
        for number in range(6):
            client.execute_command("SADD", f"{number}" + "\u6587" * 30, "a")
    with _top(backend, 8, 40) as terminal:
        _read_until(terminal, "3\u6587{19}")  # in the last line


def _read_until(terminal: int, pattern: str) -> None:
    shown, end = "", time.monotonic() + 30
    while not re.search(pattern, shown):
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode("utf-8", "replace")


SECTIONS = """
[queues."mails*"]
bound = 5
overflow = "error"
ttl = 2.5
max-deliveries = 3
dead-letter = "failed"

[queues."stack*"]
bound = 4
type = "lifo"

[queues."log*"]
max-deliveries = 2

[queues.safe]
ack = "next"
ack-ttr = 1.5

[queues."rated*"]
retry-delay = 2
in-flight = 3
rate = "10/0.5"
"""


def _apply(backend: Valkey, config: Path, *options: str) -> tuple[int, list[str]]:
    done = _run(backend, "queues", "apply", "--config", str(config), *options)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_apply_alters_queues_to_what_the_file_says(
    server: Server, backend: Valkey, direct: Client, tmp_path: Path
) -> None:
    config = tmp_path / "pressure.toml"
    config.write_text(SECTIONS)
    with server.client() as client:
        for queue in ("mails", "stack", "other", "safe", "rated"):
            client.rpush(queue, "a")
        create(client, "rated-2", "RETRY-DELAY", "2", "IN-FLIGHT", "3", "RATE", "10/0.5")
        create(client, "stacks", "TYPE", "LIFO", "BOUND", "4")
        create(client, "mails-2", "BOUND", "5", "OVERFLOW", "ERROR")
        create(client, "log", "TYPE", "LOG")
        names = ("mails", "mails-2", "stack", "stacks", "other", "log")
        before = {queue: about(client, queue) for queue in names}
        own = "ttl 0 -> 2.5, max-deliveries 0 -> 3, dead-letter none -> failed"
        cannot = "type fifo -> lifo (cannot be altered: delete the queue when it is empty)"
        expected = [
            f"mails: bound 0 -> 5, overflow block -> error, {own}",
            f"mails-2: {own}",
            "rated: retry-delay 0 -> 2, in-flight 0 -> 3, rate 0/1 -> 10/0.5",
            "safe: ack none -> next, ack-ttr 0 -> 1.5",
            f"stack: bound 0 -> 4, {cannot}",
        ]
        assert _apply(backend, config, "--dry-run") == (1, ["log: max-deliveries 0 -> 2", *expected])
        assert {queue: about(client, queue) for queue in before} == before
        refused = "refused: queue 'log' was created as a log: jobs need a queue of the type jobs"
        assert _apply(backend, config) == (1, [f"log: max-deliveries 0 -> 2, {refused}", *expected])
        after = about(client, "mails")
        shown = (b"bound", b"overflow", b"type", b"max_deliveries", b"dead_letter", b"ttl_ms")
        assert [after[name] for name in shown] == [5, b"error", b"jobs", 3, b"failed", 2500]
        for queue in ("stacks", "other", "log"):
            assert about(client, queue) == before[queue]
        # A queue that a put has created still expires, and others do not.
        for queue, mark in (("stack", b"1"), ("mails-2", None)):
            assert direct.hget(f"__pressure__:{queue}:ext:settings", "implicit") == mark
        assert client.execute_command("PRESSURE.RESERVE", "mails")[2] == b"a"
    assert not [key for key in direct.keys("*") if not key.startswith(b"__pressure__")]
    config.write_text("[queues.'mails*']\nbound = 5")
    assert _apply(backend, config) == (0, [])


def test_apply_needs_a_file(backend: Valkey) -> None:
    done = _run(backend, "queues", "apply")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pressure-server: name the file with the sections by --config\n"
    assert "--dry-run" in _run(backend, "queues", "apply", "--help").stdout
