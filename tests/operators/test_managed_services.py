"""Backends with the restrictions of managed services: what their documentation says they refuse."""

import re

import pytest

from tests.support.programs import Client, StartServer, StartValkey, wait_for
from tests.support.waiters import Waiter, wait_for_blocked

# What each service refuses, as its documentation said in November 2026.
REFUSED = {
    "Amazon ElastiCache": "bgrewriteaof bgsave config debug migrate replicaof save slaveof shutdown sync",
    "Aiven for Valkey": "bgrewriteaof cluster command debug failover migrate slaveof acl bgsave config "
    "lastsave monitor replicaof save shutdown",
    "OCI Cache": "acl bgrewriteaof bgsave cluster config|set debug migrate module psync replicaof save "
    "shutdown sync",
}


def restrict(direct: Client, refused: str) -> None:
    direct.execute_command("ACL", "SETUSER", "default", *(f"-{command}" for command in refused.split()))


@pytest.mark.parametrize("service", REFUSED)
def test_a_server_works_on_a_service(
    service: str, start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    with backend.client() as direct:
        restrict(direct, REFUSED[service])
    server = start_server("--backend", backend.url)
    with server.client() as client, Waiter(server.port) as waiter:
        waiter.send("BLPOP", "q", "0")
        wait_for_blocked(client, 1)
        assert client.rpush("q", "first") == 1
        assert waiter.reply() == [b"q", b"first"]
        client.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "jobs", "ACK", "NEXT")
        client.sadd("jobs", "a", "b")
        assert client.spop("jobs") == b"a"
        waiter.send("SPOP", "jobs")
        assert waiter.reply() == b"b"
        waiter.close()
        wait_for(lambda: client.scard("jobs") == 1, "the message of the client that has gone")
        assert client.execute_command("PRESSURE.READY") == b"OK"
        assert client.info()["redis_version"]
        assert client.delete("q", "jobs") == 2
    complaints = re.findall("^.* (?:WARNING|ERROR) .*$", server.log, re.MULTILINE)
    assert len(complaints) == 1
    assert "ended with an unacknowledged message" in complaints[0]
    server.end_well()
