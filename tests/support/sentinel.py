"""A master with a replica and Sentinels, which fail when a test says so."""

import secrets
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.network import Network
from tests.support.nodes import LOCAL, Engine, Login, Node, NodeSet, Tls, addresses_of, start_all, wait_until
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT

NAME = "mymaster"
# The times of Sentinel that decide how soon it acts, in milliseconds (defaults: ten to twenty times).
_DOWN_AFTER, _FAILOVER_TIMEOUT = 500, 2000
# A Sentinel that was not scheduled for two seconds does nothing for the tilt period: usually half a minute.
_QUICK = (
    "INFO-PERIOD", 500, "PUBLISH-PERIOD", 200, "ASK-PERIOD", 200, "PING-PERIOD", 100, "TILT-PERIOD", 1000,
)  # fmt: skip


class SentinelSet(NodeSet[Node]):
    """A master, its replica and three Sentinels.

    `nodes[0]` begins as the master. A node that is started again has the role that Sentinel gave it last.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        engine: Engine = Engine.REDIS,
        login: Login | None = None,
        sentinel_login: Login | None = None,
        tls: Tls | None = None,
        network: Network | None = None,
        loses_power: bool = False,
    ) -> None:
        """Prepare, but start nothing. `options` are for the master and the replica.

        With a network, nodes and Sentinels can be cut off; with `loses_power`, the power of nodes can be cut.
        """
        super().__init__(network)
        ports = free_ports(5)
        node_ports, sentinel_ports = ports[:2], ports[2:]
        machines = [self._machine() for _ in ports]
        hosts = [machine.host if machine else LOCAL for machine in machines]
        for number, port in enumerate(node_ports):
            lines = [*_login_lines(login)]
            if login is not None:
                lines += [f"masteruser {login.user}", f"masterauth {login.password}"]
            if number > 0:
                lines.append(f"replicaof {hosts[0]} {node_ports[0]}")
            home = folder / f"node-{number}"
            # Sentinel has a node rewrite this file, and options that are not in it would win over it.
            command = [
                _written(home / "redis.conf", lines),
                "--repl-diskless-sync-delay", "0", "--save", "", *options,
            ]  # fmt: skip
            node = Node(
                home,
                port,
                command,
                engine=engine,
                login=login,
                tls=tls,
                machine=machines[number],
                loses_power=loses_power,
            )
            self.nodes.append(node)
        identities = [secrets.token_hex(20) for _ in sentinel_ports]
        self.sentinels: list[Node] = []
        for number, port in enumerate(sentinel_ports):
            lines = [
                *_login_lines(sentinel_login),
                f"sentinel myid {identities[number]}",
                f"sentinel monitor {NAME} {hosts[0]} {node_ports[0]} 2",
                f"sentinel down-after-milliseconds {NAME} {_DOWN_AFTER}",
                f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT}",
                *(_sentinel_lines(login, sentinel_login)),
                # What Sentinel would find out in some seconds.
                f"sentinel known-replica {NAME} {hosts[1]} {node_ports[1]}",
                *[
                    f"sentinel known-sentinel {NAME} {host} {other} {identity}"
                    for host, other, identity in zip(hosts[2:], sentinel_ports, identities, strict=True)
                    if other != port
                ],
            ]
            home = folder / f"sentinel-{number}"
            command = [_written(home / "sentinel.conf", lines), "--sentinel"]
            machine = machines[2 + number]
            sentinel = Node(
                home, port, command, engine=engine, login=sentinel_login, tls=tls, machine=machine
            )
            self.sentinels.append(sentinel)

    @property
    def addresses(self) -> str:
        """The addresses of all Sentinels, separated by commas, for an URL."""
        return addresses_of(self.sentinels)

    async def _start(self, stack: ExitStack) -> None:
        """Start everything. Return when the replica is connected, and the Sentinels can fail over."""
        await start_all(self.nodes, stack)
        await start_all(self.sentinels, stack)
        for sentinel in self.sentinels:
            await _hasten(sentinel)
        await self.wait_until_settled()

    async def start_sentinel(self, sentinel: Node) -> None:
        """Start a Sentinel again."""
        await sentinel.start()
        await _hasten(sentinel)

    async def told_by(self, sentinel: Node) -> Node:
        """Return the master of which a Sentinel tells clients."""
        port = int((await sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME))[1])
        return next(node for node in self.nodes if node.port == port)

    async def master(self) -> Node:
        """Return the master. All running Sentinels must agree on it."""

        async def agreed() -> Node | None:
            told = {await self.told_by(sentinel) for sentinel in self.sentinels if sentinel.is_running}
            return told.pop() if len(told) == 1 else None

        found: Node = await wait_until(agreed, "the Sentinels to agree")
        return found

    async def fail_over(self) -> Node:
        """Have the replica promoted by SENTINEL FAILOVER, and return it when all Sentinels tell of it.

        The master accepts writes until it is demoted.
        """
        old = await self.master()
        asked = next(sentinel for sentinel in self.sentinels if sentinel.is_running)
        await asked.command("SENTINEL", "FAILOVER", NAME)
        return await self.wait_for_new_master(old)

    async def wait_for_new_master(self, old: Node, timeout: float = 3 * TIMEOUT) -> Node:
        """Return the master instead of `old`, when all running Sentinels tell of it and it accepts writes.

        After a vote without a majority, Sentinels wait for twice their failover timeout.
        """

        async def has_taken_over() -> Node | None:
            master = await self.master()
            if master is old or (await master.command("ROLE"))[0] != b"master":
                return None
            return master

        found: Node = await wait_until(has_taken_over, f"a new master instead of {old}", timeout)
        return found

    async def wait_until_settled(self) -> None:
        """Return when all running nodes follow the master, and all running Sentinels could fail over."""

        async def is_settled() -> bool:
            master = await self.master()
            nodes = [node for node in self.nodes if node.is_running]
            for node in nodes:
                about = await node.info("replication")
                if node is master:
                    is_ready = about["role"] == "master"
                else:
                    is_ready = about.get("master_port") == str(master.port)
                    is_ready = is_ready and about["master_link_status"] == "up"
                if not is_ready:
                    return False
            for sentinel in self.sentinels:
                if sentinel.is_running:
                    await sentinel.command("SENTINEL", "CKQUORUM", NAME)
                    known = await sentinel.command("SENTINEL", "REPLICAS", NAME)
                    ready = [_fields(replica) for replica in known]
                    ready = [one for one in ready if one["flags"] == "slave" and one["slave-priority"] != "0"]
                    if len([one for one in ready if one["master-link-status"] == "ok"]) < len(nodes) - 1:
                        return False
            return True

        await wait_until(is_settled, "the Sentinels to be ready")


async def _hasten(sentinel: Node) -> None:
    await sentinel.command("SENTINEL", "DEBUG", *_QUICK)


def _written(file: Path, lines: Iterable[str]) -> str:
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def _login_lines(login: Login | None) -> Sequence[str]:
    return [" ".join(setting) for setting in login.settings] if login else ()


def _sentinel_lines(login: Login | None, sentinel_login: Login | None) -> Sequence[str]:
    lines = []
    if login is not None:
        lines += [f"sentinel auth-user {NAME} {login.user}", f"sentinel auth-pass {NAME} {login.password}"]
    if sentinel_login is not None:
        lines += [
            f"sentinel sentinel-user {sentinel_login.user}",
            f"sentinel sentinel-pass {sentinel_login.password}",
        ]
    return lines


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
