"""Answers: when clients write their replies, in memory."""

from __future__ import annotations

import asyncio

import pytest

from pressure_server.queues.operations.owners import Answers


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
    answers.begin()
    assert answers.clients is not None
    answers.clients += clients
    answers.end()


def test_a_client_writes_at_the_end_of_each_call() -> None:
    answers, client = Answers(), Client()
    answer(answers, client)
    assert (client.writes, answers.clients) == (1, None)
    answer(answers, client)
    assert client.writes == 2


def test_clients_write_once_for_the_calls_of_several_shards() -> None:
    async def run() -> None:
        answers, first, second = Answers(several_shards=True), Client(), Client()
        for times in (1, 2):
            answer(answers, first)
            answer(answers, second)
            assert (first.writes, second.writes) == (times - 1, times - 1)
            await asyncio.sleep(0)
            assert (first.writes, second.writes, answers.clients) == (times, times, None)

    asyncio.run(run())


@pytest.mark.parametrize("several_shards", [False, True])
def test_a_client_that_fails_does_not_stop_others(several_shards: bool) -> None:
    async def run() -> None:
        answers, first, second = Answers(several_shards=several_shards), Client(fails=True), Client()
        answer(answers, first, second)
        await asyncio.sleep(0)
        assert (first.writes, second.writes) == (1, 1)

    asyncio.run(run())
