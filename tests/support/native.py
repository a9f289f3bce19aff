"""A native client of pressure 0.15 or 0.1: the pseudo-code of the specification, command by command.

The operations of `NativeSteps` are generators that yield between two commands, so that a test can interleave
other work. `NativeClient` runs whole operations, and blocks in Redis.
"""

import math
import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeVar

import redis

from tests.support.programs import TIMEOUT

Result = TypeVar("Result")
# A generator that yields between two commands: None, or the key on which the operation waits.
Steps = Generator[str | None, None, Result]


VERSIONS = ("0.15", "0.1")


class NativeError(Exception):
    """An error of the specification."""


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

    Where the pseudo-code omits `stats:` in a key, or keeps the role after an error, this follows the prose.
    With `blocks`, the client blocks in BRPOP, and fails after `timeout` seconds; else it polls. `last`
    describes its last command.
    """

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        identity: str,
        prefix: str = "__pressure__",
        blocks: bool = False,
        timeout: float = math.inf,
        version: str = VERSIONS[0],
    ) -> None:
        self._execute: Any = client.execute_command  # redis-py does not declare a type
        self._base = f"{prefix}:{queue}"
        self._identity = identity
        self._blocks = blocks
        self._timeout = timeout
        self._version = version
        self.last = "nothing"

    def begin(self, kind: str, message: bytes = b"", bound: int = 0) -> Steps[Any]:
        """Begin the operation of this name."""
        arguments: dict[str, tuple[bytes | int, ...]] = {
            "put": (message,), "put_non_blocking": (message,), "create": (bound,),
        }  # fmt: skip
        steps: Steps[Any] = getattr(self, kind)(*arguments.get(kind, ()))
        return steps

    def create(self, bound: int = 0) -> Steps[None]:
        if not self._do("SETNX", ":bound", bound):
            raise QueueAlreadyExistsError
        yield None
        yield from self._step("LPUSH", ":producer_free", 1)
        yield from self._step("LPUSH", ":consumer_free", 1)
        self._do("LPUSH", ":not_full", 1)

    def put(self, message: bytes, waits: bool = True) -> Steps[None]:
        yield from self._take_role("producer", waits)
        if (yield from self._identify("producer")):
            self._refuse("producer")
        if waits:
            yield from self._pop(":not_full")
        elif (yield from self._step("RPOP", ":not_full")) is None:
            self._do("LPUSH", ":producer_free", 0)
            raise QueueFullError
        length = yield from self._step("LPUSH", "", message)
        bound = int((yield from self._step("GET", ":bound")) or 0)
        if bound == 0 or length < bound:
            yield from self._step("LPUSH", ":not_full", 0)
            yield from self._step("LTRIM", ":not_full", 0, 0)
        yield from self._step("INCR", ":stats:produced_messages")
        yield from self._step("INCRBY", ":stats:produced_bytes", len(message))
        self._do("LPUSH", ":producer_free", 0)

    def put_non_blocking(self, message: bytes) -> Steps[None]:
        return self.put(message, waits=False)

    def get(self) -> Steps[bytes]:
        yield from self._take_role("consumer")
        if (yield from self._identify_as_consumer()):
            _, message = yield from self._pop("")
        else:
            key, message = yield from self._pop("", ":closed")
            if key == ":closed":
                self._refuse("consumer")
        yield from self._finish_get(message)
        return message

    def get_non_blocking(self) -> Steps[bytes | None]:
        yield from self._take_role("consumer", waits=False)
        yield from self._identify_as_consumer()
        message: bytes | None = yield from self._step("RPOP", "")
        yield from self._finish_get(message)
        return message

    def _finish_get(self, message: bytes | None) -> Steps[None]:
        # The pseudo-code does this for an empty queue too, and whatever the bound is.
        yield from self._step("LPUSH", ":not_full", 0)
        yield from self._step("LTRIM", ":not_full", 0, 0)
        if message is not None:
            yield from self._step("INCR", ":stats:consumed_messages")
            yield from self._step("INCRBY", ":stats:consumed_bytes", len(message))
        self._do("LPUSH", ":consumer_free", 0)

    def close(self) -> Steps[None]:
        yield from self._take_role("producer")
        if (yield from self._identify("producer")):
            self._refuse("producer")
        yield from self._step("LPUSH", ":closed", 0, 0)
        self._do("LPUSH", ":producer_free", 0)

    def delete(self) -> Steps[None]:
        yield from self._must_exist()
        yield from self._step("DEL", ":bound")
        yield from self._step("LPUSH", ":not_full", 0)
        yield from self._step("LPUSH", ":closed", 0, 0)
        for role in (":producer", ":consumer"):
            yield from self._pop(f"{role}_free")
            yield from self._step("DEL", role)
            yield from self._step("DEL", f"{role}_free")
        kinds = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")
        for key in (":not_full", ":closed", *(f":stats:{kind}" for kind in kinds)):
            yield from self._step("DEL", key)
        self._do("DEL", "")

    def _must_exist(self) -> Steps[None]:
        if not self._do("EXISTS", ":bound"):
            raise QueueDoesNotExistError
        yield None

    def _take_role(self, role: str, waits: bool = True) -> Steps[None]:
        """Take a role of a queue that exists. Unless this `waits`, raise QueueInUseError if it is taken."""
        yield from self._must_exist()
        if waits:
            yield from self._pop(f":{role}_free")
        elif self._do("RPOP", f":{role}_free") is None:
            raise QueueInUseError
        else:
            yield None

    def _identify(self, role: str) -> Steps[bool]:
        """Write this client's identity to the role's key. Return whether the queue is closed."""
        yield from self._step("SET", f":{role}", self._identity)
        return bool((yield from self._step("EXISTS", ":closed")))

    def _identify_as_consumer(self) -> Steps[bool]:
        """Do so for the consumer role. Raise QueueClosedError if the queue is closed and empty."""
        closed = yield from self._identify("consumer")
        if closed and (yield from self._step("LLEN", "")) == 0:
            self._refuse("consumer")
        return closed

    def _refuse(self, role: str) -> NoReturn:
        """Give the role back, and raise QueueClosedError."""
        self._do("LPUSH", f":{role}_free", 0)
        raise QueueClosedError

    def _pop(self, *suffixes: str) -> Steps[tuple[str, bytes]]:
        """Do a BRPOP; or poll, so that a test with one thread can do other work meanwhile."""
        if self._blocks:
            keys = [self._base + suffix for suffix in suffixes]
            end = time.monotonic() + self._timeout
            popped = None
            while popped is None:
                assert time.monotonic() < end, f"no element in {keys}"
                # redis-py waits for a reply for at most five seconds.
                popped = self._execute("BRPOP", *keys, 2)
            yield None
            return popped[0].decode().removeprefix(self._base), popped[1]
        while True:
            for suffix in suffixes:
                value = self._do("RPOP", suffix)
                if value is not None:
                    yield None
                    return suffix, value
            yield self._base + suffixes[0]

    def _step(self, command: str, suffix: str, *arguments: bytes | str | int) -> Steps[Any]:
        reply = self._do(command, suffix, *arguments)
        yield None
        return reply

    def _do(self, command: str, suffix: str, *arguments: bytes | str | int) -> Any:
        if command == "LTRIM" and self._version == "0.1":
            # The pseudo-code of 0.1 leaves up to two tokens.
            arguments = (0, 1)
        self.last = f"{command} {suffix or 'the list'}"
        return self._execute(command, self._base + suffix, *arguments)


def run(steps: Steps[Result]) -> Result:
    """Run an operation to its end, and return its result. Raise AssertionError if it has to wait."""
    while True:
        try:
            waits_for = next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        assert waits_for is None, f"the operation waits for {waits_for}"


def step_until(steps: Steps[Any], reached: Callable[[], Any]) -> None:
    """Run an operation until the condition is true. Raise AssertionError after `TIMEOUT` seconds."""
    end = time.monotonic() + TIMEOUT
    while not reached():
        assert time.monotonic() < end, "the operation has not reached the condition"
        next(steps)


class NativeClient:
    """A client whose operations return when they are done. Put, get, close and delete block if they must."""

    def __init__(
        self, client: redis.Redis, queue: str, identity: str = "native", prefix: str = "__pressure__"
    ) -> None:
        self._steps = NativeSteps(client, queue, identity, prefix, blocks=True, timeout=3 * TIMEOUT)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Return a function that runs an operation of NativeSteps to its end."""
        steps: Callable[..., Steps[Any]] = getattr(self._steps, operation)
        return lambda *arguments: run(steps(*arguments))


def native_puts(client: redis.Redis, base: str, messages: list[bytes]) -> None:
    """Write what a native client leaves after it has put the messages one by one; this is faster."""
    client.lpush(base, *messages)
    _sign(client, base, "producer", "produced", messages)


def native_gets(client: redis.Redis, base: str, count: int) -> None:
    """Take messages, and write what a native client leaves after that."""
    messages: Any = client.rpop(base, count)
    _sign(client, base, "consumer", "consumed", messages)


def _sign(client: redis.Redis, base: str, role: str, done: str, messages: list[bytes]) -> None:
    assert client.llen(f"{base}:{role}_free") == 1
    client.set(f"{base}:{role}", "native")
    client.incrby(f"{base}:stats:{done}_messages", len(messages))
    client.incrby(f"{base}:stats:{done}_bytes", sum(map(len, messages)))
