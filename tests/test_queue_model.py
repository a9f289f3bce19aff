"""Our operations against native clients that are interrupted between any two of their commands.

The truth is what the protocol's keys say. A plain model of each operation of ours tells, from the keys
before it, its answer and the keys after it; and whatever has happened, the mirror must answer exactly.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pressure_server.backend.address import Address
from pressure_server.errors import (
    PressureError,
    QueueAlreadyExistsError,
    QueueClosedError,
    QueueDoesNotExistError,
    QueueFullError,
    QueueInUseError,
)
from pressure_server.queues.broker import Broker
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.peers import PeerDetection
from pressure_server.queues.policy import ERROR, Policy
from tests.support import forms
from tests.support import native as native_client
from tests.support.forms import Form
from tests.support.model_settings import model_settings
from tests.support.native import NativeClient, NativeError, NativeSteps, Steps, run, step_until
from tests.support.programs import Client, Valkey, keys_left, wait_for

SETTINGS = settings(
    model_settings("PRESSURE_MODEL_EXAMPLES", 100),
    stateful_step_count=50,
    phases=[Phase.generate, Phase.shrink],
)
QUEUE, CLONE = "q", "clone"
BASE, CLONE_BASE = f"__pressure__:{QUEUE}", f"__pressure__:{CLONE}"
STATS = [f":stats:{verb}_{unit}" for verb in ("produced", "consumed") for unit in ("messages", "bytes")]
PROTOCOL = [
    "", ":bound", ":producer", ":consumer", ":producer_free", ":consumer_free", ":not_full", ":closed",
    *STATS,
]  # fmt: skip
EXTENSION = [":ext:members", ":ext:copies", ":ext:index", ":ext:settings"]
# Few, so that they repeat.
MESSAGES = [b"", b"a", b"bb", b"c c", b"\xff\r\n\x00", b"eeeee"]
# A name that is used by two clients, and one with spaces in it.
NATIVE_NAMES = ["native-1", "native-2", "host 3 0 us"]
MOST_NATIVE = 4
# Small, so that a few messages are many slices, scans and calls. (The fast path is for fewer arguments than
# CHUNK, five of which are no messages.)
SMALL = {b"SLICE": 2, b"SCAN": 3, b"CHUNK": 7, b"GET_MESSAGES": 2, b"GET_BYTES": 8}


@dataclass
class State:
    """The protocol's keys of a queue, and what each operation of ours makes of them."""

    messages: list[bytes]  # oldest first
    bound: int | None  # None: there is no such queue
    producer: bytes | None
    consumer: bytes | None
    producer_free: int
    consumer_free: int
    not_full: int
    closed: int
    stats: list[int]
    leftovers: bool = field(default=False, compare=False)

    @property
    def has_room(self) -> bool:
        return self.bound == 0 or (self.bound is not None and len(self.messages) < self.bound)

    def settle_not_full(self) -> None:
        if not self.has_room:
            self.not_full = 0
        elif self.not_full == 0 and self.bound and self.consumer_free == 0:
            pass  # a native consumer took a message from a full queue, and is about to push the token
        elif self.not_full == 0 and not self.producer and not self.consumer:
            pass  # a native client creates the queue, and is about to push the token
        else:
            self.not_full = 1

    def room(self) -> float:
        if self.not_full == 0 and not self.producer and not self.consumer:
            return 0
        if self.bound == 0:
            return float("inf")
        if self.not_full == 0 and self.consumer_free == 0:
            return 0
        return max(0, (self.bound or 0) - len(self.messages))

    def create(self, bound: int) -> list[Any]:
        if self.bound is not None:
            raise QueueAlreadyExistsError(QUEUE)
        if self.leftovers:
            raise QueueInUseError(QUEUE, "")
        self._become(State([], bound, None, None, 1, 1, 1, 0, [0, 0, 0, 0], True))
        return [1]

    def delete(self) -> list[Any]:
        if self.bound is None:
            if not (
                self.messages or self.producer or self.consumer or self.producer_free or self.consumer_free
            ):
                self.not_full, self.closed, self.stats = 0, 0, [0, 0, 0, 0]
            raise QueueDoesNotExistError(QUEUE)
        if not (self.producer_free and self.consumer_free):
            # The first half: what a native client's Delete does before it waits for the roles.
            self.bound, self.not_full, self.closed = None, self.not_full + 1, self.closed + 2
            raise QueueInUseError(QUEUE, "")
        self._become(State([], None, None, None, 0, 0, 0, 0, [0, 0, 0, 0]))
        return [1]

    def close(self, me: bytes) -> list[Any]:
        self._must_exist()
        if self.closed:
            raise QueueClosedError(QUEUE)
        self._must_be_free(self.producer_free)
        self.producer, self.closed = me, 2
        return [1]

    def take(self, me: bytes, count: int) -> list[Any]:
        self._must_exist()
        if self.closed and not self.messages:
            raise QueueClosedError(QUEUE)
        return self.get(me, count)

    def put(self, me: bytes, commands: list[list[bytes]], unique: bool, made_with: int | None) -> list[Any]:
        if self.bound is None:
            if made_with is None:
                raise QueueDoesNotExistError(QUEUE)
            self.create(made_with)
        if self.closed:
            raise QueueClosedError(QUEUE)
        if self.not_full == 0 and not self.producer and not self.consumer:
            raise QueueInUseError(QUEUE, "")  # a native client is creating it
        if not self.producer_free and not self.room():
            return [QueueFullError(QUEUE)] * len(commands)
        self._must_be_free(self.producer_free)
        if self.room():
            self.producer = me
        results: list[Any] = []
        for command in commands:
            wanted = [m for m in dict.fromkeys(command) if m not in self.messages] if unique else command
            if len(wanted) > self.room():
                results.append(QueueFullError(QUEUE))
            else:
                self.messages += wanted
                self._count(0, wanted)
                results.append(len(wanted) if unique else len(self.messages))
            self.settle_not_full()
        return results

    def get(self, me: bytes, count: int) -> list[Any]:
        self._must_exist()
        if not self.messages:
            return []
        self._must_be_free(self.consumer_free)
        self.consumer = me
        taken, self.messages = self.messages[:count], self.messages[count:]
        self._count(2, taken)
        self.settle_not_full()
        return [*taken]

    def remove(self, me: bytes, messages: list[bytes]) -> list[Any]:
        self._must_exist()
        if not self.messages:
            return [0] * len(messages)
        self._must_be_free(self.consumer_free)
        results = []
        for message in messages:
            removed = [m for m in self.messages if m == message]
            self.messages = [m for m in self.messages if m != message]
            self._count(2, removed)
            results.append(1 if removed else 0)
        if any(results):
            self.consumer = me
            self.settle_not_full()
        return results

    def contains(self, messages: list[bytes]) -> list[Any]:
        self._must_exist()
        return [1 if m in self.messages else 0 for m in messages]

    def length(self) -> list[Any]:
        self._must_exist()
        return [len(self.messages)]

    def range(self, first: int, last: int) -> list[Any]:
        self._must_exist()
        return [self.messages[first : len(self.messages) if last == -1 else last + 1]]

    def info(self) -> list[Any]:
        self._must_exist()
        return [
            [
                self.bound, len(self.messages), min(self.closed, 1),
                min(self.producer_free, 1), self.producer or b"", min(self.consumer_free, 1),
                self.consumer or b"", *self.stats, b"error",
            ]
        ]  # fmt: skip

    def exists(self) -> list[Any]:
        return [0 if self.bound is None else 1]

    def _become(self, other: State) -> None:
        self.__dict__.update(vars(other))

    def _must_exist(self) -> None:
        if self.bound is None:
            raise QueueDoesNotExistError(QUEUE)

    def _must_be_free(self, tokens: int) -> None:
        if not tokens:
            raise QueueInUseError(QUEUE, "")

    def _count(self, at: int, messages: list[bytes]) -> None:
        self.stats[at] += len(messages)
        self.stats[at + 1] += sum(map(len, messages))


def read_state(direct: redis.Redis) -> State:
    pipeline: Any = direct.pipeline(transaction=False)
    pipeline.lrange(BASE, 0, -1)
    pipeline.mget([f"{BASE}:bound", f"{BASE}:producer", f"{BASE}:consumer"])
    for suffix in (":producer_free", ":consumer_free", ":not_full", ":closed"):
        pipeline.llen(BASE + suffix)
    pipeline.mget([BASE + suffix for suffix in STATS])
    pipeline.exists(*[BASE + suffix for suffix in PROTOCOL])
    newest_first, names, producer_free, consumer_free, not_full, closed, stats, keys = pipeline.execute()
    return State(
        newest_first[::-1],
        None if names[0] is None else int(names[0]),
        names[1],
        names[2],
        producer_free,
        consumer_free,
        not_full,
        closed,
        [int(number or 0) for number in stats],
        keys > 0,
    )


@dataclass
class Ours:
    """An operation of ours: what is submitted, and what the model does for it."""

    form: Form
    arguments: list[bytes]
    size: int = 1
    commands: int = 1

    def __str__(self) -> str:
        return f"{self.form} {self.arguments}, {self.commands} commands of {self.size}"

    def expected(self, state: State, me: bytes, made_with: int | None) -> list[Any]:
        words = self.arguments
        numbers = [int(word) for word in words] if self.form in (forms.CREATE, forms.RANGE) else []
        if self.form in (forms.PUT, forms.ADD):
            each = [words[at : at + self.size] for at in range(0, len(words), self.size)]
            return state.put(me, each, self.form is forms.ADD, made_with)
        operations: dict[Form, Callable[[], list[Any]]] = {
            forms.GET: lambda: state.get(me, self.size * self.commands),
            forms.REMOVE: lambda: state.remove(me, words),
            forms.CONTAINS: lambda: state.contains(words),
            forms.LENGTH: state.length,
            forms.RANGE: lambda: state.range(*numbers),
            forms.INFO: state.info,
            forms.EXISTS: state.exists,
            forms.CREATE: lambda: state.create(*numbers),
            forms.DELETE: state.delete,
            forms.CLOSE: lambda: state.close(me),
            forms.TAKE_EXISTING: lambda: state.take(me, 1),
        }
        return operations[self.form]()


class _Ended(Owner):
    """An operation's owner, which counts those that have ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wanted: int) -> None:
        self._left = wanted
        self.all: asyncio.Future[None] = loop.create_future()

    def completed(self, _operation: Operation) -> None:
        self._left -= 1
        if not self._left:
            self.all.set_result(None)


class World:
    """A backend, and two of our servers on it, without the servers' sockets."""

    # What a queue made by a put gets as its bound; the second server makes none.
    MADE_WITH = (2, None)

    def __init__(self, backend: Valkey, constants: dict[bytes, int]) -> None:
        self.direct = backend.client()
        self.loop = asyncio.new_event_loop()
        self.brokers = [
            Broker(
                Address(backend.url),
                prefix="__pressure__",
                peer_detection=PeerDetection(),
                policy=Policy(b, ERROR, role_timeout=0),
            )
            for b in self.MADE_WITH
        ]
        for broker in self.brokers:
            broker._backend._script = with_constants(broker._backend._script, constants)
            self.loop.run_until_complete(broker.start())
        self.names = [broker.identity.encode() for broker in self.brokers]
        self.databases: list[Database] = [broker.default_database for broker in self.brokers]

    def submit(self, server: int, queue: str, operations: list[Ours]) -> list[Operation]:
        """Do the operations, in one call where they fit."""
        return self.loop.run_until_complete(self._submit(server, queue.encode(), operations))

    async def _submit(self, server: int, queue: bytes, operations: list[Ours]) -> list[Operation]:
        database, ended = self.databases[server], _Ended(self.loop, len(operations))
        submitted = [
            Operation(
                o.form.verb,
                queue,
                list(o.arguments),
                o.size,
                ended,
                commands=o.commands,
                wait=Wait(0),
                options=o.form.options,
            )
            for o in operations
        ]
        for operation in submitted:
            database.submit(operation)
        await ended.all
        return submitted

    def close(self) -> None:
        for broker in self.brokers:
            self.loop.run_until_complete(broker.close())
        # Once more, for the transports to be closed.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.direct.close()


def with_constants(script: bytes, constants: dict[bytes, int]) -> bytes:
    for name, value in constants.items():
        script, found = re.subn(rb"\nlocal %b = \d+" % name, b"\nlocal %b = %d" % (name, value), script)
        assert found == 1, f"the script has no constant {name.decode()}"
    return script


@dataclass(eq=False)
class Native:
    """A native operation that has begun."""

    what: str
    steps: Steps[Any]
    waits_for: str | None = None


def simplified(results: Iterable[Any]) -> list[Any]:
    """Errors as their classes, which can be compared."""
    return [type(result) if isinstance(result, PressureError) else result for result in results]


messages = st.sampled_from(MESSAGES)
several = st.lists(messages, min_size=1, max_size=8)


def _as_commands(form: Form) -> st.SearchStrategy[Ours]:
    """Messages of one command, or of one command each."""
    return st.builds(
        lambda words, apart: Ours(form, words, 1 if apart else len(words), len(words) if apart else 1),
        several,
        st.booleans(),
    )


questions = st.one_of(
    st.builds(Ours, st.just(forms.CONTAINS), several).map(lambda o: replace(o, size=len(o.arguments))),
    st.just(Ours(forms.LENGTH, [])),
    st.just(Ours(forms.INFO, [])),
    st.just(Ours(forms.EXISTS, [])),
    st.builds(
        lambda first, more: Ours(forms.RANGE, [b"%d" % first, b"%d" % (first + more if more else -1)]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)
gets = st.builds(Ours, st.just(forms.GET), st.just([]), st.integers(1, 5), st.integers(1, 2))
removals = st.builds(Ours, st.just(forms.REMOVE), st.lists(messages, min_size=1, max_size=3)).map(
    lambda o: replace(o, size=len(o.arguments))
)
creations = st.builds(lambda bound: Ours(forms.CREATE, [b"%d" % bound]), st.sampled_from([0, 0, 1, 2, 3, 6]))
deletions = st.just(Ours(forms.DELETE, []))
closings = st.just(Ours(forms.CLOSE, []))
takes = st.just(Ours(forms.TAKE_EXISTING, []))
puts = st.one_of(_as_commands(forms.ADD), _as_commands(forms.PUT))
usual = st.one_of(puts, puts, gets, gets, removals, questions)
anything = st.one_of(usual, usual, usual, creations, deletions, closings)
servers = st.integers(0, 1)
native_kinds = st.sampled_from(
    ["put", "put", "put_nb", "put_nb", "get", "get_nb", "get_nb", "create", "close", "delete"]
)
common_native_kinds = st.sampled_from(["put", "put_nb", "get", "get_nb"])


class QueueMachine(RuleBasedStateMachine):
    """One queue, two servers of ours, and up to four native operations half-way."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.direct = world.direct
        self.direct.flushdb()
        self.native: list[Native] = []
        # A native Delete or Create has met other operations, or ours has met native ones: the protocol then
        # promises nothing for tokens and statistics, until all keys are gone.
        self.torn = False
        # Native clients alone can leave a :not_full token on a full queue: a consumer pushes it some time
        # after its pop. It is excused until the tokens are right again.
        self.excused = False
        self.turn = 0
        # Read after every change; nothing changes the queue in between.
        self.state = read_state(self.direct)

    # Ours

    @initialize(bound=st.sampled_from([None, 0, 0, 1, 2, 3, 6]), server=servers)
    def begin(self, bound: int | None, server: int) -> None:
        if bound is not None:
            self.ours(server, [Ours(forms.CREATE, [b"%d" % bound])])

    @rule(server=servers, operation=puts)
    def put(self, server: int, operation: Ours) -> None:
        self.ours(server, [operation])

    @rule(server=servers, operation=st.one_of(gets, gets, takes))
    def get(self, server: int, operation: Ours) -> None:
        self.ours(server, [operation])

    @rule(server=servers, operation=removals)
    def remove(self, server: int, operation: Ours) -> None:
        self.ours(server, [operation])

    @rule(server=servers, operation=questions)
    def ask(self, server: int, operation: Ours) -> None:
        self.ours(server, [operation])

    @rule(server=servers)
    def ask_for_all(self, server: int) -> None:
        self.ours(server, [Ours(forms.CONTAINS, MESSAGES, len(MESSAGES))])

    @rule(server=servers, operations=st.lists(usual, min_size=2, max_size=5))
    def do_several(self, server: int, operations: list[Ours]) -> None:
        self.ours(server, operations)

    @rule(server=servers, operations=st.lists(anything, min_size=1, max_size=5))
    def do_anything(self, server: int, operations: list[Ours]) -> None:
        self.ours(server, operations)

    def ours(self, server: int, operations: list[Ours]) -> None:
        state = read_state(self.direct)
        expected: list[Any] = []
        deleted = False
        for operation in operations:
            try:
                results = operation.expected(state, self.world.names[server], self.world.MADE_WITH[server])
            except PressureError as error:
                expected.append(type(error))
            else:
                expected.append(simplified(results))
            deleted = deleted or operation.form is forms.DELETE
        if deleted and self.native:
            self.torn = True
        ended = self.world.submit(server, QUEUE, operations)
        got = [type(o.error) if o.error else simplified(o.results) for o in ended]
        for operation, is_, should_be in zip(operations, got, expected, strict=True):
            assert is_ == should_be, f"{operation}: {is_} should be {should_be}"
        self.state = read_state(self.direct)
        assert self.state == state
        if operations[-1].form is forms.DELETE and expected[-1] == [1]:
            assert not self.direct.keys(f"{BASE}*")

    # Native clients

    def _begin(self, what: str, name: str, message: bytes, bound: int) -> Native:
        steps = NativeSteps(self.direct, QUEUE, name)
        operations: dict[str, Callable[[], Steps[Any]]] = {
            "put": lambda: steps.put(message),
            "put_nb": lambda: steps.put_non_blocking(message),
            "get": steps.get,
            "get_nb": steps.get_non_blocking,
            "create": lambda: steps.create(bound),
            "close": steps.close,
            "delete": steps.delete,
        }
        native = Native(what, operations[what]())
        self.native.append(native)
        return native

    def _advance(self, native: Native) -> None:
        before = self.state
        try:
            native.waits_for = next(native.steps)
        except (StopIteration, NativeError):
            self.native.remove(native)
        after = self.state = read_state(self.direct)
        if after.not_full > 1 or (after.not_full > before.not_full and not after.has_room):
            self.excused = True
        if self.native and after != before and native.what in ("create", "delete"):
            self.torn = self.torn or native.what == "delete" or (after.leftovers and len(self.native) > 1)

    def _finish(self, native: Native) -> None:
        while native in self.native:
            self._advance(native)
            if native.waits_for is not None:
                return

    @precondition(lambda self: len(self.native) < MOST_NATIVE)
    @rule(
        what=native_kinds,
        name=st.sampled_from(NATIVE_NAMES),
        message=messages,
        bound=st.integers(0, 3),
        count=st.integers(1, 12),
    )
    def begin_native(self, what: str, name: str, message: bytes, bound: int, count: int) -> None:
        self._begin(what, name, message, bound)
        self.step_native(-1, count)

    @precondition(lambda self: self.native)
    @rule(which=st.integers(0, MOST_NATIVE - 1), count=st.integers(1, 6))
    def step_native(self, which: int, count: int) -> None:
        native = self.native[which % len(self.native)]
        for _ in range(count):
            if native in self.native:
                self._advance(native)

    @precondition(lambda self: self.native)
    @rule(which=st.integers(0, MOST_NATIVE - 1))
    def finish_native(self, which: int) -> None:
        self._finish(self.native[which % len(self.native)])

    @precondition(lambda self: self.native)
    @rule()
    def finish_all_native(self) -> None:
        for _ in range(3):
            for native in list(self.native):
                self._finish(native)

    @precondition(lambda self: len(self.native) < MOST_NATIVE)
    @rule(what=common_native_kinds, name=st.sampled_from(NATIVE_NAMES), contents=several)
    def do_native(self, what: str, name: str, contents: list[bytes]) -> None:
        for message in contents:
            if len(self.native) < MOST_NATIVE:
                self._finish(self._begin(what, name, message, 0))

    @precondition(lambda self: self.torn and not any(n.waits_for is None for n in self.native))
    @rule()
    def clean_up(self) -> None:
        """Somebody sees to what the protocol's flaws have left, and does not know of our keys."""
        self.native.clear()
        self.direct.delete(*[BASE + suffix for suffix in PROTOCOL])
        self.state = read_state(self.direct)

    # What must always be so

    @invariant()
    def tokens_and_statistics_are_right_when_nobody_is_half_way(self) -> None:
        if self.native:
            return
        state = self.state
        if state.bound is None:
            self.torn = self.torn and state.leftovers
            self.excused = False
            return
        if state.not_full == (1 if state.has_room else 0):
            self.excused = False
        if self.torn:
            return
        assert (state.producer_free, state.consumer_free) == (1, 1)
        assert self.excused or state.not_full == (1 if state.has_room else 0)
        produced, produced_bytes, consumed, consumed_bytes = state.stats
        assert produced - consumed == len(state.messages)
        assert produced_bytes - consumed_bytes == sum(map(len, state.messages))

    @invariant()
    def the_mirror_answers_exactly(self) -> None:
        """Asked of a copy of the keys, because a question may change the mirror."""
        state = self.state
        if state.bound is None:
            return
        pipeline: Any = self.direct.pipeline(transaction=False)
        pipeline.delete(*[CLONE_BASE + suffix for suffix in PROTOCOL + EXTENSION])
        for suffix in PROTOCOL + EXTENSION:
            pipeline.copy(BASE + suffix, CLONE_BASE + suffix)
        pipeline.execute()
        self.turn = 1 - self.turn
        question = Ours(forms.CONTAINS, MESSAGES, len(MESSAGES))
        answer = self.world.submit(self.turn, CLONE, [question])[0]
        assert answer.error is None
        truth = [1 if message in state.messages else 0 for message in MESSAGES]
        assert answer.results == truth, f"{answer.results} should be {truth}: {state.messages}"


@pytest.fixture
def make_world(backend: Valkey) -> Iterator[Callable[[dict[bytes, int]], World]]:
    worlds: list[World] = []

    def make(constants: dict[bytes, int]) -> World:
        worlds.append(World(backend, constants))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("constants", [{}, SMALL], ids=["usual", "small"])
def test_native_clients_and_ours_in_any_order(
    make_world: Callable[[dict[bytes, int]], World], constants: dict[bytes, int]
) -> None:
    world = make_world(constants)
    machine: Any = lambda: QueueMachine(world)  # noqa: E731 # the type that is asked for is a class
    run_state_machine_as_test(
        machine,
        settings=SETTINGS,
    )


# Examples

LARGE = 5000


def one(world: World, form: Form, *arguments: bytes, size: int | None = None, server: int = 0) -> Any:
    """The results of one operation, or the class of its error."""
    size = len(arguments) if size is None else size
    operation = world.submit(server, QUEUE, [Ours(form, list(arguments), size)])[0]
    return type(operation.error) if operation.error else simplified(operation.results)


@pytest.fixture(params=[{}, SMALL], ids=["usual", "small"])
def world(make_world: Callable[[dict[bytes, int]], World], request: pytest.FixtureRequest) -> World:
    return make_world(request.param)


@pytest.fixture
def native(direct: redis.Redis) -> NativeClient:
    return NativeClient(direct, QUEUE, "native")


def test_what_sadd_leaves_in_the_backend(client: redis.Redis, direct: redis.Redis) -> None:
    assert client.sadd("q", "hello") == 1
    assert direct.lrange(BASE, 0, -1) == [b"hello"]
    assert direct.get(f"{BASE}:bound") == b"0"
    assert b"pressure-server" in (direct.get(f"{BASE}:producer") or b"")
    assert [direct.llen(BASE + token) for token in (":producer_free", ":consumer_free", ":not_full")] == [
        1,
        1,
        1,
    ]
    assert [direct.get(BASE + suffix) for suffix in STATS] == [b"1", b"5", None, None]
    keys = {f"{BASE}{suffix}" for suffix in PROTOCOL if suffix not in (":consumer", ":closed", *STATS[2:])}
    found: Any = direct.keys(f"{BASE}*")
    present = {key.decode() for key in found}
    assert {key for key in present if ":ext:" not in key} == keys


def test_messages_pass_between_a_set_and_a_native_client(client: redis.Redis, native: NativeClient) -> None:
    client.sadd("q", "x")
    assert native.get() == b"x"
    assert client.sismember("q", "x") == 0
    native.put(b"y")
    assert client.sismember("q", "y") == 1
    assert client.scard("q") == 1
    assert client.sadd("q", "y", "z") == 1
    assert client.spop("q") == b"y"
    assert native.get_non_blocking() == b"z"
    assert native.get_non_blocking() is None
    assert client.spop("q") is None


def test_what_a_native_client_deleted_is_not_in_the_set(client: redis.Redis, native: NativeClient) -> None:
    client.sadd("q", "x", "y")
    native.delete()
    assert client.scard("q") == 0
    native.create(2)
    native.put(b"y")
    assert client.smismember("q", ["x", "y"]) == [0, 1]
    native.close()
    with pytest.raises(redis.ResponseError, match="CLOSED"):
        client.sadd("q", "z")
    assert client.delete("q") == 1
    with pytest.raises(native_client.QueueDoesNotExistError):
        native.put(b"z")


def native_puts(direct: redis.Redis, contents: list[bytes], name: str = "native") -> None:
    """What a native client leaves that has put them one by one: quicker, for many."""
    assert direct.rpop(f"{BASE}:producer_free") is not None
    direct.set(f"{BASE}:producer", name)
    direct.lpush(BASE, *contents)
    direct.incrby(f"{BASE}:stats:produced_messages", len(contents))
    direct.incrby(f"{BASE}:stats:produced_bytes", sum(map(len, contents)))
    direct.lpush(f"{BASE}:producer_free", 0)


def native_gets(direct: redis.Redis, count: int, name: str = "native") -> None:
    """What a native client leaves that has taken so many."""
    assert direct.rpop(f"{BASE}:consumer_free") is not None
    direct.set(f"{BASE}:consumer", name)
    taken: Any = direct.rpop(BASE, count)
    direct.incrby(f"{BASE}:stats:consumed_messages", len(taken))
    direct.incrby(f"{BASE}:stats:consumed_bytes", sum(map(len, taken)))
    direct.lpush(f"{BASE}:consumer_free", 0)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def new_among(world: World, candidates: list[bytes]) -> int:
    return len(set(candidates) - set(read_state(world.direct).messages))


def assert_contains_is_exact(world: World, candidates: list[bytes]) -> None:
    queued = set(read_state(world.direct).messages)
    for server in (0, 1):
        assert one(world, forms.CONTAINS, *candidates, server=server) == [
            int(c in queued) for c in candidates
        ]


def test_a_large_queue_of_a_native_client_is_mirrored_slice_by_slice(
    make_world: Callable[[dict[bytes, int]], World], direct: redis.Redis
) -> None:
    world = make_world({b"SLICE": 300, b"SCAN": 20_000})
    assert one(world, forms.CREATE, b"0") == [1]
    native_puts(direct, numbered(0, LARGE))
    probes = numbered(0, LARGE + 1000)[::397]
    assert_contains_is_exact(world, probes)
    # Half of each lot is queued already.
    for first in range(LARGE - 500, LARGE + 500, 100):
        lot = numbered(first, first + 200)
        before = direct.llen(BASE)
        expected = new_among(world, lot)
        assert one(world, forms.ADD, *lot) == [expected]
        assert direct.llen(BASE) == before + expected
        assert_contains_is_exact(world, probes)
    assert one(world, forms.GET, size=LARGE + 600) == numbered(0, LARGE + 600)
    assert direct.scard(f"{BASE}:ext:members") == 0


@pytest.mark.parametrize("between", [1, 3, 999, 6000])
def test_native_puts_between_our_calls(world: World, direct: redis.Redis, between: int) -> None:
    one(world, forms.CREATE, b"0")
    one(world, forms.ADD, b"ours")
    for first in range(0, 3 * between, between):
        native_puts(direct, numbered(first, first + between))
        probes = [b"ours", b"none", *numbered(first, first + between)[:: max(1, between // 5)]]
        assert_contains_is_exact(world, probes)
        lot = [b"ours", b"%d" % first, b"new %d" % first]
        expected = new_among(world, lot)
        assert one(world, forms.ADD, *lot) == [expected]
        native_gets(direct, max(1, between // 2))
        assert_contains_is_exact(world, probes)


def test_what_native_consumers_took_does_not_stay_in_memory(world: World, direct: redis.Redis) -> None:
    one(world, forms.CREATE, b"0")
    largest = 0
    for first in range(0, 20_000, 500):
        one(world, forms.ADD, *numbered(first, first + 500))
        native_gets(direct, direct.llen(BASE))
        largest = max(largest, direct.scard(f"{BASE}:ext:members"))
    assert largest <= 3000
    one(world, forms.ADD, b"last")
    assert one(world, forms.GET, size=2) == [b"last"]
    assert_contains_is_exact(world, [b"last", b"19999"])


def test_our_delete_leaves_nothing(world: World, direct: redis.Redis, native: NativeClient) -> None:
    one(world, forms.ADD, b"a", server=0)
    one(world, forms.PUT, b"a", server=0)
    native.get()
    one(world, forms.CONTAINS, b"a")
    assert one(world, forms.DELETE) == [1]
    assert keys_left(direct) == []


def test_a_role_that_a_native_client_holds_is_not_taken(world: World, direct: redis.Redis) -> None:
    steps = NativeSteps(direct, QUEUE, "native")
    one(world, forms.CREATE, b"0")
    put = steps.put(b"theirs")
    step_until(put, lambda: direct.exists(f"{BASE}:producer") == 1)
    assert one(world, forms.PUT, b"ours") is QueueInUseError
    assert one(world, forms.ADD, b"ours") is QueueInUseError
    assert one(world, forms.GET, size=1) == []
    run(put)
    get = steps.get()
    step_until(get, lambda: direct.exists(f"{BASE}:consumer") == 1)
    assert one(world, forms.GET, size=1) is QueueInUseError
    assert one(world, forms.REMOVE, b"theirs") is QueueInUseError
    run(get)
    assert one(world, forms.GET, size=1) == []


def test_a_delete_that_meets_a_native_client_begins_and_is_finished_later(
    world: World, direct: redis.Redis
) -> None:
    one(world, forms.CREATE, b"0")
    get = NativeSteps(direct, QUEUE, "native").get()
    step_until(get, lambda: direct.exists(f"{BASE}:consumer") == 1)
    assert one(world, forms.DELETE) is QueueInUseError
    assert one(world, forms.EXISTS) == [0]
    assert one(world, forms.CREATE, b"0") is QueueInUseError
    with pytest.raises(native_client.QueueClosedError):
        run(get)
    assert one(world, forms.FINISH_DELETE) == [1]
    assert keys_left(direct) == []


# Found by the model


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_queue_that_a_native_client_is_creating_is_in_use(
    world: World, direct: redis.Redis, steps: int
) -> None:
    creating = NativeSteps(direct, QUEUE, "native").create(0)
    for _ in range(steps):
        next(creating)
    for form in (forms.PUT, forms.ADD):
        assert one(world, form, b"a") is QueueInUseError
    run(creating)
    assert one(world, forms.ADD, b"a") == [1]


def test_a_stale_message_that_is_asked_for_twice(world: World, native: NativeClient) -> None:
    one(world, forms.CREATE, b"0")
    one(world, forms.ADD, b"x")
    native.get()
    assert one(world, forms.CONTAINS, b"x", b"x") == [0, 0]


@pytest.mark.parametrize("form", [forms.PUT, forms.ADD])
def test_a_full_queue_stays_full_until_a_native_consumer_has_pushed_its_token(
    world: World, direct: redis.Redis, form: Form
) -> None:
    one(world, forms.CREATE, b"1")
    one(world, form, b"a")
    get = NativeSteps(direct, QUEUE, "native").get()
    step_until(get, lambda: direct.llen(BASE) == 0)
    assert one(world, form, b"b") == [QueueFullError]
    assert one(world, form, b"b") == [QueueFullError]
    run(get)
    assert one(world, form, b"b") == [1]
    assert direct.llen(f"{BASE}:not_full") == 0


def test_removing_nothing_gives_a_native_producer_no_second_token(world: World, direct: redis.Redis) -> None:
    one(world, forms.CREATE, b"2")
    one(world, forms.PUT, b"a")
    put = NativeSteps(direct, QUEUE, "native").put(b"b")
    step_until(put, lambda: direct.llen(f"{BASE}:not_full") == 0)
    assert one(world, forms.REMOVE, b"none") == [0]
    run(put)
    assert direct.llen(f"{BASE}:not_full") == 0


def test_a_queue_created_while_a_native_delete_is_half_way(world: World, direct: redis.Redis) -> None:
    one(world, forms.CREATE, b"0")
    one(world, forms.PUT, b"a")
    one(world, forms.PUT, b"b")
    one(world, forms.GET, size=1)
    one(world, forms.PUT, b"c")
    delete = NativeSteps(direct, QUEUE, "deleter").delete()
    step_until(delete, lambda: direct.exists(f"{BASE}:producer", f"{BASE}:consumer") == 0)
    create = NativeSteps(direct, QUEUE, "creator").create(0)
    step_until(create, lambda: direct.llen(f"{BASE}:consumer_free") == 1)
    # We are :consumer again, and stay it while the deleter takes the list away.
    assert one(world, forms.GET, size=1) == [b"b"]
    assert one(world, forms.CONTAINS, b"c") == [1]
    run(delete)
    run(create)
    run(NativeSteps(direct, QUEUE, "native").put(b"x"))
    assert_contains_is_exact(world, [b"c", b"x"])


def test_nothing_is_taken_from_a_queue_while_a_native_delete_is_half_way(
    client: Client, direct: Client
) -> None:
    client.sadd("q", "a", "b")
    delete = NativeSteps(direct, "q", "deleter").delete()
    step_until(delete, lambda: not direct.exists(f"{BASE}:bound"))
    for _ in delete:
        assert client.lmpop(1, "q", direction="LEFT") is None
        assert client.lmpop(2, "other", "q", direction="LEFT", count=2) is None
        assert client.blpop("q", timeout=0.001) is None
        assert client.blmove("q", "other", 0.001) is None
    wait_for(lambda: keys_left(direct) == [], "our keys to go, too")


@pytest.mark.parametrize("verb", ["produced", "consumed"])
@pytest.mark.parametrize("unit", ["messages", "bytes"])
def test_a_statistic_that_is_no_number_is_in_nobody_s_way(
    client: Client, direct: Client, verb: str, unit: str
) -> None:
    client.sadd("q", "a", "b")
    client.spop("q")
    direct.set(f"__pressure__:q:stats:{verb}_{unit}", "12x")
    assert client.sadd("q", "c", "d") == 2
    assert client.rpush("q", "e") == 4
    assert client.spop("q") == b"b"
    assert client.lpop("q", 2) == [b"c", b"d"]
    assert client.sismember("q", "e") == 1
    assert client.delete("q") == 1
    wait_for(lambda: keys_left(direct) == [], "our keys to go, too")
