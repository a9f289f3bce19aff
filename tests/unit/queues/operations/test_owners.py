"""Owners of operations, in memory: what a coroutine and its client learn of them; when clients write."""

import asyncio

import pytest

from pressure_server.queues.operations.operation import Delivery, Operation
from pressure_server.queues.operations.owners import Answers, CoroutineOwner, WithoutClient
from pressure_server.queues.operations.wait import Unblocking
from tests.unit.queues.operations_of import WaitingClient, get, put


class Client:
    """A client that counts how often it writes; it may fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.writes = 0
        self._fails = fails

    def flush(self) -> None:
        self.writes += 1
        if self._fails:
            raise ValueError


def answer(answers: Answers, *clients: Client) -> None:
    """Share out the reply to a call that answers these clients."""
    answers.clients = (answers.clients or {}) | dict.fromkeys(clients)
    answers.end()


@pytest.mark.parametrize("several_shards", [False, True])
async def test_clients_write_at_the_end_of_each_call_or_once_for_the_calls_of_several_shards(
    several_shards: bool,
) -> None:
    answers, first, second = Answers(several_shards=several_shards), Client(), Client()
    for times in (1, 2):
        answer(answers, first)
        answer(answers, second)
        at_once = times - several_shards
        assert (first.writes, second.writes) == (at_once, at_once)
        await asyncio.sleep(0)
        assert (first.writes, second.writes, answers.clients) == (times, times, None)


@pytest.mark.parametrize("several_shards", [False, True])
async def test_a_client_that_fails_does_not_stop_others(several_shards: bool) -> None:
    answers, first, second = Answers(several_shards=several_shards), Client(fails=True), Client()
    answer(answers, first, second)
    await asyncio.sleep(0)
    assert (first.writes, second.writes) == (1, 1)


class Taken:
    """Gets with a message each, and those whose message went back."""

    def __init__(self) -> None:
        self.back: list[Operation] = []

    def get(self, owner: CoroutineOwner, name: bytes = b"q") -> Operation:
        operation = get(owner=owner, name=name)
        operation.results = [b"m"]
        Delivery(1, lambda: None, self.back.append).add([operation])
        return operation


async def test_what_ends_after_its_coroutine_goes_back() -> None:
    client, taken = WaitingClient(), Taken()
    owner = CoroutineOwner(client)
    late = taken.get(owner)
    owner.end()  # would raise if it ended a wait: the client has not begun one
    owner.completed(late)
    assert (client.taken, taken.back, owner.first_ended.done()) == ([], [late], False)


async def test_an_operation_that_takes_nothing_is_not_handed_over() -> None:
    client = WaitingClient()
    owner = CoroutineOwner(client)
    operation = put(b"m", owner=owner)
    operation.results = [1]
    owner.completed(operation)
    assert (await owner.first_ended, client.taken) == (b"q", [])


async def test_without_a_client_messages_have_arrived_at_once() -> None:
    taken = Taken()
    owner = CoroutineOwner(None)
    operation = taken.get(owner)
    owner.wait_began(operation)
    owner.partly_taken(operation)
    owner.completed(operation)
    owner.end()
    assert (operation.deliveries, taken.back) == (None, [])


async def test_a_client_waits_until_the_coroutine_ends() -> None:
    client = WaitingClient()
    owner = CoroutineOwner(client)
    operation = get(owner=owner)
    assert client.waits == []
    owner.wait_began(operation)
    assert (client.waiters, client.waits) == ([owner], [[b"q"]])
    owner.wait_began(get(owner=owner, name=b"r"))
    assert (client.waiters, client.waits) == ([owner], [[b"q", b"r"]])
    owner.partly_taken(operation)
    assert client.partly == [operation]
    owner.end()
    owner.end()
    assert client.waiters == []


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
async def test_a_coroutine_learns_when_an_operation_was_tried(ends: bool, is_late: bool) -> None:
    owner = CoroutineOwner(WaitingClient())
    operation = get(owner=owner)

    def report() -> None:
        (owner.completed if ends else owner.wait_began)(operation)

    if not is_late:
        report()
    tried = asyncio.create_task(owner.wait_until_tried())
    await asyncio.sleep(0)
    assert tried.done() is not is_late
    if is_late:
        report()
    await tried
    # Each operation is waited for anew, unless one has ended.
    again = asyncio.create_task(owner.wait_until_tried())
    await asyncio.sleep(0)
    assert again.done() is ends
    again.cancel()


async def test_an_operation_is_unblocked_by_its_lane_until_the_coroutine_ends() -> None:
    owner, unblocked = CoroutineOwner(None), list[Unblocking]()
    early, request, late = Unblocking(), Unblocking(), Unblocking()
    owner.unblock(early)
    owner.on_unblock = unblocked.append
    owner.unblock(request)
    owner.end()
    owner.unblock(late)
    assert len(unblocked) == 1
    assert unblocked[0] is request


def test_a_function_is_told_of_the_end() -> None:
    told: list[Operation] = []
    done = put(b"m", owner=WithoutClient(told.append))
    done.owner.completed(done)
    WithoutClient().completed(done)
    assert told == [done]
