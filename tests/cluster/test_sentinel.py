"""A backend whose master Sentinels name: it is replaced, they are away, they answer what is no longer so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.support.guards import Authority
from tests.support.large import fill
from tests.support.network import Network
from tests.support.nodes import Login, Node, Tls, wait_until
from tests.support.programs import Server, StartServer, refused_start
from tests.support.sentinel import NAME, SentinelSet
from tests.support.traffic import under_traffic
from tests.support.waiters import Waiter

pytestmark = pytest.mark.clients


async def has(node: Node, key: str, length: int) -> bool:
    """Return whether a node has a list of that length."""
    return bool(await node.command("LLEN", key) == length)


async def stop_replication(master: Node) -> None:
    """Let the master's replica get no more changes. Sentinel may still promote it."""
    await master.command("ACL", "SETUSER", "default", "-psync", "-sync")
    await master.command("CLIENT", "KILL", "TYPE", "replica")


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelSet]:
    """A master with a replica, and three Sentinels."""
    made = SentinelSet(tmp_path / "sentinels")
    with made.started():
        yield made


def watched(start_server: StartServer, sentinels: SentinelSet, *options: str) -> Server:
    """Return a server whose backend is the master that Sentinels name."""
    login = sentinels.nodes[0].login
    user = "" if login is None else f"{login.user}:{login.password}@"
    url = f"redis+sentinel://{user}{sentinels.addresses}/{NAME}/0"
    return start_server("--backend", url, "--backend-timeout", "1", *options)


@pytest.mark.parametrize("how", [Node.kill, Node.pause])
async def test_sentinel_replaces_the_master_under_load(
    start_server: StartServer, sentinels: SentinelSet, how: Any
) -> None:
    server = watched(start_server, sentinels, "--durability", "replica:1", "--backend-grace", "110")
    master = await sentinels.master()
    async with under_traffic(server):
        how(master)
        new = await sentinels.wait_for_new_master(master, timeout=100)
        # It comes back as a master, and Sentinel makes it a replica.
        if how is Node.kill:
            await master.start()
        else:
            master.resume()
        await sentinels.wait_until_settled()
        assert await sentinels.master() is new


async def test_the_calls_that_a_new_master_lacks_are_counted(
    start_server: StartServer, sentinels: SentinelSet
) -> None:
    server = watched(start_server, sentinels, "--http", "http://127.0.0.1:0", "--backend-grace", "110")
    master = await sentinels.master()
    client: Any = redis.asyncio.Redis(port=server.port, socket_timeout=None)
    await client.rpush("q", "kept")
    await wait_until(lambda: has(sentinels.nodes[1], "__pressure__:q", 1), "the replica to have the message")
    await stop_replication(master)
    for number in range(7):
        await client.rpush("q", f"lost {number}")
    master.kill()
    await sentinels.wait_for_new_master(master, timeout=100)
    assert await client.lrange("q", 0, -1) == [b"kept"]
    await client.aclose()
    assert "lacks the last 7 calls that it had answered" in server.log


@pytest.mark.slow
async def test_a_master_that_is_cut_off_loses_nothing_acknowledged(
    start_server: StartServer, tmp_path: Path
) -> None:
    """It serves until Sentinel has promoted its replica. Later it is a replica."""
    with Network() as network:
        async with SentinelSet(tmp_path, network=network) as sentinels:
            server = watched(start_server, sentinels, "--durability", "replica:1", "--backend-grace", "110")
            master = await sentinels.master()
            async with under_traffic(server) as traffic:
                # See test_messages_whose_put_back_is_lost_are_back_after_a_failover.
                traffic.takes = False
                await traffic.go_on()
                with sentinels.cut(master, [*sentinels.nodes, *sentinels.sentinels]):
                    new = await sentinels.wait_for_new_master(master, timeout=100)
                    await wait_until(lambda: f":{new.port} now" in server.log, "the server to use it")
                await sentinels.wait_until_settled()
                traffic.takes = True
            assert traffic.ledger.unsure


async def test_a_stale_sentinel_does_not_lead_back(start_server: StartServer, sentinels: SentinelSet) -> None:
    """It was away during a failover, and is the only one that answers: with the old master."""
    server = watched(start_server, sentinels, "--durability", "replica:1")
    stale, *others = sentinels.sentinels
    old = await sentinels.master()
    stale.kill()
    async with under_traffic(server):
        new = await sentinels.fail_over()
        await wait_until(lambda: f":{new.port} now" in server.log, "the server to use the new master")
        await sentinels.wait_until_settled()
        for other in others:
            other.pause()
        await sentinels.start_sentinel(stale)
        assert await sentinels.told_by(stale) is old
        await new.command("CLIENT", "KILL", "TYPE", "normal")
    assert await sentinels.told_by(stale) is old
    for other in others:
        other.resume()
    assert server.log.count(" now, no longer on ") == 1


@pytest.mark.parametrize("login", [Login("secret"), Login("secret", "watcher")])
async def test_sentinels_with_a_password(start_server: StartServer, tmp_path: Path, login: Login) -> None:
    """A wrong one, or a wrong name of the master, ends the start."""
    redis_login = Login("other", "ada")
    async with SentinelSet(tmp_path, login=redis_login, sentinel_login=login) as sentinels:
        base = f"redis+sentinel://ada:other@{sentinels.addresses}"
        user = f"sentinel_username={login.user}"
        for wrong, reason in (
            (f"{NAME}/0", "already authenticated"),
            (f"{NAME}/0?{user}&sentinel_password=wrong", "invalid username-password pair"),
            (f"name/0?{user}&sentinel_password={login.password}", "No such master with that name"),
        ):
            refusal = refused_start("--backend", f"{base}/{wrong}")
            assert "names the master" in refusal
            assert reason in refusal
            assert "check the master's name, sentinel_username and sentinel_password" in refusal
        url = f"{base}/{NAME}/0?{user}&sentinel_password={login.password}"
        server = start_server("--backend", url, "--durability", "replica:1")
        async with under_traffic(server):
            await sentinels.fail_over()


async def test_a_sentinel_and_a_redis_in_place_of_each_other_are_refused_with_the_mend(
    tmp_path: Path,
) -> None:
    async with SentinelSet(tmp_path) as sentinels:
        sentinel = sentinels.addresses.partition(",")[0]
        refusal = refused_start("--backend", f"redis://{sentinel}")
        assert f"redis://{sentinel} is a Sentinel" in refusal
        assert "give it as redis+sentinel://HOST:PORT/NAME" in refusal
        node = f"redis+sentinel://{sentinels.nodes[0].host}:{sentinels.nodes[0].port}/{NAME}"
        assert "it is no Sentinel; give a Redis as redis://HOST:PORT" in refused_start("--backend", node)


async def test_sentinels_with_tls(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    tls = Tls(*authority.issue("node"), authority.certificate)
    async with SentinelSet(tmp_path / "nodes", login=Login("secret"), tls=tls) as sentinels:
        url = f"rediss+sentinel://:secret@{sentinels.addresses}/{NAME}/0?ssl_ca_certs={tls.authority}"
        url += f"&sentinel_tls=yes&sentinel_ssl_ca_certs={tls.authority}"
        server = start_server("--backend", url, "--durability", "replica:1")
        async with under_traffic(server):
            await sentinels.fail_over()


async def test_a_server_starts_before_its_sentinels_and_serves_while_they_are_away(
    start_server: StartServer, sentinels: SentinelSet
) -> None:
    """Meanwhile the last known master serves."""

    def kill_all() -> None:
        for sentinel in sentinels.sentinels:
            sentinel.kill()

    kill_all()
    server = watched(start_server, sentinels)
    await wait_until(lambda: "names the master: " in server.log, "the server to ask the Sentinels")
    assert "Connection refused" in server.log
    assert "waiting for the backend: commands wait up to 20 seconds for it, then fail" in server.log
    with Waiter(server.port) as waiter:
        waiter.send("RPUSH", "q", "a")
        for sentinel in sentinels.sentinels:
            await sentinels.start_sentinel(sentinel)
        assert waiter.reply() == 1
    assert server.log.count("names the master") == 1
    assert server.log.count(" ready: ") == 1
    silences, returns = (server.log.count(text) for text in ("no Sentinel of", "name the master again"))
    kill_all()
    await wait_until(lambda: server.log.count("no Sentinel of") > silences, "the log to say so")
    async with under_traffic(server):
        await sentinels.nodes[0].command("CLIENT", "KILL", "TYPE", "normal")
    await sentinels.start_sentinel(sentinels.sentinels[0])
    await wait_until(lambda: server.log.count("name the master again") > returns, "the log to say so")
    assert server.log.count("no Sentinel of") == silences + 1


@pytest.mark.slow
async def test_messages_whose_put_back_is_lost_are_back_after_a_failover(
    start_server: StartServer, sentinels: SentinelSet
) -> None:
    server = watched(start_server, sentinels)
    master, replica = sentinels.nodes
    with server.client() as client, Waiter(server.port) as taking:
        fill(client, 50)
        await wait_until(lambda: has(replica, "__pressure__:q", 50), "the replica to have the messages")
        taking.send("LPOP", "q", 50)
        await wait_until(lambda: has(replica, "__pressure__:q", 0), "the replica to have the take")
        await stop_replication(master)
        taking.close()
        await wait_until(lambda: has(master, "__pressure__:q", 50), "the messages to be back")
        master.kill()
        await sentinels.wait_for_new_master(master, timeout=100)
        await wait_until(lambda: has(replica, "__pressure__:q", 50), "the messages to be back", timeout=5)
