"""Operations for tests in memory, in few words, and an owner that notes what it is told."""

from collections.abc import Sequence

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Operation, Owner
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.owners import Waiter
from pressure_server.queues.operations.wait import Wait


class Recorder(Owner):
    """An owner that notes which of its operations wait and end."""

    def __init__(self) -> None:
        self.waiting: list[Operation] = []
        self.partly: list[Operation] = []
        self.ended: list[Operation] = []

    def wait_began(self, operation: Operation) -> None:
        self.waiting.append(operation)

    def partly_taken(self, operation: Operation) -> None:
        self.partly.append(operation)

    def completed(self, operation: Operation) -> None:
        self.ended.append(operation)


class WaitingClient:
    """A client that notes for what it waits, and what it gets."""

    has_disconnected = False

    def __init__(self) -> None:
        self.waits: list[Sequence[bytes]] = []
        self.waiters: list[Waiter] = []
        self.taken: list[Operation] = []
        self.partly: list[Operation] = []

    def begin_wait(self, waiter: Waiter, queues: Sequence[bytes]) -> None:
        self.waiters.append(waiter)
        self.waits.append(queues)

    def end_wait(self, waiter: Waiter) -> None:
        self.waiters.remove(waiter)

    def partly_taken(self, operation: Operation) -> None:
        self.partly.append(operation)

    def begin_pop(self, name: bytes) -> tuple[bytes, list[bytes]] | None:
        return None

    def take_over(self, operation: Operation) -> None:
        self.taken.append(operation)


def put(
    *commands: bytes,
    options: Options = DEFAULT,
    wait: Wait | None = None,
    owner: Owner | None = None,
    name: bytes = b"q",
) -> Operation:
    """Return a put. Each of the `commands` is its messages, with spaces between them."""
    first, *others = [command.split(b" ") for command in commands]
    operation = Operation(verbs.PUT, name, first, len(first), owner or Recorder(), wait=wait, options=options)
    for messages in others:
        operation.extend(messages, len(messages), 1)
    return operation


def get(
    size: int = 1,
    commands: int = 1,
    *,
    options: Options = DEFAULT,
    wait: Wait | None = None,
    owner: Owner | None = None,
    name: bytes = b"q",
) -> Operation:
    """Return a get; each of its commands wants `size` messages."""
    return Operation(
        verbs.GET, name, [], size, owner or Recorder(), commands=commands, wait=wait, options=options
    )


def wait_of(operation: Operation) -> Wait:
    """Return the operation's wait, which it must have."""
    assert operation.wait is not None
    return operation.wait


def taken_by(operation: Operation, *messages: bytes, number: int = 1) -> Delivery:
    """Let a call bring messages to the operation. Return the call's delivery."""
    operation.results += messages
    delivery = Delivery(number, lambda: None, lambda _: None)
    delivery.add([operation])
    delivery.end_sharing_out()
    return delivery
