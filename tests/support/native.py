"""A native client of pressure 0.15: the specification's pseudo-code, one Redis command after the other.

`NativeSteps` has its operations as generators that stop between any two commands, so that a test can do
something else there; `NativeClient` does them in one go, and really blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeVar

import redis

from tests.support.programs import TIMEOUT

Result = TypeVar("Result")
# What is yielded between two commands: None, or the key without which the operation cannot go on.
Steps = Generator[str | None, None, Result]


class NativeError(Exception):
    """The errors of the specification, by its names."""


class QueueDoesNotExistError(NativeError):
    pass


class QueueAlreadyExistsError(NativeError):
    pass


class QueueClosedError(NativeError):
    pass


class QueueInUseError(NativeError):
    pass


class QueueFullError(NativeError):
    pass


class NativeSteps:
    """The operations of one client on one queue, command by command.

    Where the pseudo-code drops `stats:` from a key, or raises and keeps the role, the prose is followed.
    """

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        identity: str,
        prefix: str = "__pressure__",
        blocks: bool = False,
        patience: float = math.inf,
    ) -> None:
        # redis-py says nothing of its type.
        self._execute: Any = client.execute_command
        self._base = f"{prefix}:{queue}"
        self._identity = identity
        self._blocks = blocks
        # Seconds after which it is an error that nothing comes.
        self._patience = patience

    def create(self, bound: int = 0) -> Steps[None]:
        made = self._do("SETNX", ":bound", bound)
        if not made:
            raise QueueAlreadyExistsError
        yield None
        self._do("LPUSH", ":producer_free", 1)
        yield None
        self._do("LPUSH", ":consumer_free", 1)
        yield None
        self._do("LPUSH", ":not_full", 1)

    def put(self, message: bytes) -> Steps[None]:
        yield from self._must_exist()
        yield from self._pop(":producer_free")
        yield None
        yield from self._put_as_producer(message, waits=True)

    def put_non_blocking(self, message: bytes) -> Steps[None]:
        yield from self._must_exist()
        if self._do("RPOP", ":producer_free") is None:
            raise QueueInUseError
        yield None
        yield from self._put_as_producer(message, waits=False)

    def _put_as_producer(self, message: bytes, waits: bool) -> Steps[None]:
        if (yield from self._sign("producer")):
            self._refuse("producer")
        if waits:
            yield from self._pop(":not_full")
        elif self._do("RPOP", ":not_full") is None:
            yield None
            self._do("LPUSH", ":producer_free", 0)
            raise QueueFullError
        yield None
        length = self._do("LPUSH", "", message)
        yield None
        bound = int(self._do("GET", ":bound") or 0)
        yield None
        if bound == 0 or length < bound:
            self._do("LPUSH", ":not_full", 0)
            yield None
            self._do("LTRIM", ":not_full", 0, 0)
            yield None
        self._do("INCR", ":stats:produced_messages")
        yield None
        self._do("INCRBY", ":stats:produced_bytes", len(message))
        yield None
        self._do("LPUSH", ":producer_free", 0)

    def get(self) -> Steps[bytes]:
        yield from self._must_exist()
        yield from self._pop(":consumer_free")
        yield None
        if (yield from self._sign_as_consumer()):
            _, message = yield from self._pop("")
        else:
            key, message = yield from self._pop("", ":closed")
            if key == ":closed":
                yield None
                self._refuse("consumer")
        yield None
        yield from self._got(message)
        return message

    def get_non_blocking(self) -> Steps[bytes | None]:
        yield from self._must_exist()
        if self._do("RPOP", ":consumer_free") is None:
            raise QueueInUseError
        yield None
        yield from self._sign_as_consumer()
        message: bytes | None = self._do("RPOP", "")
        yield None
        yield from self._got(message)
        return message

    def _got(self, message: bytes | None) -> Steps[None]:
        # The pseudo-code does this for an empty queue too, and without a look at the bound.
        self._do("LPUSH", ":not_full", 0)
        yield None
        self._do("LTRIM", ":not_full", 0, 0)
        yield None
        if message is not None:
            self._do("INCR", ":stats:consumed_messages")
            yield None
            self._do("INCRBY", ":stats:consumed_bytes", len(message))
            yield None
        self._do("LPUSH", ":consumer_free", 0)

    def close(self) -> Steps[None]:
        yield from self._must_exist()
        yield from self._pop(":producer_free")
        yield None
        if (yield from self._sign("producer")):
            self._refuse("producer")
        self._do("LPUSH", ":closed", 0, 0)
        yield None
        self._do("LPUSH", ":producer_free", 0)

    def delete(self) -> Steps[None]:
        yield from self._must_exist()
        self._do("DEL", ":bound")
        yield None
        self._do("LPUSH", ":not_full", 0)
        yield None
        self._do("LPUSH", ":closed", 0, 0)
        yield None
        for role in (":producer", ":consumer"):
            yield from self._pop(f"{role}_free")
            yield None
            self._do("DEL", role)
            yield None
            self._do("DEL", f"{role}_free")
            yield None
        for key in (":not_full", ":closed"):
            self._do("DEL", key)
            yield None
        for verb in ("produced", "consumed"):
            for unit in ("messages", "bytes"):
                self._do("DEL", f":stats:{verb}_{unit}")
                yield None
        self._do("DEL", "")

    def _must_exist(self) -> Steps[None]:
        if not self._do("EXISTS", ":bound"):
            raise QueueDoesNotExistError
        yield None

    def _sign(self, role: str) -> Steps[bool]:
        """Write down who has the role; whether the queue is closed."""
        self._do("SET", f":{role}", self._identity)
        yield None
        closed = self._do("EXISTS", ":closed")
        yield None
        return bool(closed)

    def _sign_as_consumer(self) -> Steps[bool]:
        """The same. Raises QueueClosedError where the queue is closed and nothing is left in it."""
        closed = yield from self._sign("consumer")
        if closed:
            length = self._do("LLEN", "")
            yield None
            if length == 0:
                self._refuse("consumer")
        return closed

    def _refuse(self, role: str) -> NoReturn:
        """Give the role back, since the queue is closed."""
        self._do("LPUSH", f":{role}_free", 0)
        raise QueueClosedError

    def _pop(self, *suffixes: str) -> Steps[tuple[str, bytes]]:
        """BRPOP; or polls in its place, which a test with one thread can go on from."""
        if self._blocks:
            keys = [self._base + suffix for suffix in suffixes]
            end = time.monotonic() + self._patience
            popped = None
            while popped is None:
                assert time.monotonic() < end, f"nothing comes at {keys}"
                # Not for ever at once: redis-py itself gives a reply up after five seconds.
                popped = self._execute("BRPOP", *keys, 2)
            return popped[0].decode().removeprefix(self._base), popped[1]
        while True:
            for suffix in suffixes:
                value = self._do("RPOP", suffix)
                if value is not None:
                    return suffix, value
            yield self._base + suffixes[0]

    def _do(self, command: str, suffix: str, *arguments: bytes | str | int) -> Any:
        return self._execute(command, self._base + suffix, *arguments)


def run(steps: Steps[Result]) -> Result:
    """All steps of an operation. Raises AssertionError where it would have to wait."""
    while True:
        try:
            waits_for = next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        assert waits_for is None, f"nothing comes at {waits_for}"


def step_until(steps: Steps[Any], reached: Callable[[], Any]) -> None:
    """Let an operation go on until the condition is true. Raises AssertionError after a while."""
    end = time.monotonic() + TIMEOUT
    while not reached():
        assert time.monotonic() < end, f"{steps} has not come that far"
        next(steps)


class NativeClient:
    """A client whose operations return when they are done; put, get and close block as the protocol does."""

    def __init__(
        self, client: redis.Redis, queue: str, identity: str = "native", prefix: str = "__pressure__"
    ) -> None:
        self._steps = NativeSteps(client, queue, identity, prefix, blocks=True, patience=3 * TIMEOUT)

    def create(self, bound: int = 0) -> None:
        run(self._steps.create(bound))

    def put(self, message: bytes) -> None:
        run(self._steps.put(message))

    def put_non_blocking(self, message: bytes) -> None:
        run(self._steps.put_non_blocking(message))

    def get(self) -> bytes:
        return run(self._steps.get())

    def get_non_blocking(self) -> bytes | None:
        return run(self._steps.get_non_blocking())

    def close(self) -> None:
        run(self._steps.close())

    def delete(self) -> None:
        run(self._steps.delete())
