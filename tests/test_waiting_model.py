"""Operations that wait, in any mixture, against a plain model: who is served with what, and in which order.

Everything goes through one of our lanes on a real backend; nothing else touches the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.backend.address import Address
from pressure_server.errors import PressureError, QueueClosedError
from pressure_server.queues.broker import Broker
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import Policy
from tests.support import forms
from tests.support.forms import Form
from tests.support.model_settings import model_settings
from tests.support.programs import Valkey

SETTINGS = model_settings("PRESSURE_WAITING_EXAMPLES", 150)
QUEUE = b"q"
WITHIN = 2.0  # seconds


@dataclass
class Step:
    """An operation of `size`: so many messages to put, by one command or by as many, or wanted."""

    form: Form
    size: int
    one_by_one: bool = False


@dataclass(eq=False)
class Modelled:
    """The same as the model sees it. `got` is what it has taken, `left` what it has still to put."""

    step: Step
    left: list[bytes] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    done: bool = False
    refused: bool = False  # since the queue is closed

    @property
    def refusal(self) -> str | None:
        """The text by which it is refused."""
        put = self.step.size - len(self.left) if self.step.form.verb.puts else 0
        if not self.refused:
            return None
        error = QueueClosedError("q")
        return str(error.after(put) if put and not self.step.one_by_one else error)


class Model:
    """First come, first served, among those who put and among those who take."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.closed = False
        self.messages: list[bytes] = []
        self.waiting: list[Modelled] = []

    def do(self, together: list[Modelled]) -> None:
        """Equal operations that came together: nobody is served in between."""
        for modelled in together:
            self._try(modelled)
        self.waiting += [modelled for modelled in together if not modelled.done]
        progress = True
        while progress:
            progress = sum(self._try(waiting) for waiting in self.waiting) > 0
            self.waiting = [waiting for waiting in self.waiting if not waiting.done]

    def _try(self, modelled: Modelled) -> bool:
        """Whether it has got on."""
        if modelled.done:
            return False
        if modelled.step.form is forms.CLOSE:
            modelled.refused, modelled.done, self.closed = self.closed, True, True
            return True
        if modelled.step.form.verb.puts:
            if self.closed:
                modelled.refused = modelled.done = True
                return True
            room = self.bound - len(self.messages) if self.bound else len(modelled.left)
            some, modelled.left = modelled.left[:room], modelled.left[room:]
            self.messages += some
            modelled.done = not modelled.left
            return bool(some)
        wanted = modelled.step.size
        modelled.got, self.messages = self.messages[:wanted], self.messages[wanted:]
        modelled.refused = self.closed and not modelled.got and modelled.step.form is not forms.GET
        modelled.done = bool(modelled.got) or modelled.refused or modelled.step.form is forms.GET
        return bool(modelled.got)

    def leave(self, place: int) -> Modelled | None:
        """The client of one of those who wait goes."""
        return self.waiting.pop(place % len(self.waiting)) if self.waiting else None


class _Owner(Owner):
    def __init__(self) -> None:
        self.ended = False
        self.in_line = False

    def wait_began(self, _operation: Operation) -> None:
        self.in_line = True

    def completed(self, _operation: Operation) -> None:
        self.ended = True


def _has_come_as_far(operation: Operation, modelled: Modelled) -> bool:
    owner = cast(_Owner, operation.owner)
    return owner.ended == modelled.done and (modelled.done or owner.in_line)


def _folds_with(pair: tuple[Operation, Modelled]) -> Form | Modelled:
    """What tells those that a batch folds into one run (batch.py) from their neighbours."""
    modelled = pair[1]
    return modelled.step.form if pair[0].can_fold else modelled


def _refusal(operation: Operation) -> str | None:
    error = operation.error
    if operation.verb.puts and operation.results and isinstance(operation.results[-1], PressureError):
        error = operation.results[-1]
    return None if error is None else f"{error}"


class World:
    """A backend, and one of our brokers on it, whose loop runs only while something is done."""

    def __init__(self, backend: Valkey) -> None:
        self.direct = backend.client()
        self.loop = asyncio.new_event_loop()
        self.broker = Broker(
            Address(backend.url), prefix="__pressure__", peer_detection=PeerDetection(), policy=Policy()
        )
        self.loop.run_until_complete(self.broker.start())
        self.names = (b"%d" % number for number in count())

    def play(self, bound: int, batches: list[list[Step]], leaving: list[int] | None = None) -> None:
        """`leaving`: who of those that wait goes before a batch, by its place; a negative one is nobody."""
        self.direct.flushdb()
        self.loop.run_until_complete(self._play(bound, batches, leaving or [-1] * len(batches)))

    async def _play(self, bound: int, batches: list[list[Step]], leaving: list[int]) -> None:
        database = self.broker.default_database
        await database.run(verbs.CREATE, QUEUE, [b"%d" % bound])
        model = Model(bound)
        both: list[tuple[Operation, Modelled]] = []
        for batch, place in zip(batches, leaving, strict=False):
            gone = model.leave(place) if place >= 0 else None
            for operation, modelled in both:
                if modelled is gone:
                    database.cancel(operation)
                    both.remove((operation, modelled))
                    break
            for step in batch:
                messages = [next(self.names) for _ in range(step.size)] if step.form.verb.puts else []
                wait = Wait(None) if step.form.options.waits else None
                size, commands = (1, step.size) if step.one_by_one else (step.size, 1)
                operation = Operation(
                    step.form.verb,
                    QUEUE,
                    list(messages),
                    size,
                    _Owner(),
                    commands=commands,
                    wait=wait,
                    options=step.form.options,
                )
                both.append((operation, Modelled(step, messages)))
                database.submit(operation)
            for _, together in groupby(both[-len(batch) :], _folds_with):
                model.do([modelled for _, modelled in together])
            async with asyncio.timeout(WITHIN):
                # What others do is heard by callbacks: a turn of the loop at a time until all have been.
                while not all(_has_come_as_far(o, m) for o, m in both):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            for operation, modelled in both:
                assert _refusal(operation) == modelled.refusal
                if modelled.done and modelled.step.form.verb.takes:
                    assert operation.results == modelled.got
                elif modelled.done and not modelled.refused:
                    assert len(operation.results) == len(operation.sizes)
            assert self.direct.lrange("__pressure__:q", 0, -1)[::-1] == model.messages
        database.end_waits()
        database.is_stopping = False
        await database.run(verbs.DELETE, QUEUE)

    def close(self) -> None:
        self.loop.run_until_complete(self.broker.close())
        # Once more, for the transports to be closed.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.direct.close()


@pytest.fixture
def world(backend: Valkey) -> Iterator[World]:
    made = World(backend)
    yield made
    made.close()


steps = st.one_of(
    st.builds(Step, st.sampled_from([forms.PUT, forms.ADD]), st.integers(1, 6)),
    st.builds(Step, st.just(forms.TAKE), st.just(1)),
    st.builds(Step, st.sampled_from([forms.SOME, forms.GET]), st.integers(1, 6)),
    st.builds(Step, st.sampled_from([forms.PUT, forms.TAKE, forms.CLOSE]), st.just(1)),
)


@pytest.mark.slow
def test_who_waits_is_served_in_order_and_with_all_of_it(world: World) -> None:
    @SETTINGS
    @given(
        bound=st.integers(0, 4),
        batches=st.lists(st.lists(steps, min_size=1, max_size=12), min_size=1, max_size=6),
        leaving=st.lists(st.integers(-3, 8), min_size=6, max_size=6),
    )
    def play(bound: int, batches: list[list[Step]], leaving: list[int]) -> None:
        world.play(bound, batches, leaving)

    play()


pipelined = st.one_of(
    st.builds(Step, st.sampled_from([forms.PUT, forms.ADD]), st.integers(1, 60), st.just(True)),
    st.builds(Step, st.sampled_from([forms.PUT, forms.ADD]), st.integers(1, 20)),
)
taking = st.one_of(
    st.builds(Step, st.just(forms.TAKE), st.just(1)),
    st.builds(Step, st.sampled_from([forms.SOME, forms.GET]), st.integers(1, 20)),
)


@pytest.mark.slow
def test_pipelines_of_puts_go_on_where_they_were(world: World) -> None:
    """What waits is sent again a few commands at a time. (Which puts and gets meet in one call is open.)"""

    @SETTINGS
    @given(
        bound=st.integers(1, 30),
        batches=st.lists(
            st.one_of(st.lists(pipelined, min_size=1, max_size=6), st.lists(taking, min_size=1, max_size=12)),
            min_size=2,
            max_size=8,
        ),
        leaving=st.lists(st.integers(-3, 8), min_size=8, max_size=8),
    )
    def play(bound: int, batches: list[list[Step]], leaving: list[int]) -> None:
        world.play(bound, batches, leaving)

    play()


def test_more_wait_than_are_tried_at_once(world: World) -> None:
    """Lines are tried from the front, a few at a time, and more as long as they get on."""
    world.play(3, [[Step(forms.PUT, 2)] * 300, [Step(forms.GET, 1)] * 5, [Step(forms.TAKE, 1)] * 595])
    world.play(3, [[Step(forms.TAKE, 1)] * 300, [Step(forms.ADD, 4)] * 10, [Step(forms.PUT, 500)]])
