"""Waiting operations in random mixtures, compared with a model: their results, and the order of service.

They use one lane on a real backend; nothing else touches the queue.
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

from pressure_server.errors import PressureError, QueueClosedError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.wait import Wait
from tests.model.model_settings import model_settings
from tests.support import forms
from tests.support.brokers import default_broker
from tests.support.forms import Form
from tests.support.programs import Valkey
from tests.support.reference.queue import Queue, RefusedError

SETTINGS = model_settings("PRESSURE_WAITING_EXAMPLES", 150)
QUEUE = b"q"
WITHIN = 2.0  # seconds


@dataclass
class Step:
    """An operation that puts `size` messages, by one command or one by one, or takes up to `size`."""

    form: Form
    size: int
    one_by_one: bool = False


@dataclass(eq=False)
class Modelled:
    """A step in the model. `got` are the messages that it has taken, `left` those that it has to put."""

    step: Step
    left: list[bytes] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    done: bool = False
    refused: bool = False  # because the queue is closed

    @property
    def refusal(self) -> str | None:
        """The text of the error."""
        if not self.refused:
            return None
        put = self.step.size - len(self.left) if self.step.form.verb.puts else 0
        error = QueueClosedError("q")
        return str(error.after(put) if put and not self.step.one_by_one else error)


class Model:
    """A queue that serves puts in the order of their arrival, and gets likewise."""

    def __init__(self, bound: int) -> None:
        self.queue = Queue(bound)
        self.waiting: list[Modelled] = []

    def do(self, together: list[Modelled]) -> None:
        """Do operations of the same form, one after another, before waiting ones are tried."""
        for modelled in together:
            self._try(modelled)
        self.waiting += [modelled for modelled in together if not modelled.done]
        progress = True
        while progress:
            progress = sum(self._try(waiting) for waiting in self.waiting) > 0
            self.waiting = [waiting for waiting in self.waiting if not waiting.done]

    def _try(self, modelled: Modelled) -> bool:
        """Return whether the operation has made progress."""
        if modelled.done:
            return False
        queue, form, before = self.queue, modelled.step.form, len(modelled.left)
        try:
            if form is forms.CLOSE:
                queue.close()
            elif form.verb.puts:
                queue.require_open()
                modelled.left = modelled.left[queue.put_some(modelled.left)[0] :]
            else:
                modelled.got = (queue.take if form is forms.GET else queue.get)(modelled.step.size)
        except RefusedError:
            modelled.refused = modelled.done = True
            return True
        modelled.done = not modelled.left if form.verb.puts else bool(modelled.got) or not form.options.waits
        return modelled.done or len(modelled.left) < before

    def leave(self, place: int) -> Modelled | None:
        """Remove a waiting operation, and return it."""
        return self.waiting.pop(place % len(self.waiting)) if self.waiting else None


class _Owner(Owner):
    def __init__(self) -> None:
        self.ended = False
        self.in_line = False

    def wait_began(self, _operation: Operation) -> None:
        self.in_line = True

    def completed(self, _operation: Operation) -> None:
        self.ended = True


def _is_in_state(operation: Operation, modelled: Modelled) -> bool:
    owner = cast(_Owner, operation.owner)
    return owner.ended == modelled.done and (modelled.done or owner.in_line)


def _run_of(pair: tuple[Operation, Modelled]) -> Form | Modelled:
    """Return a key that is equal for adjacent operations that a batch folds into one run (batch.py)."""
    operation, modelled = pair
    return modelled.step.form if operation.can_fold else modelled


def _refusal(operation: Operation) -> str | None:
    error = operation.error
    if operation.verb.puts and operation.results and isinstance(operation.results[-1], PressureError):
        error = operation.results[-1]
    return None if error is None else str(error)


class World:
    """A backend, and a broker whose loop runs only during `play`."""

    def __init__(self, backend: Valkey) -> None:
        self.direct = backend.client()
        self.loop = asyncio.new_event_loop()
        self.broker = default_broker(backend.url)
        self.loop.run_until_complete(self.broker.start())
        self.names = (b"%d" % number for number in count())

    def play(self, bound: int, batches: list[list[Step]], leaving: list[int] | None = None) -> None:
        """Submit the batches. Before each, cancel the operation at its place in `leaving`, if >= 0."""
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
                verb, options = step.form
                messages = [next(self.names) for _ in range(step.size)] if verb.puts else []
                wait = Wait(None) if options.waits else None
                size, commands = (1, step.size) if step.one_by_one else (step.size, 1)
                operation = Operation(
                    verb, QUEUE, list(messages), size, _Owner(), commands=commands, wait=wait, options=options
                )
                both.append((operation, Modelled(step, messages)))
                database.submit(operation)
            for _, together in groupby(both[-len(batch) :], _run_of):
                model.do([modelled for _, modelled in together])
            async with asyncio.timeout(WITHIN):
                # Callbacks note the progress; they run when this task yields.
                while not all(_is_in_state(o, m) for o, m in both):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            for operation, modelled in both:
                assert _refusal(operation) == modelled.refusal
                if modelled.done and modelled.step.form.verb.takes:
                    assert operation.results == modelled.got
                elif modelled.done and not modelled.refused:
                    assert len(operation.results) == len(operation.sizes)
            assert self.direct.lrange("__pressure__:q", 0, -1)[::-1] == model.queue.messages
        (shard,) = database.shards
        shard.end_waits()
        shard.is_stopping = False
        await database.run(verbs.DELETE, QUEUE)

    def close(self) -> None:
        self.loop.run_until_complete(self.broker.close())
        # One more iteration closes the transports.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.direct.close()


@pytest.fixture
def world(backend: Valkey) -> Iterator[World]:
    made = World(backend)
    yield made
    made.close()


PUTS = st.sampled_from([forms.PUT, forms.ADD])
GETS = st.sampled_from([forms.SOME, forms.GET])
ONE_TAKE = st.builds(Step, st.just(forms.TAKE), st.just(1))
mixed = st.one_of(
    st.builds(Step, PUTS, st.integers(1, 6)),
    ONE_TAKE,
    st.builds(Step, GETS, st.integers(1, 6)),
    st.builds(Step, st.sampled_from([forms.PUT, forms.TAKE, forms.CLOSE]), st.just(1)),
)
pipelined = st.one_of(
    st.builds(Step, PUTS, st.integers(1, 60), st.just(True)),
    st.builds(Step, PUTS, st.integers(1, 20)),
)
taking = st.one_of(ONE_TAKE, st.builds(Step, GETS, st.integers(1, 20)))
# The order of puts and gets in one call is open, so no batch of pipelines has both.
one_kind = st.one_of(st.lists(pipelined, min_size=1, max_size=6), st.lists(taking, min_size=1, max_size=12))
MIXTURES = {
    "mixed": (st.integers(0, 4), st.lists(st.lists(mixed, min_size=1, max_size=12), min_size=1, max_size=6)),
    "pipelines": (st.integers(1, 30), st.lists(one_kind, min_size=2, max_size=8)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("bounds", "mixtures"), MIXTURES.values(), ids=MIXTURES.keys())
def test_waiting_operations_are_served_as_in_the_model(
    world: World, bounds: st.SearchStrategy[int], mixtures: st.SearchStrategy[list[list[Step]]]
) -> None:
    @SETTINGS
    @given(bounds, mixtures, st.lists(st.integers(-3, 8), min_size=8, max_size=8))
    def play(bound: int, batches: list[list[Step]], leaving: list[int]) -> None:
        world.play(bound, batches, leaving)

    play()


def test_hundreds_of_waiting_operations_are_served_as_in_the_model(world: World) -> None:
    """A line is tried from its front, a few operations at a time, and more as long as they make progress."""
    world.play(3, [[Step(forms.PUT, 2)] * 300, [Step(forms.GET, 1)] * 5, [Step(forms.TAKE, 1)] * 595])
    world.play(3, [[Step(forms.TAKE, 1)] * 300, [Step(forms.ADD, 4)] * 10, [Step(forms.PUT, 500)]])
