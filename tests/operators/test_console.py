"""The console's API: what each user sees, sorted and paged; actions and the rights that they need."""

import contextlib
import http.client
import json
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.operators.conftest import HTTP, USERS
from tests.operators.test_doctor_command import QUEUE, kill_a_producer
from tests.support.guards import reload, users_toml
from tests.support.http_requests import Response, connect, request
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.waiters import Waiter, create

shared_server = module_server(*HTTP)


@contextlib.contextmanager
def _events(server: Server, path: str, cookie: str = "") -> Iterator[Iterator[Any]]:
    """Yield the events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port_of("http"), timeout=20)
    try:
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type") == "text/event-stream"
        yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
    finally:
        connection.close()


def _overview(server: Server, **query: Any) -> Any:
    with _events(server, f"/api/overview/events?{urlencode(query)}") as events:
        return next(events)


def _surveyed(server: Server, count: int, **query: Any) -> Any:
    """Return the overview when it has so many queues."""
    return wait_for(
        lambda: found if (found := _overview(server, **query))["matching"] == count else None,
        f"the survey to find {count} queues",
    )


def _names(overview: Any) -> list[str]:
    return [row["name"] for row in overview["rows"]]


def _queue(server: Server, name: bytes | str, db: int = 0, *, cookie: str = "", **pages: int) -> Any:
    query = urlencode({"db": db, "id": quote(name, safe=""), **pages})
    with _events(server, f"/api/queue/events?{query}", cookie) as events:
        return next(events)


def _texts(jobs: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Return the texts of the jobs in each state."""
    return {state: [job["text"] for job in some] for state, some in jobs.items()}


def _act(server: Server, action: str, queue: bytes | str | None = None, **arguments: Any) -> Response:
    body = {"action": action, **arguments}
    login = body.pop("login", None)
    if queue is not None:
        body["queue"] = quote(queue, safe="")
    return request(server, "/api/actions", method="POST", body=body, login=login)


def test_only_servers_with_http_load_its_library(start_server: StartServer, backend: Valkey) -> None:
    for options in ((), HTTP):
        server = start_server("--backend", backend.url, *options, new_process=True)
        loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert ("/aiohttp/" in loaded) == bool(options)


def test_the_overview_has_each_queue_with_its_figures(server: Server, client: Client) -> None:
    create(client, "full", "BOUND", "2", "OVERFLOW", "ERROR")
    client.rpush("full", "a", "bb")
    create(client, "jobs", "TYPE", "JOBS")
    client.rpush("jobs", "x")
    client.execute_command("PRESSURE.CLOSE", "jobs")
    # A queue that was looked at in the last half second is not looked at again.
    wait_for(lambda: _surveyed(server, 2)["rows"][1]["states"] == ["closed"], "the survey to see it closed")
    found = _overview(server)
    full, jobs = found["rows"]
    assert (full["name"], full["messages"], full["bytes"], full["bound"]) == ("full", 2, 3, 2)
    assert full["states"] == ["full"]
    assert jobs["type"] == "jobs"
    assert jobs["warnings"] == ["it is closed, and still has messages"]
    assert found["server"]["queues"] == 2


def test_queues_are_sorted_and_those_in_a_state_are_shown(server: Server, client: Client) -> None:
    for name, *messages in (
        ("buried", "x"), ("closed", "123456789"), ("full", "1", "2"), ("paused", "xxx"), ("waited", "x"),
    ):  # fmt: skip
        create(client, name, "TYPE", "JOBS", "BOUND", "2")
        client.rpush(name, *messages)
    client.execute_command("PRESSURE.CLOSE", "closed")
    client.execute_command("PRESSURE.PAUSE", "paused", "100")
    client.execute_command("PRESSURE.BURY", "buried", client.execute_command("PRESSURE.RESERVE", "buried")[1])
    client.spop("waited")
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "waited", 0)
        for query, first in {
            "state=buried": "buried",
            "state=closed": "closed",
            "state=full": "full",
            "state=paused": "paused",
            "sort=bytes&order=down": "closed",
            "sort=messages&order=down": "full",
            "sort=name": "buried",
            "sort=waiting&order=down": "waited",
        }.items():
            wanted = dict(word.split("=") for word in query.split("&"))
            count = 1 if "state" in wanted else 5

            def is_shown(wanted: Any = wanted, first: str = first, count: int = count) -> bool:
                shown = _names(_overview(server, **wanted))
                return (shown[:1], len(shown)) == ([first], count)

            wait_for(is_shown, query)
        assert _overview(server, sort="waiting", order="down")["rows"][0]["waiting_consumers"] == 1
    most_urgent_first = ["full", "closed", "paused", "buried", "waited"]
    assert _names(_overview(server, sort="states", order="down")) == most_urgent_first
    assert _overview(server, state="full", filter="x")["matching"] == 0
    assert _overview(server, state="problem")["matching"] == 0


def test_figures_are_stale_while_the_backend_is_away(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, *HTTP, "--backend-grace", "60s")
    with server.client() as client:
        client.rpush("q", "x")
    live = _surveyed(server, 1)
    assert (live["not_ready"], live["stale"], live["rows"][0]["stale"]) == (None, 0, 0)
    valkey.stop()
    # The server rounds the age of all figures and the age of each row separately.
    wait_for(lambda: _overview(server)["stale"] > 5, "the figures to be stale")
    wait_for(lambda: _overview(server)["rows"][0]["stale"] > 5, "the row to be stale")
    away = _overview(server)
    assert away["not_ready"].startswith("the backend is away")
    # It does not wait for the grace of 60 seconds.
    queue = _queue(server, "q")
    assert queue["error"].startswith("BACKEND")
    assert queue["not_ready"] == away["not_ready"]
    valkey.start()
    wait_for(lambda: _overview(server)["stale"] == 0, "the figures to be live")
    assert _overview(server)["not_ready"] is None


def test_any_page_of_many_queues_is_in_order_and_filtered(server: Server, client: Client) -> None:
    lengths = [number * 7919 % 13 for number in range(2500)]
    with client.pipeline(transaction=False) as pipe:
        for number, length in enumerate(lengths):
            pipe.rpush(f"q{number:04}", *range(1 + length))
        pipe.execute()
    _surveyed(server, 2500)
    assert _overview(server, sort="messages", page=49)["rows"][0]["messages"] == sorted(lengths)[2450] + 1
    shown = [
        row["messages"]
        for page in (0, 1, 49, 25)
        for row in _overview(server, sort="messages", order="down", page=page)["rows"]
    ]
    expected = [1 + length for length in sorted(lengths, reverse=True)]
    assert shown == [*expected[:100], *expected[2450:], *expected[1250:1300]]
    third = _overview(server, filter="q01", page=1)
    assert (third["matching"], third["pages"], third["page"], len(third["rows"])) == (100, 2, 1, 50)
    assert third["rows"][0]["name"] == "q0150"
    assert _overview(server, filter="q01", page=99)["page"] == 1
    assert _overview(server, filter="nothing")["rows"] == []
    assert _names(_overview(server, filter="q*123?")) == [f"q123{digit}" for digit in range(10)]


_WRONG = {
    "/api/overview/events": [
        *("sort=evil", "sort=__class__", "order=x", "state=open", "filter=" + "a" * 300),
        *("page=-1", "page=x", "page=99999999"),
    ],
    "/api/queue/events": [
        *("", "id=", "id=a%2500:ext:", "id=x:bound", "db=x&id=x", "db=99&id=x"),
        *(f"id=q&list={page}" for page in ("-1", "x", "1e3", "9999999", "%D9%A1", "")),
        *(f"id=q&{state}=-1" for state in ("ready", "delayed", "reserved", "buried")),
    ],
}


@pytest.mark.parametrize("path", [f"{path}?{query}" for path, queries in _WRONG.items() for query in queries])
def test_wrong_queries_are_refused(server: Server, path: str) -> None:
    refused = request(server, path)
    assert refused.status == (404 if "db=" in path else 400)
    if part := re.search(r"id=q&(\w+)=", path):
        assert refused.text == f"{part[1]} must be a number\n"


def test_events_come_when_something_changes(server: Server, client: Client) -> None:
    client.rpush("q", "x")
    wait_for(lambda: _surveyed(server, 1)["rows"][0]["messages"] == 1, "the survey to count the message")
    with _events(server, "/api/overview/events") as events:
        assert next(events)["rows"][0]["messages"] == 1
        client.rpush("q", "y", "z")
        assert any(one["rows"][0]["messages"] == 3 for one in (next(events) for _ in range(4)))


def test_a_queue_shows_its_messages_and_takes_none(server: Server, client: Client) -> None:
    assert _queue(server, "q")["gone"] is True
    binary, long = b"\x00\xff\x80", b"a" * 10_000
    client.rpush("q", "text é", '{"a": [1]}', binary, long, b"x" * 4095 + "é".encode(), b"cut \xc3")
    assert _queue(server, "q")["list"] == [
        {"size": 7, "text": "text é"},
        {"size": 10, "text": '{"a": [1]}'},
        {"size": 3, "hex": "00ff80"},
        {"size": 10_000, "text": "a" * 4096},
        {"size": 4097, "text": "x" * 4095},
        {"size": 5, "hex": "63757420c3"},
    ]
    assert client.llen("q") == 6


@pytest.mark.parametrize("kind", ["FIFO", "LOG", "LIFO"])
def test_messages_have_pages(server: Server, client: Client, kind: str) -> None:
    create(client, "q", "TYPE", kind)
    client.rpush("q", *range(105))
    expected = list(map(str, range(105)))
    if kind == "LIFO":
        expected.reverse()
    for asked, before in ((0, 0), (1, 20), (5, 100), (6, 100), (999_999, 100)):
        found = _queue(server, "q", list=asked)
        assert [message["text"] for message in found["list"]] == expected[before : before + 20]
        assert found["pages"]["list"] == {"count": 105, "before": before}


def test_pages_reach_the_oldest_ten_thousand_messages_of_a_list(server: Server, client: Client) -> None:
    client.rpush("q", *range(10_050))
    found = _queue(server, "q", list=600)
    assert found["pages"]["list"] == {"count": 10_000, "before": 9980}
    assert [message["text"] for message in found["list"]] == [str(number) for number in range(9980, 10_000)]


def test_jobs_in_each_state_have_pages(server: Server, client: Client) -> None:
    create(client, "q", "TYPE", "JOBS")
    client.rpush("q", *range(100))
    for _ in range(45):
        reserved = client.execute_command("PRESSURE.RESERVE", "q")[1]
        if reserved <= 20:
            client.execute_command("PRESSURE.BURY", "q", reserved)
    for delay in range(21):
        client.execute_command("PRESSURE.PUT", "q", f"later {delay}", "DELAY", 1000 + delay)
    found = _queue(server, "q", ready=2, delayed=1, reserved=1, buried=1)
    assert found["pages"] == {
        "list": {"count": 0, "before": 0}, "ready": {"count": 55, "before": 40},
        "delayed": {"count": 21, "before": 20}, "reserved": {"count": 25, "before": 20},
        "buried": {"count": 20, "before": 0},
    }  # fmt: skip
    assert _texts(found["jobs"]) == {
        "ready": [str(number) for number in range(85, 100)], "delayed": ["later 20"],
        "reserved": [str(number) for number in range(40, 45)],
        "buried": [str(number) for number in range(20)],
    }  # fmt: skip
    assert (found["jobs"]["buried"][0]["id"], found["jobs"]["reserved"][0]["reserves"]) == (1, 1)
    (later,) = found["jobs"]["delayed"]
    assert 1000 < later["until"] - found["now"] <= 1020


def _held(job: Any) -> tuple[Any, ...]:
    """Return who has a job, and for how many seconds its reservation lasts as a whole; None for no end."""
    client = job["client"] and (job["client"]["name"], job["client"]["address"])
    return client, job["until"] and round(job["until"] - job["since"])


def test_reserved_jobs_show_who_has_them(
    server: Server, client: Client, start_server: StartServer, backend: Valkey
) -> None:
    for name, *options in (
        ("jobs", "TYPE", "JOBS"), ("kept", "ACK", "NEXT"), ("limited", "ACK", "NEXT", "ACK-TTR", "30"),
    ):  # fmt: skip
        create(client, name, *options)
        client.rpush(name, "1", "2", "3")
    peer = start_server("--backend", backend.url, *HTTP)
    with server.client(client_name="ann") as ann, peer.client(client_name="bob") as bob:
        number, address = ann.client_id(), ann.client_info()["addr"]
        ann.execute_command("PRESSURE.RESERVE", "jobs", "TTR", "90")
        ann.execute_command("PRESSURE.RESERVE", "jobs", "DETACHED", "night-shift", "TTR", "600")
        bob.execute_command("PRESSURE.RESERVE", "jobs")
        assert ann.lpop("kept") == b"1"
        of_ann = ("ann", address)
        by_age = sorted(_queue(server, "jobs")["jobs"]["reserved"], key=lambda job: job["id"])
        assert [_held(job) for job in by_age] == [(of_ann, 90), (None, 600), (None, 60)]
        assert [job["token"] for job in by_age] == [str(number), "night-shift", str(bob.client_id())]
        assert by_age[1]["server"] == ""
        name = request(peer, "/api/me").json["server"]
        # A server knows the other ones after the first search for dead peers.
        wait_for(
            lambda: name in {job["server"] for job in _queue(server, "jobs")["jobs"]["reserved"]},
            "the name of the peer",
        )
        (kept,) = _queue(server, "kept")["jobs"]["reserved"]
        assert (_held(kept), kept["reserves"]) == ((of_ann, None), 1)
        assert kept["since"] is not None
        # Its next pop, of another queue, acknowledges the message.
        assert ann.lpop("limited") == b"1"
        wait_for(lambda: _queue(server, "kept")["jobs"]["reserved"] == [], "the acknowledgement")
        found = _queue(server, "limited")
        assert [(_held(job), job["text"]) for job in found["jobs"]["reserved"]] == [((of_ann, 30), "1")]
        with _events(server, "/api/clients/events?filter=ann&sort=reserved&order=down") as events:
            (row,) = next(events)["rows"]
        assert row["reserved"] == 2
        assert {queue["name"] for queue in row["reserved_from"]} == {"jobs", "limited"}


def test_groups_are_shown_with_their_lag_and_what_one_consumer_has_is_one_row(
    server: Server, client: Client
) -> None:
    create(client, "log", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    client.rpush("log", "a", "b", "c", "d")
    client.execute_command("PRESSURE.READ", "log", "GROUP", "g", "ann", "COUNT", "3")
    (group,) = _queue(server, "log")["groups"]
    assert (group["name"], group["lag"], group["reserved"]) == ("g", 1, 3)
    found = _queue(server, "log+g")
    assert found["row"]["type"] == "group"
    (job,) = found["jobs"]["reserved"]
    assert (job["count"], job["text"], job["token"], job["client"]) == (3, "a", "ann", None)
    assert 0 <= found["now"] - job["since"] < 30
    # The log drops the message while the consumer has it.
    client.execute_command("PRESSURE.ALTER", "log", "BOUND", "4", "OVERFLOW", "OVERWRITE")
    client.rpush("log", "e")
    (job,) = _queue(server, "log+g")["jobs"]["reserved"]
    assert (job["size"], job["text"]) == (-1, "")


def test_processes_peers_and_shards_are_shown(
    server: Server, start_server: StartServer, backend: Valkey
) -> None:
    crew = start_server("--backend", backend.url, *HTTP, "--workers", "2")
    other = request(server, "/api/me").json["server"]

    def shown() -> Any:
        with _events(crew, "/api/servers/events") as events:
            found = next(events)
        return found if any(peer["name"] == other for peer in found["peers"]) else None

    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(crew.client()).ping()
        found = wait_for(shown, "the peer")
    assert [process["role"] for process in found["processes"]] == ["supervisor", "worker", "worker"]
    clients = [process["connected"] for process in found["processes"]]
    assert (clients[0], sum(clients)) == (0, 3)
    names = {process["name"] for process in found["processes"]}
    assert len(names) == 3
    assert names.isdisjoint(peer["name"] for peer in found["peers"])
    (peer,) = [peer for peer in found["peers"] if peer["name"] == other]
    assert (peer["timeout"], peer["has_same_library"]) == (15, True)
    assert 0 <= peer["silent"] < 15
    (shard,) = found["shards"]
    assert (shard["number"], shard["not_ready"], shard["lost_calls"]) == (0, "", 0)


def test_clients_that_wait_are_shown_with_their_queue(server: Server, client: Client) -> None:
    create(client, "empty")
    with Waiter(server.port) as waiter:
        waiter("CLIENT", "SETNAME", "ann")
        waiter.send("BLPOP", "empty", "empty2", 0)

        def waits_on_both() -> Any:
            found = _queue(server, "empty")["clients"]
            return found if found and len(found[0]["queues"]) == 2 else None

        (waiting,) = wait_for(waits_on_both, "the client to wait on both queues")
        assert (waiting["name"], waiting["protocol"], waiting["command"]) == ("ann", "resp", "blpop")
        assert [queue["name"] for queue in waiting["queues"]] == ["empty", "empty2"]
        with _events(server, "/api/clients/events?filter=ann") as events:
            (row,) = next(events)["rows"]
        done = _act(server, "disconnect", client=row["id"])
        assert done.json == {"done": True, "text": f"client {row['id']} was disconnected"}
        assert waiter.ends_without_reply()
    assert _act(server, "disconnect", client=row["id"]).json["done"] is False


@pytest.mark.parametrize("name", [b"\xff\x00\x01", b"a/b?c#d", "ümläut".encode(), b"<script>", b"%41", b" "])
def test_queues_of_any_name_can_be_shown_and_changed(server: Server, client: Client, name: bytes) -> None:
    client.rpush(name, "x")
    queue_id = quote(name, safe="")
    wait_for(lambda: [row["id"] for row in _overview(server)["rows"]] == [queue_id], "the survey")
    assert _queue(server, name)["row"]["id"] == queue_id
    assert _act(server, "put", name, message="y").json["done"]
    assert client.lrange(name, 0, -1) == [b"x", b"y"]
    assert _act(server, "delete", name).json["done"]
    assert not client.exists(name)


def test_each_action_says_what_it_did(server: Server, client: Client) -> None:
    def said(action: str, queue: str = "q", **arguments: Any) -> str:
        answer = _act(server, action, queue, **arguments).json
        assert answer["done"], answer
        return str(answer["text"])

    assert said("create", type="JOBS", bound="10") == "the queue was created"
    assert said("put", message="hello", priority="3", ttr="7", expire="1000") == "the message was put"
    assert said("put", message="moved") == "the message was put"
    assert _act(server, "put", "q", message="x", expire="soon").json["text"].startswith("ERR")
    assert said("bury") == "job 1 was buried"
    assert client.execute_command("PRESSURE.PEEK", "q", "BURIED") == [1, b"hello"]
    assert said("kick", count="5") == "jobs kicked: 1"
    assert client.execute_command("PRESSURE.RESERVE", "q")[2] == b"hello"
    (job,) = _queue(server, "q")["jobs"]["reserved"]
    assert (job["priority"], job["until"] - job["since"]) == (3, 7)
    assert client.execute_command("PRESSURE.ACK", "q", 1) == 1
    assert said("pause", seconds="100") == "the pause was set"
    assert _act(server, "take", "q").json["done"] is False
    assert said("pause", seconds="0") == "the pause was set"
    altered = {"ack": "NEXT", "ack_ttr": "60", "retry_delay": "5", "in_flight": "9", "rate": "100/1"}
    assert said("alter", bound="7", overflow="ERROR", max_bytes="100", **altered) == "the queue was altered"
    info = _queue(server, "q")["info"]
    assert (info["ack"], info["ack_ttr_ms"], info["retry_delay_ms"]) == ("next", 60_000, 5000)
    assert (info["in_flight"], info["rate"]) == (9, "100/1000")
    assert said("create", "other") == "the queue was created"
    assert said("redrive", to="other", count="1") == "dead letters put back: 1"
    assert said("put", hex="00ff") == "the message was put"
    # A queue that was looked at in the last half second is not looked at again.
    wait_for(lambda: _queue(server, "q")["row"]["bound"] == 7, "the new bound")
    taken = _act(server, "take", "q")
    assert (taken.headers["content-type"], taken.body) == ("application/octet-stream", b"\x00\xff")
    assert _act(server, "take", "q").json == {"done": False, "text": "there is no message to take"}
    client.rpush("q", "a", "b")
    assert said("purge") == "messages deleted: 2"
    assert said("close") == "the queue was closed"
    assert _act(server, "put", "q", message="late").json["text"].startswith("CLOSED")
    assert _act(server, "repair", "q").json == {"done": False, "text": "the queue has no problem"}
    assert said("delete") == "the queue was deleted"
    assert _act(server, "delete", "q").json["text"].startswith("NOQUEUE")


@pytest.mark.parametrize("kind", ["FIFO", "JOBS", "LIFO", "RANDOM"])
def test_a_message_that_was_taken_is_consumed(server: Server, client: Client, kind: str) -> None:
    create(client, "q", "TYPE", kind)
    client.rpush("q", "x")
    assert _act(server, "take", "q").body == b"x"
    wait_for(lambda: client.llen("q") == 0, "the queue to be empty")
    wait_for(lambda: _queue(server, "q")["row"]["reserved"] == 0, "the reservation to end")
    assert _queue(server, "q")["info"]["taken"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"action": "drop everything"}, {"action": 1}, {}, {"action": "put"}, {"action": "put", "queue": 5},
        {"action": "put", "queue": "q", "db": 77, "message": "x"},
        {"action": "put", "queue": "q", "message": 5}, {"action": "put", "queue": "q", "message": "\ud800"},
        {"action": "put", "queue": "q", "hex": "zz"}, {"action": "put", "queue": "x:ext:y", "message": "x"},
    ],
)  # fmt: skip
def test_malformed_actions_are_refused(server: Server, client: Client, body: Any) -> None:
    assert request(server, "/api/actions", method="POST", body=body).status in (400, 404)


def test_words_of_an_action_are_not_more_commands(server: Server, client: Client) -> None:
    client.rpush("q", "x")
    _act(server, "kick", "q", count="1\r\nFLUSHALL")
    _act(server, "put", "q", message="x\r\nFLUSHALL\r\n")
    assert client.exists("q")


def test_what_the_doctor_finds_is_shown_first_and_repaired(
    server: Server, client: Client, direct: Client
) -> None:
    kill_a_producer(direct)
    client.rpush("well", "x")
    with _events(server, "/api/overview/events?sort=states&order=down") as events:
        found = next(one for one in events if one["server"]["problems"])
        assert "producer" in next(row for row in found["rows"] if row["name"] == QUEUE)["problems"][0]
        first = next(one for one in events if one["rows"][0]["name"] == QUEUE)
        assert _names(first) == [QUEUE, "well"]
        answer = _act(server, "repair", QUEUE).json
        assert answer["done"], answer
        assert "gave the producer role back" in answer["text"]
        assert next(one for one in events if not one["server"]["problems"])
    assert client.sadd(QUEUE, "a") == 1


def _cookie(server: Server, name: str) -> str:
    done = request(server, "/api/login", method="POST", body={"user": name, "password": "secret"})
    assert done.status == 200
    return done.headers["set-cookie"].partition(";")[0]


def test_a_user_sees_and_changes_only_what_its_rights_permit(guarded: Server) -> None:
    def names(name: str) -> list[str]:
        with _events(guarded, "/api/overview/events", _cookie(guarded, name)) as events:
            return _names(next(events))

    wait_for(lambda: names("root") == ["mine", "other"], "the survey")
    assert names("reader") == names("worker") == ["mine"]
    reader, worker = ("reader", "secret"), ("worker", "secret")
    for login in (reader, ("writer", "secret")):
        assert _act(guarded, "close", "other", login=login).status == 403
        assert request(guarded, "/api/queue/events?id=other", login=login).status == 403
        assert request(guarded, "/api/clients/events", login=login).status == 403
    with guarded.client(username="worker", password="secret") as client:
        client.execute_command("PRESSURE.RESERVE", "mine")
        for name, has_client in (("root", True), ("reader", False)):
            (job,) = _queue(guarded, "mine", cookie=_cookie(guarded, name))["jobs"]["reserved"]
            assert (job.get("client") is not None) == has_client
    for action, login in (("take", reader), ("delete", worker), ("repair", worker)):
        assert _act(guarded, action, "mine", login=login).json["text"].startswith("NOPERM")
    assert _act(guarded, "disconnect", client=1, login=worker).status == 403
    assert _act(guarded, "take", "mine", login=worker).body == b"x"
    assert _act(guarded, "take", "mine").status == 401


@pytest.mark.parametrize(
    ("path", "user", "left"),
    [
        ("/api/overview/events", "reader", ("secret", ["mine*"], ["put"])),
        ("/api/clients/events", "root", ("secret", ["*"], ["read"])),
    ],
)
def test_a_stream_ends_when_its_user_loses_the_right_to_it(
    guarded: Server, users_file: Path, path: str, user: str, left: tuple[str, list[str], list[str]]
) -> None:
    with _events(guarded, path, _cookie(guarded, user)) as events:
        next(events)
        users_file.write_text(users_toml({**USERS, user: left}))
        reload(guarded)
        # The stream ends well: http.client raises TimeoutError or IncompleteRead if not.
        assert len(list(events)) < 5
    assert "Traceback" not in guarded.log


def test_a_message_returns_if_the_browser_leaves_before_it_has_come(server: Server, client: Client) -> None:
    client.rpush("q", b"x" * (20 << 20), "next")
    body = b'{"action": "take", "queue": "q"}'
    with connect(server) as browser:
        browser.sendall(
            b"POST /api/actions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_for(lambda: client.execute_command("PRESSURE.INFO", "q")[b"reserved"] == 1, "the reservation")
        # The server could not send everything, as the browser reads nothing.
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: client.llen("q") == 2, "the message to return")
    assert len(client.lindex("q", 0)) == 20 << 20


def test_the_server_stops_while_consoles_are_open(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url, *HTTP)
    with _events(server, "/api/overview/events") as events:
        next(events)
        assert server.stop() == 0
        assert all(event["not_ready"] for event in events)


def test_errors_of_the_page_are_logged_once_and_escaped(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url, *HTTP)
    forged = "x\n2026 INFO forged \x1b[31m" + "a" * 9999
    for _ in range(50):
        request(server, "/api/errors", method="POST", body={"text": forged})
    assert server.log.count("an error in the console's page") == 1
    assert "\x1b" not in server.log
    assert "\n2026 INFO forged" not in server.log


def test_the_console_acts_on_other_databases(server: Server, client: Client) -> None:
    with server.client(db=3) as third:
        third.rpush("q", "x")
        wait_for(lambda: any(row["db"] == 3 for row in _overview(server)["rows"]), "the survey")
        assert _queue(server, "q", db=3)["list"] == [{"size": 1, "text": "x"}]
        assert _act(server, "take", "q", db=3).body == b"x"
        third.execute_command("PRESSURE.DELETE", "q")
