"""Transactions in memory: which blocks a call has, and with which results its operations end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, cast

import pytest

from pressure_server.errors import (
    BackendError,
    NotSafeError,
    QueueInUseError,
    UnblockedError,
)
from pressure_server.queues.calls.call import Block
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Delivery, Verb
from pressure_server.queues.operations.wait import Unblocking, WaitCondition
from pressure_server.queues.policy import Policy
from pressure_server.queues.transaction import Transaction
from tests.unit.queues.operations_of import get, put

# Submits operations to a transaction and waits for their results.
Submitting = Callable[[Transaction], Awaitable[Any]]


class Backend:
    """A database, and its shard, which replies to calls as the test says."""

    prefix = b"p"
    policy = Policy(role_timeout=5.0)

    def __init__(self, *replies: list[Any]) -> None:
        self.replies = list(replies)
        self.calls: list[tuple[list[bytes], list[bytes], bool]] = []
        self.not_durable: BackendError | None = None
        self.back: list[object] = []
        self.arrived = 0
        self.waits: list[tuple[bytes, WaitCondition]] = []
        self.asked: list[tuple[bytes, WaitCondition]] = []
        self.notified: list[bytes] = []
        # Called when a transaction waits.
        self.when_waiting: Callable[[], None] = lambda: None
        self.is_stopping = False
        self.notifications = self.role_turns = self.courier = self

    def common_shard(self, *_names: bytes) -> Self:
        return self

    def prefix_of(self, *_names: bytes) -> bytes:
        return self.prefix

    def flush_put_backs(self, _names: Iterable[bytes]) -> None: ...

    def wake_up(self, _names: Iterable[bytes]) -> None: ...

    def ask(self, name: bytes, condition: WaitCondition, *, for_listeners: bool) -> None:
        assert for_listeners
        self.asked.append((name, condition))

    def notify(self, name: bytes) -> None:
        self.notified.append(name)

    def ready(self, block: Block) -> None:
        self.calls.append((list(block.keys), list(block.arguments), block.changes))
        delivery = Delivery(1, self._arrived, self.back.append)
        block.received(self.replies.pop(0), delivery)
        delivery.end_sharing_out()

    def when_durable(self, follows: Callable[[BackendError | None], None]) -> None:
        follows(self.not_durable)

    def _arrived(self) -> None:
        self.arrived += 1

    async def wait_for(self, name: bytes, condition: WaitCondition, timeout: float) -> bool:
        assert timeout <= 5
        self.waits.append((name, condition))
        self.when_waiting()
        return timeout > 0

    def transaction(self) -> Transaction:
        return Transaction(cast(Database, self))


def submitting(verb: Verb, name: bytes, *messages: bytes) -> Submitting:
    """Return what submits an operation."""
    return lambda transaction: transaction.run(verb, name, [*messages])


def taking(name: bytes, timeout: float | None = None) -> Submitting:
    """Return what takes a message."""
    return lambda transaction: transaction.take([name], timeout)


async def committed(backend: Backend, *coroutines: Submitting) -> list[Any]:
    """Let coroutines submit operations to one transaction, and commit it. Return their results or errors."""
    transaction = backend.transaction()
    tasks = [asyncio.ensure_future(one(transaction)) for one in coroutines]
    await asyncio.sleep(0)
    await transaction.commit()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_all_operations_are_in_one_call_with_the_roles_that_they_need() -> None:
    backend = Backend([0, 1, [b"m"], 5])
    found = await committed(
        backend, submitting(verbs.PUT, b"a", b"m"), taking(b"b"), submitting(verbs.LENGTH, b"a")
    )
    assert found == [[2], (b"b", [b"m"]), [5]]
    ((keys, arguments, changes),) = backend.calls
    assert keys == [b"p:a", b"p:b"]
    assert changes
    assert arguments == [
        b"on", b"1", b"p:a", b"free", b"1", b"producer",
        b"on", b"1", b"p:b", b"free", b"1", b"consumer",
        b"on", b"1", b"p:a", b"put", b"2", b"", b"m",
        b"on", b"1", b"p:b", b"get waits", b"1", b"1",
        b"on", b"1", b"p:a", b"length", b"0",
    ]  # fmt: skip


async def test_neighbours_share_a_run_unless_they_wait() -> None:
    backend = Backend([0, 0, [b"x"], []])
    puts = [submitting(verbs.PUT, b"a", message) for message in (b"m", b"n")]
    found = await committed(backend, *puts, *[taking(b"a", timeout=0.0)] * 2)
    assert found == [[1], [2], (b"a", [b"x"]), None]
    arguments = backend.calls[0][1]
    assert (arguments.count(b"put"), arguments.count(b"get waits")) == (1, 2)


async def test_a_call_that_is_refused_for_a_role_is_sent_again_when_the_role_is_free() -> None:
    backend = Backend([b"refused", b"p:a", b"INUSE producer native"], [b"refused", b"p:a", b"DUE"], [0, 0])
    assert await committed(backend, submitting(verbs.PUT, b"a", b"m")) == [[1]]
    assert backend.waits == backend.asked == [(b"a", WaitCondition.PRODUCER_ROLE)]
    assert len(backend.calls) == 3
    assert backend.calls[0][1] == backend.calls[2][1]


@pytest.mark.parametrize("is_durable", [True, False])
async def test_messages_are_delivered_by_the_call_and_go_back_if_it_is_undone(is_durable: bool) -> None:
    backend = Backend([1, [b"x"], 0])
    transaction, getting = backend.transaction(), get(name=b"a")
    for operation in (getting, put(b"m", name=b"b")):
        transaction.submit(operation)
    if is_durable:
        await transaction.commit()
        assert backend.arrived == 0
        getting.acknowledge()
        assert backend.arrived == 1
    else:
        backend.not_durable = NotSafeError("any", "no replica")
        with pytest.raises(NotSafeError):
            await transaction.commit()
        assert backend.back == [getting]


@pytest.mark.parametrize(("error", "raised"), [(None, QueueInUseError), (UnblockedError(), UnblockedError)])
async def test_a_transaction_that_is_unblocked_tries_once_more_and_fails(
    error: UnblockedError | None, raised: type[Exception]
) -> None:
    backend = Backend(*[[b"refused", b"p:a", b"INUSE producer native"]] * 3)
    unblocking, transaction = Unblocking(error), backend.transaction()
    backend.when_waiting = lambda: transaction.unblock(unblocking)
    transaction.submit(put(b"m"))
    with pytest.raises(raised):
        await transaction.commit()
    assert (len(backend.calls), backend.notified) == (2, [b"a", b"a"])
    assert unblocking.has_ended_wait
