"""Brokers for tests that run operations without a server."""

from pressure_server.backend.address import Address
from pressure_server.queues.broker import Broker
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy


def default_broker(url: str, policy: Policy | None = None) -> Broker:
    """Return a broker with default settings, apart from the policy, which has not been started."""
    return Broker(
        Address(url), prefix="__pressure__", peer_detection=PeerDetection(), policy=policy or Policy()
    )
