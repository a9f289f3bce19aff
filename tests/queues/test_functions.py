"""The library of functions on the backend: it is loaded when it is missing, and deleted when unused."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from pressure_server.backend.address import Address
from pressure_server.lua.scripts import library
from pressure_server.queues.broker import Broker
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy
from pressure_server.queues.upkeep import Libraries
from tests.support.faults import OUT_OF_MEMORY
from tests.support.programs import TIMEOUT, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.versions import version_with
from tests.support.waiters import Waiter, is_refused


def names(valkey: Valkey) -> set[bytes]:
    """Return the names of the libraries that the backend has."""
    with valkey.client() as direct:
        return {about[about.index(b"library_name") + 1] for about in direct.function_list()}


def test_servers_of_one_version_share_a_library(start_valkey: StartValkey, start_server: StartServer) -> None:
    valkey = start_valkey()
    for _ in range(2):
        start_server("--backend", valkey.url)
    assert names(valkey) == {library().name}


def test_a_library_that_no_server_uses_is_deleted(start_valkey: StartValkey) -> None:
    valkey = start_valkey()
    others = {b"pressure_of_a_peer", b"pressure_unused", b"foreign"}
    with valkey.client() as direct:
        for name in others:
            text = f"#!lua name={name.decode()}\nredis.register_function('{name.decode()}', function() end)"
            direct.function_load(text)

        async def look() -> None:
            broker = Broker(
                Address(valkey.url),
                prefix="__pressure__",
                peer_detection=PeerDetection(timeout=0.2),
                policy=Policy(0),
            )
            libraries = Libraries(broker, unused_for=0.0)
            try:
                direct.hset("__pressure__!peers", "peer", "1 15 pressure_of_a_peer")
                await broker.start()
                async with asyncio.timeout(TIMEOUT):
                    while not broker.libraries_of_peers:  # noqa: ASYNC110 # the search for peers tells nobody
                        await asyncio.sleep(0.01)  # between two looks at the condition
                await libraries.look()
            finally:
                await broker.close()

        asyncio.run(look())
    assert names(valkey) == others - {b"pressure_unused"} | {library().name}


def test_the_lack_of_the_right_to_load_the_library_is_named(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    valkey = start_valkey()
    with valkey.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-function")
        server = start_server("--backend", valkey.url)
        wait_for(lambda: "NOPERM" in server.log, "the reason")
        assert "'function|load'" in server.log
        direct.execute_command("ACL", "SETUSER", "default", "+function")
        with server.client() as client:
            wait_for(lambda: "is back" in server.log, "the backend")
            assert client.rpush("q", "m") == 1


def test_a_library_that_is_missing_on_a_full_backend_is_loaded_when_there_is_room(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with server.client() as client, valkey.client() as direct:
        client.rpush("q", "m")
        with OUT_OF_MEMORY(valkey):
            assert client.llen("q") == 1
            with pytest.raises(redis.ResponseError, match="OOM"):
                client.rpush("q", "n")
            direct.function_flush()
            with pytest.raises(redis.ResponseError, match="OOM"):
                client.llen("q")
        assert client.lpop("q") == b"m"


def test_a_killed_function_is_an_error_and_has_done_nothing(
    tmp_path: Path, start_valkey: StartValkey, start_server: StartServer
) -> None:
    valkey = start_valkey("--busy-reply-threshold", "10")
    source = version_with(
        "if redis.call('EXISTS', 'stalls') == 1 then while true do end end", tmp_path / "version"
    )
    server = start_server("--backend", valkey.url, source=source)
    with valkey.client() as direct, Waiter(server.port) as waiter:
        assert waiter("RPUSH", "q", "a") == 1
        direct.set("stalls", 1)
        waiter.send("RPUSH", "q", "b")

        def is_accepted(command: Callable[[], object]) -> bool:
            try:
                command()
            except redis.ResponseError:  # no function runs, or one does
                return False
            return True

        wait_for(lambda: is_accepted(direct.function_kill), "the function to run")
        assert is_refused(waiter.reply(), "BACKEND")

        def is_over() -> bool:
            is_accepted(direct.function_kill)  # the server may have called it again, to see whether it ends
            return is_accepted(lambda: direct.delete("stalls"))

        wait_for(is_over, "the backend")
        # The server connects again by itself: until then it refuses commands.
        wait_for(lambda: not is_refused(waiter("LLEN", "q"), "BACKEND"), "the server to be back")
        assert waiter("LRANGE", "q", 0, -1) == [b"a"]
        assert waiter("RPUSH", "q", "b") == 2


def test_data_of_another_version_with_its_library_are_used(tmp_path: Path, start_server: StartServer) -> None:
    data = tmp_path / "data"

    def used(server: Server) -> list[bytes]:
        with server.client() as client:
            client.rpush("q", "x")
            messages: list[bytes] = client.lrange("q", 0, -1)
            return messages

    other = start_server("--data-dir", str(data), source=version_with("", tmp_path / "version"))
    assert used(other) == [b"x"]
    assert other.stop() == 0
    assert used(start_server("--data-dir", str(data))) == [b"x", b"x"]
