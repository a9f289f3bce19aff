"""Dead letters go back to the queues from which they came."""

from pathlib import Path

import pytest

from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.waiters import Waiter, about, create, is_refused


def kill(server: Server, client: Client, queue: str, *messages: str, options: str = "") -> None:
    """Let messages of a queue become dead letters."""
    if not client.exists(queue):
        create(client, queue, *options.split(), "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    before = client.llen("dead")
    client.rpush(queue, *messages)
    with Waiter(server.port) as worker:
        found = worker("PRESSURE.RESERVE", queue, "COUNT", len(messages))
        assert len(found) == len(messages)
    wait_for(lambda: client.llen("dead") == before + len(messages), "the dead letters")


@pytest.mark.parametrize("options", ["", "TYPE LIFO", "TYPE RANDOM"])
def test_jobs_go_back_where_they_came_from(
    server: Server, client: Client, waiter: Waiter, options: str
) -> None:
    kill(server, client, "q", *"abc", options=options)
    kill(server, client, "p", *"xy", options=options)
    assert waiter("PRESSURE.REDRIVE", "dead") == 5
    assert (set(client.smembers("q")), set(client.smembers("p"))) == ({b"a", b"b", b"c"}, {b"x", b"y"})
    assert client.llen("dead") == 0
    # Nothing counts as delivered.
    assert waiter("PRESSURE.RESERVE", "p")[3] == 1
    assert waiter("PRESSURE.REDRIVE", "dead") == 0


def test_jobs_keep_their_priority_and_their_time_to_run(
    client: Client, waiter: Waiter, server: Server
) -> None:
    create(client, "q", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    job = waiter("PRESSURE.PUT", "q", "m", "PRIORITY", 7, "TTR", 33)
    with Waiter(server.port) as worker:
        assert worker("PRESSURE.RESERVE", "q")[1] == job
    wait_for(lambda: client.llen("dead") == 1, "the dead letter")
    (dead, _) = client.execute_command("PRESSURE.PEEK", "dead", "READY")
    assert client.execute_command("PRESSURE.JOB", "dead", dead)[b"origin"] == b"q"
    assert waiter("PRESSURE.REDRIVE", "dead") == 1
    _, job, _, _ = waiter("PRESSURE.RESERVE", "q")
    found = client.execute_command("PRESSURE.JOB", "q", job)
    assert (found[b"priority"], found[b"ttr_ms"]) == (7, 33_000)


def test_very_many_go_back(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "q", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    for first in range(0, 3000, 1000):
        kill(server, client, "q", *(f"m{number}" for number in range(first, first + 1000)))
    expected = client.lrange("dead", 0, -1)
    assert waiter("PRESSURE.REDRIVE", "dead", "COUNT", 1200) == 1200
    assert waiter("PRESSURE.REDRIVE", "dead") == 1800
    assert (client.llen("q"), client.llen("dead")) == (3000, 0)
    assert client.lrange("q", 0, -1) == expected


def test_those_that_do_not_fit_stay(server: Server, client: Client, waiter: Waiter) -> None:
    kill(server, client, "q", *"abcde", options="BOUND 5")
    client.execute_command("PRESSURE.ALTER", "q", "BOUND", 3)
    kill(server, client, "p", *"xy")
    assert waiter("PRESSURE.REDRIVE", "dead") == 5
    assert (client.llen("q"), client.llen("p"), client.llen("dead")) == (3, 2, 2)
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead"), "FULL")
    assert client.lrange("dead", 0, -1) == [b"d", b"e"]


@pytest.mark.parametrize("command", ["PRESSURE.CLOSE", "PRESSURE.DELETE"])
def test_a_queue_that_does_not_take_them(
    server: Server, client: Client, waiter: Waiter, command: str
) -> None:
    kill(server, client, "q", *"ab")
    client.execute_command(command, "q")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead"), "CLOSED" if "CLOSE" in command else "NOQUEUE")
    assert client.lrange("dead", 0, -1) == [b"a", b"b"]
    assert waiter("RPUSH", "other", "x") == 1
    assert waiter("PRESSURE.REDRIVE", "dead", "TO", "other") == 2
    assert client.lrange("other", 0, -1) == [b"x", b"a", b"b"]
    assert about(client, "other")[b"type"] == b"fifo"


def test_messages_without_an_origin(client: Client, waiter: Waiter) -> None:
    client.rpush("dead", *"ab")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead"), "TYPE")
    create(client, "q")
    assert waiter("PRESSURE.REDRIVE", "dead", "TO", "q") == 2
    assert client.lrange("q", 0, -1) == [b"a", b"b"]


def test_a_list_for_dead_letters_stays_a_list(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "dead", "TYPE", "FIFO")
    kill(server, client, "q", *"ab")
    assert about(client, "dead")[b"type"] == b"fifo"
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead"), "TYPE")
    assert client.lrange("dead", 0, -1) == [b"a", b"b"]


@pytest.mark.parametrize("order", ["LIFO", "RANDOM"])
def test_a_queue_of_another_order_knows_where_its_first_dead_letter_came_from(
    server: Server, client: Client, waiter: Waiter, order: str
) -> None:
    create(client, "dead", "TYPE", order)
    for message in "ab":
        kill(server, client, "q", message)
    assert waiter("PRESSURE.REDRIVE", "dead") == 2
    assert (client.llen("q"), client.llen("dead")) == (2, 0)


def test_jobs_keep_the_names_that_make_them_unique(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "q", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead", "UNIQUE", "QUEUED")
    for message in ("a named x", "b"):
        name = ("UNIQUE-BY", "x") if "x" in message else ()
        waiter("PRESSURE.PUT", "q", message, *name)
        with Waiter(server.port) as worker:
            assert worker("PRESSURE.RESERVE", "q")
    wait_for(lambda: client.llen("dead") == 2, "the dead letters")
    assert waiter("PRESSURE.REDRIVE", "dead") == 2
    there = client.lrange("q", 0, -1)
    assert there == [b"a named x", b"b"]
    for words in (("c", "UNIQUE-BY", "x"), ("d", "UNIQUE-BY", "b"), ("b",)):
        waiter("PRESSURE.PUT", "q", *words)
        assert client.lrange("q", 0, -1) == there
    waiter("PRESSURE.PUT", "q", "e", "UNIQUE-BY", "a named x")
    assert client.lrange("q", 0, -1) == [*there, b"e"]


def test_a_message_of_a_group_goes_back_to_nobody(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "log", "TYPE", "LOG")
    waiter("PRESSURE.GROUP", "CREATE", "log", "g")
    client.execute_command("PRESSURE.ALTER", "log+g", "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    client.rpush("log", "m")
    with Waiter(server.port) as worker:
        assert worker("PRESSURE.RESERVE", "log+g")
    wait_for(lambda: client.llen("dead") == 1, "the dead letter")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead"), "TYPE")
    assert waiter("PRESSURE.REDRIVE", "dead", "TO", "log") == 1
    assert client.lrange("log", 0, -1) == [b"m"]


def test_bad_input(client: Client, waiter: Waiter) -> None:
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead"), "NOQUEUE")
    client.rpush("dead", "m")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead", "TO", "dead"), "ERR")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead", "TO", "missing"), "NOQUEUE")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead", "COUNT", 0), "ERR")
    assert is_refused(waiter("PRESSURE.REDRIVE", "dead", "SOON"), "ERR")
    assert client.lrange("dead", 0, -1) == [b"m"]


def test_a_full_origin_does_not_hide_others(server: Server, client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 1000, "MAX-DELIVERIES", 1, "DEAD-LETTER", "dead")
    kill(server, client, "q", *(str(number) for number in range(700)))
    client.execute_command("PRESSURE.ALTER", "q", "BOUND", 1)
    client.rpush("q", "there")
    kill(server, client, "p", "x")
    assert waiter("PRESSURE.REDRIVE", "dead") == 1
    assert (client.llen("p"), client.llen("dead")) == (1, 700)


def test_a_transaction(server: Server, client: Client, waiter: Waiter) -> None:
    kill(server, client, "q", *(str(number) for number in range(900)))
    assert waiter("MULTI") == b"OK"
    assert waiter("PRESSURE.REDRIVE", "dead") == b"QUEUED"
    assert waiter("LLEN", "q") == b"QUEUED"
    assert waiter("EXEC") == [900, 900]


def test_a_queue_of_dead_letters_that_its_section_makes_a_list(
    backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    config = tmp_path / "pressure.toml"
    config.write_text('[queues."dead"]\ntype = "fifo"\n')
    server = start_server("--backend", backend.url, "--config", str(config))
    with server.client() as client:
        kill(server, client, "q", *"abc")
        assert client.lrange("dead", 0, -1) == [b"a", b"b", b"c"]
        assert about(client, "q")[b"buried"] == 0
