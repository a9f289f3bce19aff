"""Clients whose machine vanishes: no FIN and no RST comes, and they answer nothing any longer."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.support.guards import Authority
from tests.support.network import Machine, Network
from tests.support.programs import TIMEOUT, Client, Server, Valkey, wait_for, wait_until_settled
from tests.support.waiters import packed

# Ports of the server's machine, which has no others.
PORTS = {"resp": 4000, "memcached": 4001, "beanstalk": 4002, "resps": 4003, "memcacheds": 4004}
# Seconds of --tcp-keepalive. The kernel sees a gone client after a second and three probes, or after four
# seconds without an acknowledgement, and then tries once more.
KEEPALIVE = 1
GONE_AFTER = 4.0


class Ghost(NamedTuple):
    """A client that will vanish: its listener, its request, and how the reply begins if it waits for none."""

    listener: str
    request: bytes
    reply: bytes

    @property
    def waits(self) -> bool:
        """Whether the request finds no message."""
        return not self.reply


# By the name of their queue. Those that wait get a message when they have vanished.
GHOSTS = {
    "reserved": Ghost("resp", packed("PRESSURE.RESERVE", "reserved", "TTR", 600), b"*"),
    "reserved-over-tls": Ghost("resps", packed("PRESSURE.RESERVE", "reserved-over-tls"), b"*"),
    "beanstalk": Ghost("beanstalk", b"watch beanstalk\r\nreserve\r\n", b"WATCHING 2\r\nRESERVED"),
    "open": Ghost("memcached", b"get open/open\r\n", b"VALUE"),
    "open-over-tls": Ghost("memcacheds", b"get open-over-tls/open\r\n", b"VALUE"),
    "blpop": Ghost("resp", packed("BLPOP", "blpop", 0), b""),
    "blpop-over-tls": Ghost("resps", packed("BLPOP", "blpop-over-tls", 0), b""),
    "waiting-open": Ghost("memcached", b"get waiting-open/open/t=600000\r\n", b""),
    "waiting-get": Ghost("memcached", b"get waiting-get/t=600000\r\n", b""),
    "waiting-reserve": Ghost("beanstalk", b"watch waiting-reserve\r\nignore default\r\nreserve\r\n", b""),
}


class Machines(NamedTuple):
    """The server's machine, and the clients', which will vanish."""

    network: Network
    server: Machine
    clients: Machine


@pytest.fixture
def machines() -> Iterator[Machines]:
    with Network() as network:
        yield Machines(network, network.add_machine(), network.add_machine())


@pytest.fixture
def connect(machines: Machines) -> Iterator[Callable[[str], socket.socket]]:
    """Connect from the clients' machine to a listener of the server."""
    with ExitStack() as stack:

        def connected(listener: str) -> socket.socket:
            address = machines.server.host, PORTS[listener]
            plain = machines.clients.do(lambda: socket.create_connection(address, TIMEOUT))
            if not listener.endswith("s"):
                return stack.enter_context(plain)
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return stack.enter_context(context.wrap_socket(plain))

        yield connected


def start_there(machine: Machine, folder: Path, *options: str) -> Server:
    """Start a server on its machine. The test reaches it by a unix socket: see `observer`."""
    certificate, key = Authority(folder / "authority").issue("server")
    listen = [f"--listen={name}://{machine.host}:{port}" for name, port in PORTS.items()]
    options = (
        *listen, f"--listen=resp+unix://{folder / 'observer'}", "--no-protected-mode",
        "--tls-certificate", str(certificate), "--tls-key", str(key), *options,
    )  # fmt: skip
    return machine.do(lambda: Server(folder / "log", *options, new_process=True))


def observer(folder: Path) -> Client:
    return redis.Redis(unix_socket_path=str(folder / "observer"), socket_timeout=TIMEOUT)


def clients_of(client: Client) -> int:
    return int(client.info("clients")["connected_clients"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_vanished_client_gives_its_message_back_and_is_no_client_any_longer(
    backend: Valkey, machines: Machines, connect: Callable[[str], socket.socket], tmp_path: Path, workers: int
) -> None:
    options = ("--workers", str(workers), "--tcp-keepalive", str(KEEPALIVE))
    server = start_there(machines.server, tmp_path, "--backend", backend.url, *options)
    try:
        with observer(tmp_path) as client:
            ghosts = {}
            for queue, (listener, request, reply) in GHOSTS.items():
                if reply:
                    client.rpush(queue, "m")
                ghosts[queue] = connect(listener)
                ghosts[queue].sendall(request)
                if reply:
                    found = b""
                    while not found.startswith(reply):
                        found += ghosts[queue].recv(4096)
            waiting = [queue for queue, ghost in GHOSTS.items() if ghost.waits]
            wait_for(lambda: client.info("clients")["blocked_clients"] == len(waiting), "the ghosts to wait")
            assert [client.llen(queue) for queue in GHOSTS] == [0] * len(GHOSTS)
            # A client that has just sent something is trusted to be there.
            wait_for(
                lambda: all(int(one["idle"]) >= 3 for one in client.client_list() if one["addr"][0] != "/"),
                "the ghosts to be silent",
            )
            machines.network.cut_off(machines.clients)
            for queue in waiting:
                client.rpush(queue, "m")
            assert clients_of(client) == len(GHOSTS) + 1
            wait_for(lambda: clients_of(client) == 1, "the ghosts to be no clients", 3 * GONE_AFTER)
            wait_for(lambda: [client.llen(queue) for queue in GHOSTS] == [1] * len(GHOSTS), "their messages")
        with backend.client() as direct:
            wait_until_settled(direct)
    finally:
        server.end_well()
