"""Queues of the types lifo and random with more messages than one call makes jobs of (distinct.lua).

What makes jobs of the messages waits until all are: the newest one is known only then.
"""

from __future__ import annotations

import pytest

from tests.support.programs import Client
from tests.support.waiters import create

MANY = [b"%05d" % number for number in range(3200)]
UNADOPTED = "__pressure__:q:ext:unadopted"


@pytest.fixture
def lifo(client: Client) -> Client:
    create(client, "q", "TYPE", "LIFO")
    client.sadd("q", *MANY)
    return client
