"""The console's API: what each user sees, sorted and paged; actions and the rights that they need."""

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import redis

from tests.operators.test_doctor_command import QUEUE, kill_a_producer
from tests.support.guards import reload, users_toml
from tests.support.http_requests import Response, connect, request
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, wait_for

_ALL = ["put", "get", "read", "administer"]
_USERS = {
    "root": ("secret", ["*"], _ALL),
    "reader": ("secret", ["mine*"], ["read"]),
    "worker": ("secret", ["mine*"], ["read", "get"]),
    "writer": ("secret", ["*"], ["put"]),
}


@pytest.fixture(scope="module")
def console(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a console that needs no login."""
    server = Server(
        tmp_path_factory.mktemp("console") / "log",
        *("--backend", shared_backend.url, "--http", "http://127.0.0.1:0"),
        *("--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0"),
        new_process=True,
    )
    yield server
    server.end_well()


@pytest.fixture
def queues(backend: Valkey, console: Server) -> Iterator[Client]:
    """redis-py, connected to that server, on a backend without data."""
    with console.client() as connected:
        yield connected


@contextlib.contextmanager
def _events(server: Server, path: str, cookie: str = "") -> Iterator[Iterator[Any]]:
    """Yield the events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port_of("http"), timeout=20)
    try:
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type") == "text/event-stream"

        def read() -> Iterator[Any]:
            while line := response.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        yield read()
    finally:
        connection.close()


def _overview(server: Server, **query: Any) -> Any:
    with _events(server, f"/api/overview/events?{urlencode(query)}") as events:
        return next(events)


def test_only_servers_with_http_load_its_library(
    console: Server, start_server: StartServer, shared_backend: Valkey
) -> None:
    without = start_server("--backend", shared_backend.url, new_process=True)
    loaded = [Path(f"/proc/{server.process.pid}/maps").read_text() for server in (console, without)]
    assert ["/aiohttp/" in files for files in loaded] == [True, False]


def _surveyed(server: Server, count: int, **query: Any) -> Any:
    """Return the overview when it has so many queues."""
    return wait_for(
        lambda: found if (found := _overview(server, **query))["matching"] == count else None,
        f"the survey to find {count} queues",
    )


def _queue(server: Server, name: bytes | str, db: int = 0) -> Any:
    with _events(server, f"/api/queue/events?db={db}&id={quote(quote(name, safe=''))}") as events:
        return next(events)


def _act(server: Server, action: str, queue: bytes | str | None = None, **arguments: Any) -> Response:
    body = {"action": action, **arguments}
    login = body.pop("login", None)
    if queue is not None:
        body["queue"] = quote(queue, safe="")
    return request(server, "/api/actions", method="POST", body=body, login=login)


def test_the_overview_has_each_queue_with_its_figures(console: Server, queues: Client) -> None:
    queues.execute_command("PRESSURE.CREATE", "full", "BOUND", "2", "OVERFLOW", "ERROR")
    queues.rpush("full", "a", "bb")
    queues.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    queues.rpush("jobs", "x")
    queues.execute_command("PRESSURE.CLOSE", "jobs")
    # A queue that was looked at in the last half second is not looked at again.
    wait_for(lambda: _surveyed(console, 2)["rows"][1]["states"] == ["closed"], "the survey to see it closed")
    found = _overview(console)
    full, jobs = found["rows"]
    assert (full["name"], full["messages"], full["bytes"], full["bound"]) == ("full", 2, 3, 2)
    assert full["states"] == ["full"]
    assert jobs["type"] == "jobs"
    assert jobs["warnings"] == ["it is closed, and still has messages"]
    assert found["server"]["queues"] == 2


@pytest.mark.parametrize(
    ("sort", "order", "names"),
    [
        ("name", "up", ["a", "b", "c"]),
        ("name", "down", ["c", "b", "a"]),
        ("messages", "down", ["b", "c", "a"]),
        ("bytes", "up", ["b", "a", "c"]),
    ],
)
def test_queues_are_sorted_by_the_server(
    console: Server, queues: Client, sort: str, order: str, names: list[str]
) -> None:
    queues.rpush("a", "xxxxxxxx")
    queues.rpush("b", "1", "2", "3")
    queues.rpush("c", "12345", "12345")
    found = _surveyed(console, 3, sort=sort, order=order)
    assert [row["name"] for row in found["rows"]] == names


def test_queues_that_need_attention_are_found_by_sorting(console: Server, queues: Client) -> None:
    queues.execute_command("PRESSURE.CREATE", "closed")
    queues.execute_command("PRESSURE.CLOSE", "closed")
    queues.execute_command("PRESSURE.CREATE", "full", "BOUND", "1")
    queues.rpush("full", "x")
    queues.rpush("well", "x")
    with console.client() as other:

        def take() -> None:
            with contextlib.suppress(redis.RedisError):
                other.blpop(["closed2"], 20)

        queues.execute_command("PRESSURE.CREATE", "closed2")
        taking = threading.Thread(target=take)
        taking.start()
        found = wait_for(
            lambda: (
                rows
                if (rows := _surveyed(console, 4, sort="waiting", order="down")["rows"])[0]["name"]
                == "closed2"
                else None
            ),
            "the waiting client",
        )
        assert found[0]["waiting_consumers"] == 1
        queues.execute_command("PRESSURE.DELETE", "closed2")
        taking.join()
    states = _surveyed(console, 3, sort="states", order="down")["rows"]
    assert [row["name"] for row in states] == ["full", "closed", "well"]


def test_the_queues_in_a_state_are_shown(console: Server, queues: Client) -> None:
    for name in ("closed", "full", "paused", "buried", "well"):
        queues.execute_command("PRESSURE.CREATE", name, "TYPE", "JOBS", "BOUND", "2")
        queues.rpush(name, "x")
    queues.rpush("full", "y")
    queues.execute_command("PRESSURE.CLOSE", "closed")
    queues.execute_command("PRESSURE.PAUSE", "paused", "100")
    _, job, _, _ = queues.execute_command("PRESSURE.RESERVE", "buried")
    queues.execute_command("PRESSURE.BURY", "buried", job)
    for state in ("closed", "full", "paused", "buried"):

        def is_alone(state: str = state) -> bool:
            return [row["name"] for row in _overview(console, state=state)["rows"]] == [state]

        wait_for(is_alone, f"the queue that is {state}")
    assert _overview(console, state="full", filter="x")["matching"] == 0
    assert _overview(console, state="problem")["matching"] == 0


def test_figures_are_stale_while_the_backend_is_away(
    start_server: StartServer, start_valkey: StartValkey
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, "--http", "http://127.0.0.1:0", "--backend-grace", "60s")
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


def test_any_page_of_many_queues_is_in_order(console: Server, queues: Client) -> None:
    lengths = [number * 7919 % 13 for number in range(2500)]
    with queues.pipeline(transaction=False) as pipe:
        for number, length in enumerate(lengths):
            pipe.rpush(f"q{number}", *range(1 + length))
        pipe.execute()
    _surveyed(console, 2500)
    assert _overview(console, sort="messages", page=49)["rows"][0]["messages"] == sorted(lengths)[2450] + 1
    shown = [
        row["messages"]
        for page in (0, 1, 49, 25)
        for row in _overview(console, sort="messages", order="down", page=page)["rows"]
    ]
    expected = [1 + length for length in sorted(lengths, reverse=True)]
    assert shown == [*expected[:100], *expected[2450:], *expected[1250:1300]]


def test_queues_are_filtered_and_paged(console: Server, queues: Client) -> None:
    with queues.pipeline(transaction=False) as pipe:
        for number in range(120):
            pipe.rpush(f"mail:{number:03}", "x")
            pipe.rpush(f"job:{number:03}", "x")
        pipe.execute()
    _surveyed(console, 240)
    third = _overview(console, filter="mail", page=2)
    assert (third["matching"], third["pages"], third["page"], len(third["rows"])) == (120, 3, 2, 20)
    assert third["rows"][0]["name"] == "mail:100"
    assert _overview(console, filter="mail", page=99)["page"] == 2
    assert [row["name"] for row in _overview(console, filter="j*:00?")["rows"]] == [
        f"job:00{digit}" for digit in range(10)
    ]
    assert _overview(console, filter="nothing")["rows"] == []


@pytest.mark.parametrize(
    "query",
    [
        "sort=evil",
        "order=x",
        "page=-1",
        "page=x",
        "page=99999999",
        "filter=" + "a" * 300,
        "sort=__class__",
        "state=open",
    ],
)
def test_wrong_queries_are_refused(console: Server, query: str) -> None:
    assert request(console, f"/api/overview/events?{query}").status == 400


@pytest.mark.parametrize("query", ["id=", "id=a%2500:ext:", "id=x:bound", "db=99&id=x", "db=x&id=x", ""])
def test_what_cannot_be_a_queue_is_refused(console: Server, query: str) -> None:
    assert request(console, f"/api/queue/events?{query}").status in (400, 404)


def test_events_come_when_something_changes(console: Server, queues: Client) -> None:
    queues.rpush("q", "x")
    wait_for(lambda: _surveyed(console, 1)["rows"][0]["messages"] == 1, "the survey to count the message")
    with _events(console, "/api/overview/events") as events:
        assert next(events)["rows"][0]["messages"] == 1
        queues.rpush("q", "y", "z")
        assert any(one["rows"][0]["messages"] == 3 for one in (next(events) for _ in range(4)))


def test_a_queue_shows_its_messages_and_takes_none(console: Server, queues: Client) -> None:
    binary, long = b"\x00\xff\x80", b"a" * 10_000
    queues.rpush("q", "text é", '{"a": [1]}', binary, long, b"x" * 4095 + "é".encode(), b"cut \xc3")
    shown = _queue(console, "q")["list"]
    assert shown[0] == {"size": 7, "text": "text é"}
    assert shown[1]["text"] == '{"a": [1]}'
    assert shown[2] == {"size": 3, "hex": "00ff80"}
    assert (shown[3]["size"], len(shown[3]["text"])) == (10_000, 4096)
    assert shown[4] == {"size": 4097, "text": "x" * 4095}
    assert shown[5] == {"size": 5, "hex": "63757420c3"}
    assert queues.llen("q") == 6


def test_at_most_twenty_messages_are_shown(console: Server, queues: Client) -> None:
    queues.rpush("q", *range(100))
    assert [message["text"] for message in _queue(console, "q")["list"]] == [str(n) for n in range(20)]


def test_jobs_are_shown_by_state(console: Server, queues: Client) -> None:
    queues.execute_command("PRESSURE.CREATE", "q", "TYPE", "JOBS")
    queues.rpush("q", "one", "two", "three")
    queues.execute_command("PRESSURE.PUT", "q", "later", "DELAY", "1000")
    queues.execute_command("PRESSURE.RESERVE", "q", "DETACHED", "me")
    reserved = queues.execute_command("PRESSURE.RESERVE", "q", "DETACHED", "me")
    queues.execute_command("PRESSURE.BURY", "q", reserved[1], "TOKEN", "me")
    jobs = _queue(console, "q")["jobs"]
    assert {state: [job["text"] for job in some] for state, some in jobs.items()} == {
        "ready": ["three"], "delayed": ["later"], "reserved": ["one"], "buried": ["two"],
    }  # fmt: skip
    assert jobs["reserved"][0]["reserves"] == 1
    assert jobs["buried"][0]["id"] == reserved[1]


def test_groups_are_shown_with_their_lag(console: Server, queues: Client) -> None:
    queues.execute_command("PRESSURE.CREATE", "log", "TYPE", "LOG")
    queues.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    queues.rpush("log", "a", "b", "c")
    queues.execute_command("PRESSURE.READ", "log", "GROUP", "g", "ann")
    (group,) = _queue(console, "log")["groups"]
    assert (group["name"], group["lag"], group["reserved"]) == ("g", 2, 1)
    assert _queue(console, "log+g")["row"]["type"] == "group"


def test_clients_that_wait_are_shown_with_their_queue(console: Server, queues: Client) -> None:
    queues.execute_command("PRESSURE.CREATE", "empty")
    with console.client(client_name="ann") as other:

        def take() -> None:
            with contextlib.suppress(redis.ConnectionError):
                other.blpop(["empty", "empty2"], 20)

        taking = threading.Thread(target=take)
        taking.start()
        (client,) = wait_for(
            lambda: (
                found
                if (found := _queue(console, "empty")["clients"]) and len(found[0]["queues"]) == 2
                else None
            ),
            "the client to wait on both queues",
        )
        assert (client["name"], client["protocol"], client["command"]) == ("ann", "resp", "blpop")
        assert [queue["name"] for queue in client["queues"]] == ["empty", "empty2"]
        with _events(console, "/api/clients/events?filter=ann") as events:
            (row,) = next(events)["rows"]
        done = _act(console, "disconnect", client=row["id"])
        assert done.json == {"done": True, "text": f"client {row['id']} was disconnected"}
        taking.join()
    assert _act(console, "disconnect", client=row["id"]).json["done"] is False


def test_a_queue_that_is_gone_says_so(console: Server, queues: Client) -> None:
    assert _queue(console, "nothing")["gone"] is True


@pytest.mark.parametrize("name", [b"\xff\x00\x01", b"a/b?c#d", "ümläut".encode(), b"<script>", b"%41", b" "])
def test_queues_of_any_name_can_be_shown_and_changed(console: Server, queues: Client, name: bytes) -> None:
    queues.rpush(name, "x")
    queue_id = quote(name, safe="")
    wait_for(lambda: [row["id"] for row in _overview(console)["rows"]] == [queue_id], "the survey")
    assert _queue(console, name)["row"]["id"] == queue_id
    assert _act(console, "put", name, message="y").json["done"]
    assert queues.lrange(name, 0, -1) == [b"x", b"y"]
    assert _act(console, "delete", name).json["done"]
    assert not queues.exists(name)


def test_each_action_says_what_it_did(console: Server, queues: Client) -> None:
    def said(action: str, queue: str = "q", **arguments: Any) -> str:
        answer = _act(console, action, queue, **arguments).json
        assert answer["done"], answer
        return str(answer["text"])

    assert said("create", type="JOBS", bound="10") == "the queue was created"
    assert said("put", message="hello") == "the message was put"
    assert said("put", hex="00ff") == "the message was put"
    assert said("bury") == "job 1 was buried"
    assert queues.execute_command("PRESSURE.PEEK", "q", "BURIED") == [1, b"hello"]
    assert said("kick", count="5") == "jobs kicked: 1"
    assert said("pause", seconds="100") == "the pause was set"
    assert _act(console, "take", "q").json["done"] is False
    assert said("pause", seconds="0") == "the pause was set"
    altered = {"ack": "NEXT", "ack_ttr": "60", "retry_delay": "5", "in_flight": "9", "rate": "100/1"}
    assert said("alter", bound="7", overflow="ERROR", max_bytes="100", **altered) == "the queue was altered"
    info = _queue(console, "q")["info"]
    assert (info["ack"], info["ack_ttr_ms"], info["retry_delay_ms"]) == ("next", 60_000, 5000)
    assert (info["in_flight"], info["rate"]) == (9, "100/1000")
    assert said("create", "other") == "the queue was created"
    assert said("redrive", to="other", count="1") == "dead letters put back: 1"
    assert said("put", message="hello") == "the message was put"
    # A queue that was looked at in the last half second is not looked at again.
    wait_for(lambda: _queue(console, "q")["row"]["bound"] == 7, "the new bound")
    taken = _act(console, "take", "q")
    assert (taken.headers["content-type"], taken.body) == ("application/octet-stream", b"\x00\xff")
    assert _act(console, "take", "q").body == b"hello"
    assert _act(console, "take", "q").json == {"done": False, "text": "there is no message to take"}
    queues.rpush("q", "a", "b")
    assert said("purge") == "messages deleted: 2"
    assert said("close") == "the queue was closed"
    assert _act(console, "put", "q", message="late").json["text"].startswith("CLOSED")
    assert _act(console, "repair", "q").json == {"done": False, "text": "the queue has no problem"}
    assert said("delete") == "the queue was deleted"
    assert _act(console, "delete", "q").json["text"].startswith("NOQUEUE")


@pytest.mark.parametrize("kind", ["FIFO", "JOBS", "LIFO", "RANDOM"])
def test_a_message_that_was_taken_is_consumed(console: Server, queues: Client, kind: str) -> None:
    queues.execute_command("PRESSURE.CREATE", "q", "TYPE", kind)
    queues.rpush("q", "x")
    assert _act(console, "take", "q").body == b"x"
    wait_for(lambda: queues.llen("q") == 0, "the queue to be empty")
    row = wait_for(
        lambda: found if (found := _queue(console, "q"))["row"]["reserved"] == 0 else None,
        "the reservation to end",
    )
    assert row["info"]["taken"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"action": "drop everything"}, {"action": 1}, {}, {"action": "put"}, {"action": "put", "queue": 5},
        {"action": "put", "queue": "q", "db": 77, "message": "x"},
        {"action": "put", "queue": "q", "message": 5}, {"action": "put", "queue": "q", "message": "\ud800"},
        {"action": "put", "queue": "q", "hex": "zz"}, {"action": "put", "queue": "x:ext:y", "message": "x"},
    ],
)  # fmt: skip
def test_malformed_actions_are_refused(console: Server, queues: Client, body: Any) -> None:
    assert request(console, "/api/actions", method="POST", body=body).status in (400, 404)


def test_words_of_an_action_are_not_more_commands(console: Server, queues: Client) -> None:
    queues.rpush("q", "x")
    _act(console, "kick", "q", count="1\r\nFLUSHALL")
    _act(console, "put", "q", message="x\r\nFLUSHALL\r\n")
    assert queues.exists("q")


def test_what_the_doctor_finds_is_shown_first_and_repaired(
    console: Server, queues: Client, direct: Client
) -> None:
    kill_a_producer(direct)
    queues.rpush("well", "x")
    with _events(console, "/api/overview/events?sort=states&order=down") as events:
        found = next(one for one in events if one["server"]["problems"])
        assert "producer" in next(row for row in found["rows"] if row["name"] == QUEUE)["problems"][0]
        first = next(one for one in events if one["rows"][0]["name"] == QUEUE)
        assert [row["name"] for row in first["rows"]] == [QUEUE, "well"]
        answer = _act(console, "repair", QUEUE).json
        assert answer["done"], answer
        assert "gave the producer role back" in answer["text"]
        assert next(one for one in events if not one["server"]["problems"])
    assert queues.sadd(QUEUE, "a") == 1


@pytest.fixture
def guarded(start_server: StartServer, backend: Valkey, tmp_path: Path) -> Server:
    (tmp_path / "users.toml").write_text(users_toml(_USERS))
    server = start_server(
        *("--backend", backend.url, "--http", "http://127.0.0.1:0", "--users", str(tmp_path / "users.toml"))
    )
    with server.client(username="root", password="secret") as client:
        client.rpush("mine", "x")
        client.rpush("other", "x")
    return server


def _cookie(server: Server, name: str) -> str:
    done = request(server, "/api/login", method="POST", body={"user": name, "password": "secret"})
    assert done.status == 200
    return done.headers["set-cookie"].partition(";")[0]


def test_a_user_sees_and_changes_only_what_its_rights_permit(guarded: Server) -> None:
    def statuses(name: str) -> list[int]:
        login = (name, "secret")
        reply = request(
            guarded, "/api/actions", method="POST", body={"action": "close", "queue": "other"}, login=login
        )
        return [
            reply.status,
            request(guarded, "/api/queue/events?id=other", login=login).status,
            request(guarded, "/api/clients/events", login=login).status,
        ]

    def names(name: str) -> set[str]:
        with _events(guarded, "/api/overview/events", _cookie(guarded, name)) as events:
            return {row["name"] for row in next(events)["rows"]}

    wait_for(lambda: names("root") == {"mine", "other"}, "the survey")
    assert names("reader") == names("worker") == {"mine"}
    assert statuses("reader") == [403, 403, 403]
    assert statuses("writer") == [403, 403, 403]
    reader, worker = ("reader", "secret"), ("worker", "secret")
    assert _act(guarded, "take", "mine", login=reader).json["text"].startswith("NOPERM")
    assert _act(guarded, "delete", "mine", login=worker).json["text"].startswith("NOPERM")
    assert _act(guarded, "repair", "mine", login=worker).json["text"].startswith("NOPERM")
    assert _act(guarded, "disconnect", client=1, login=worker).status == 403
    assert _act(guarded, "take", "mine", login=worker).body == b"x"
    assert _act(guarded, "take", "mine").status == 401


def test_a_stream_ends_when_its_user_loses_its_rights(guarded: Server, tmp_path: Path) -> None:
    with _events(guarded, "/api/overview/events", _cookie(guarded, "reader")) as events:
        next(events)
        (tmp_path / "users.toml").write_text(users_toml({**_USERS, "reader": ("secret", ["mine*"], ["put"])}))
        reload(guarded)
        # Otherwise the next read has a timeout.
        assert len(list(events)) < 5


def test_a_view_ends_when_its_user_may_not_see_it_any_longer(guarded: Server, tmp_path: Path) -> None:
    with _events(guarded, "/api/clients/events", _cookie(guarded, "root")) as events:
        next(events)
        users = {**_USERS, "root": ("secret", ["*"], ["read"])}
        (tmp_path / "users.toml").write_text(users_toml(users))
        reload(guarded)
        # http.client raises IncompleteRead if anything but the end follows.
        assert len(list(events)) < 5
    assert "Traceback" not in guarded.log


def test_a_message_returns_if_the_browser_leaves_before_it_has_come(console: Server, queues: Client) -> None:
    queues.rpush("q", b"x" * (20 << 20), "next")
    body = b'{"action": "take", "queue": "q"}'
    with connect(console) as browser:
        browser.sendall(
            b"POST /api/actions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_for(lambda: queues.execute_command("PRESSURE.INFO", "q")[b"reserved"] == 1, "the reservation")
        # The server could not send everything, as the browser reads nothing.
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: queues.llen("q") == 2, "the message to return")
    assert len(queues.lindex("q", 0)) == 20 << 20


def test_the_server_stops_while_consoles_are_open(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url, "--http", "http://127.0.0.1:0")
    with _events(server, "/api/overview/events") as events:
        next(events)
        assert server.stop() == 0
        assert all(event["not_ready"] for event in events)


def test_more_streams_than_allowed_are_refused(console: Server, queues: Client) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            next(stack.enter_context(_events(console, "/api/clients/events")))
        assert request(console, "/api/clients/events").status == 503
        assert queues.ping()
    wait_for(lambda: _streams_again(console), "a stream to be free")


def _streams_again(server: Server) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port_of("http"), timeout=20)
    try:
        connection.request("GET", "/api/clients/events")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def test_errors_of_the_page_are_logged_once_and_escaped(start_server: StartServer, backend: Valkey) -> None:
    server = start_server("--backend", backend.url, "--http", "http://127.0.0.1:0")
    for _ in range(50):
        request(
            server, "/api/errors", method="POST", body={"text": "x\n2026 INFO forged \x1b[31m" + "a" * 9999}
        )
    assert server.log.count("an error in the console's page") == 1
    assert "\x1b" not in server.log
    assert "\n2026 INFO forged" not in server.log


def test_the_console_acts_on_other_databases(console: Server, queues: Client) -> None:
    with console.client(db=3) as third:
        third.rpush("q", "x")
        wait_for(lambda: any(row["db"] == 3 for row in _overview(console)["rows"]), "the survey")
        assert _queue(console, "q", db=3)["list"] == [{"size": 1, "text": "x"}]
        assert _act(console, "take", "q", db=3).body == b"x"
        third.execute_command("PRESSURE.DELETE", "q")
