"""Waiting on a backend that does not tell of changes, whose connections break, or that is flushed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native import NativeClient
from tests.programs import Client, Server, Valkey, wait_for
from tests.waiters import Waiter, create, is_refused, wait_for_blocked, wait_for_waiting, waiters

StartServer = Callable[..., Server]
StartValkey = Callable[..., Valkey]


def test_where_the_backend_does_not_tell_of_changes_waiting_still_works(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-client|tracking")
        server = start_server("--backend", backend.url)
        wait_for(lambda: "WARNING" in server.log, "a warning")
        assert "refuses" in server.log
        with server.client() as client, waiters(server, 4) as waiting:
            create(client, "q")
            create(client, "full", "BOUND", 1)
            client.sadd("full", "a")
            waiting[0].send("BLPOP", "q", 0)
            waiting[1].send("BLPOP", "missing", "q", 0)
            waiting[2].send("SADD", "full", "b")
            waiting[3].send("BLPOP", "later", 0)
            wait_for_blocked(client, 4)
            NativeClient(direct, "q").put(b"1")
            NativeClient(direct, "q").put(b"2")
            assert {waiting[0].reply()[1], waiting[1].reply()[1]} == {b"1", b"2"}
            assert NativeClient(direct, "full").get() == b"a"
            assert waiting[2].reply() == 1
            NativeClient(direct, "later").create()
            NativeClient(direct, "later").put(b"3")
            assert waiting[3].reply() == [b"later", b"3"]


def connections(direct: Client, *, tracking: bool) -> list[dict[str, str]]:
    return [c for c in direct.client_list() if ("t" in c["flags"]) is tracking and "pressure" in c["name"]]


@pytest.mark.parametrize("what", ["tracking", "all"])
def test_when_the_connection_that_tells_of_changes_breaks_who_waits_is_still_served(
    start_valkey: StartValkey, start_server: StartServer, what: str
) -> None:
    backend = start_valkey()
    server = start_server("--backend", backend.url)
    with backend.client() as direct, server.client() as client, waiters(server, 3) as waiting:
        create(client, "q")
        create(client, "full", "BOUND", 1)
        client.sadd("full", "a")
        waiting[0].send("BLPOP", "q", 0)
        waiting[1].send("SADD", "full", "b")
        waiting[2].send("BLPOP", "missing", "later", 0)
        wait_for_blocked(client, 3)
        (watch,) = wait_for(lambda: connections(direct, tracking=True), "the connection")
        doomed = [watch, *(connections(direct, tracking=False) if what == "all" else [])]
        for connection in doomed:
            direct.execute_command("CLIENT", "KILL", "ID", connection["id"])
        NativeClient(direct, "q").put(b"m")
        assert NativeClient(direct, "full").get() == b"a"
        NativeClient(direct, "later").create()
        NativeClient(direct, "later").put(b"l")
        assert waiting[0].reply() == [b"q", b"m"]
        assert waiting[1].reply() == 1
        assert waiting[2].reply() == [b"later", b"l"]


def test_who_waits_when_the_backend_is_flushed_is_told(
    backend: Valkey, client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q")
    waiter.send("BLPOP", "q", 0)
    wait_for_waiting(client, "q", consumers=1)
    direct.flushall()
    assert is_refused(waiter.reply(), "NOQUEUE")
    del backend
