"""Large messages, each of which is known by its number."""

from tests.support.programs import Client

SIZE = 100_000


def large(number: int) -> bytes:
    """Return the message of that number."""
    return b"%06d" % number + bytes(SIZE - 6)


def number_of(message: bytes) -> int:
    """Return the number of a message."""
    return int(message[:6])


def fill(client: Client, count: int, *queues: str) -> None:
    """Put the messages of numbers below `count` into each queue."""
    for queue in queues or ("q",):
        for first in range(0, count, 20):
            client.rpush(queue, *map(large, range(first, min(first + 20, count))))


def queued(direct: Client, queue: str = "q") -> list[int]:
    """Return the numbers of the messages in a queue, oldest first."""
    return [number_of(found) for found in reversed(direct.lrange(f"__pressure__:{queue}", 0, -1))]
