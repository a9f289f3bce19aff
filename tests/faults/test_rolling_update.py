"""A rolling update: servers of two versions, with different libraries, on one backend at the same time."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.programs import TIMEOUT, Server, StartServer, StartValkey, wait_for
from tests.support.versions import version_with
from tests.support.waiters import AsyncWaiter, Waiter

MESSAGES = 100

pytestmark = pytest.mark.slow


@pytest.fixture
def servers(tmp_path: Path, start_valkey: StartValkey, start_server: StartServer) -> tuple[Server, Server]:
    """A server of another version, and one of this version, each of which has seen the other."""
    backend = start_valkey()
    options = "--backend", backend.url, "--proxy-timeout", "2"
    old, new = start_server(*options, source=version_with("", tmp_path / "other")), start_server(*options)

    def peers_of(server: Server) -> int:
        with server.client() as client:
            return int(client.info("backend")["other_servers"])

    wait_for(lambda: peers_of(old) == peers_of(new) == 1, "each to have seen the other")
    return old, new


@pytest.mark.parametrize("is_new_first", [False, True], ids=["to the new", "to the old"])
def test_messages_pass_between_servers_of_two_versions_in_their_order(
    servers: tuple[Server, Server], is_new_first: bool
) -> None:
    one, another = reversed(servers) if is_new_first else servers
    with one.client() as producer, another.client() as consumer:
        for client in (producer, consumer):
            client.rpush("list", "x")
            assert client.lpop("list") == b"x"
        producer.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
        producer.execute_command("PRESSURE.CREATE", "log", "TYPE", "LOG")
        producer.execute_command("PRESSURE.GROUP", "CREATE", "log", "group")
        for number in range(MESSAGES):
            producer.sadd("set", number)
            producer.rpush("list", number)
            producer.execute_command("PRESSURE.PUT", "jobs", number)
            producer.rpush("log", number)
        expected = [b"%d" % number for number in range(MESSAGES)]
        assert consumer.scard("set") == MESSAGES
        assert consumer.sismember("set", 7)
        assert [consumer.spop("set") for _ in expected] == expected
        assert [consumer.lpop("list") for _ in expected] == expected
        for queue in ("jobs", "log+group"):
            reserved = [consumer.execute_command("PRESSURE.RESERVE", queue) for _ in expected]
            assert [about[2] for about in reserved] == expected
            for about in reserved:
                assert consumer.execute_command("PRESSURE.ACK", queue, about[1]) == 1


async def _take(port: int, wanted: int) -> list[bytes]:
    """Take messages, waiting for each."""
    waiter = await AsyncWaiter.connect(port)
    taken = [(await waiter("BLPOP", "q", 0))[1] for _ in range(wanted)]
    waiter.close()
    return taken


def test_clients_of_both_versions_are_woken_by_puts_at_the_other(servers: tuple[Server, Server]) -> None:
    async def main() -> None:
        for consumer, producer in (servers, servers[::-1]):
            taking = asyncio.create_task(_take(consumer.port, MESSAGES))
            putting = await AsyncWaiter.connect(producer.port)
            for number in range(MESSAGES):
                await putting("RPUSH", "q", number)
            async with asyncio.timeout(TIMEOUT):
                assert await taking == [b"%d" % number for number in range(MESSAGES)]
            putting.close()

    asyncio.run(main())


@pytest.mark.parametrize("killed", [0, 1], ids=["old", "new"])
def test_what_a_killed_server_of_the_other_version_had_goes_back(
    servers: tuple[Server, Server], killed: int
) -> None:
    """Its reserved jobs, and the messages whose replies have not arrived."""
    dead, alive = servers[killed], servers[1 - killed]
    messages = [b"%d" % number for number in range(20)]
    with alive.client() as client, Waiter(dead.port) as holder:
        client.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
        for message in messages:
            client.execute_command("PRESSURE.PUT", "jobs", message)
        client.rpush("list", *messages)
        for _ in range(5):
            holder("PRESSURE.RESERVE", "jobs")
            holder("PRESSURE.RESERVE", "list")
        dead.stop(signal.SIGKILL)
        wait_for(lambda: client.llen("jobs") == client.llen("list") == len(messages), "what it had")
        assert client.lrange("list", 0, -1) == messages
        assert client.lrange("jobs", 0, -1) == messages
