"""Operations of the server against native clients that are interrupted between any two of their commands.

The keys of the protocol are the truth. The reference queue (tests/support/reference) predicts, from the keys
before each operation, its results and the keys after it. The mirror must always answer exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
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

from pressure_server.errors import PressureError
from pressure_server.lua.scripts import library
from pressure_server.queues.database import Database
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.owners import CoroutineOwner
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.queues.operations.queue_options import OVERWRITE
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.policy import Policy
from tests.model.keys import STATISTICS, ask_for_queue, fields_of_queue
from tests.model.model_settings import model_settings
from tests.support import forms
from tests.support import native as native_client
from tests.support.brokers import default_broker
from tests.support.forms import Form
from tests.support.native import NativeClient, NativeError, NativeSteps, Steps, run, step_until
from tests.support.programs import Client, Valkey, keys_left, wait_for
from tests.support.reference.queue import BLOCK, ERROR, Counters, Queue, RefusedError, Tokens, require
from tests.support.small_library import SMALL, with_constants

# The last fields of QueueInfo, of a queue that is created without options.
_NO_SETTINGS = (b"", 0, 0, 0, 0, b"", 0)
SETTINGS = settings(
    model_settings("PRESSURE_MODEL_EXAMPLES", 60),
    stateful_step_count=50,
    phases=[Phase.generate, Phase.shrink],
)
QUEUE, CLONE = "q", "clone"
BASE, CLONE_BASE = f"__pressure__:{QUEUE}", f"__pressure__:{CLONE}"
PROTOCOL = [
    "", ":bound", ":producer", ":consumer", ":producer_free", ":consumer_free", ":not_full", ":closed",
    *STATISTICS,
]  # fmt: skip
EXTENSION = [":ext:members", ":ext:copies", ":ext:index", ":ext:settings"]
# Only a few, so that they repeat.
MESSAGES = [b"", b"a", b"bb", b"c c", b"\xff\r\n\x00", b"eeeee"]
# Two clients may have the same name; a name may contain spaces.
NATIVE_NAMES = ["native-1", "native-2", "host 3 0 us"]
MAX_NATIVE = 4


@dataclass
class State(Queue):
    """The protocol's keys of a queue; some may be left when it does not exist."""

    has_keys: bool = field(default=False, compare=False)

    @property
    def overwrites(self) -> bool:
        """Whether puts drop the oldest messages."""
        return self.overflow == OVERWRITE.decode()

    def create(self, bound: int, *, overwrites: bool = False) -> None:
        require(not self.exists, "EXISTS")
        require(not self.has_keys, "INUSE")
        overflow = OVERWRITE.decode() if overwrites else ERROR
        self._become(State(bound, overflow=overflow, producer=b"", consumer=b"", has_keys=True))

    def delete(self) -> None:
        tokens = self.tokens
        roles = (tokens.producer_free, tokens.consumer_free)
        if not self.exists:
            if not (self.messages or self.producer or self.consumer or any(roles)):
                self._become(absent())
            raise RefusedError("NOQUEUE")
        if not all(roles):
            # Like a native client's Delete before it waits for the roles.
            self.exists, self.bound = False, 0
            tokens.not_full += 1
            tokens.closed += 2
            raise RefusedError("INUSE")
        self._become(absent())

    def put_or_create(
        self, commands: list[list[bytes]], *, unique: bool, create_bound: int | None
    ) -> list[int | str]:
        if not self.exists and create_bound is not None:
            self.create(create_bound)
        return self.put_each(commands, unique=unique)

    def info(self) -> list[Any]:
        tokens, counters = self.tokens, self.counters
        return [
            [
                self.bound, self.length, int(self.is_closed),
                min(tokens.producer_free, 1), self.producer, min(tokens.consumer_free, 1), self.consumer,
                *statistics_of(counters), self.overflow.encode(),
                # A fifo: its ready messages, and the counts and settings of jobs.
                b"fifo", self.length, 0, 0, 0, 0, 0, b"", 0, b"", 0, counters.dropped,
                # No offsets and no groups: these are for logs.
                b"", b"", 0, b"", 0, 0,
            ]
        ]  # fmt: skip

    def _become(self, other: State) -> None:
        self.__dict__.update(vars(other), actor=self.actor)


def absent() -> State:
    """Return the state of a queue of which there are no keys."""
    return State(exists=False, producer=b"", consumer=b"", tokens=Tokens(0, 0, 0, 0))


def statistics_of(counters: Counters) -> list[int]:
    """Return the statistics in the order of STATISTICS."""
    return [counters.produced, counters.produced_bytes, counters.consumed, counters.consumed_bytes]


def read_state(direct: redis.Redis) -> State:
    """Read the keys."""
    pipeline: Any = direct.pipeline(transaction=False)
    ask_for_queue(pipeline, BASE)
    pipeline.exists(*[BASE + suffix for suffix in PROTOCOL])
    replies = iter(pipeline.execute())
    return State(**fields_of_queue(replies), has_keys=next(replies) > 0)


@dataclass
class Submission:
    """An operation that is submitted to a server."""

    form: Form
    arguments: list[bytes]
    size: int = 1
    commands: int = 1

    def __str__(self) -> str:
        return f"{self.form} {self.arguments}, {self.commands} commands of {self.size}"

    def expected(self, state: State, identity: bytes, create_bound: int | None) -> list[Any]:
        """Change the state as the operation must. Return its results; raise the error with which it ends."""
        words, state.actor = self.arguments, identity
        if self.form in (forms.PUT, forms.ADD):
            commands = [words[at : at + self.size] for at in range(0, len(words), self.size)]
            return state.put_or_create(commands, unique=self.form is forms.ADD, create_bound=create_bound)
        changes: dict[Form, Callable[[], None]] = {
            forms.CREATE: lambda: state.create(int(words[0]), overwrites=words[1] == OVERWRITE),
            forms.ALTER: lambda: state.alter(int(words[1])),
            forms.DELETE: state.delete,
            forms.CLOSE: state.close,
        }
        if self.form in changes:
            changes[self.form]()
            return [1]
        if self.form is forms.EXISTS:
            return [int(state.exists)]
        state.require_existing()
        operations: dict[Form, Callable[[], list[Any]]] = {
            forms.GET: lambda: state.take(self.size * self.commands),
            forms.REMOVE: lambda: state.remove(words),
            forms.CONTAINS: lambda: state.contains(words),
            forms.LENGTH: lambda: [state.length],
            forms.RANGE: lambda: [state.range(*map(int, words))],
            forms.INFO: state.info,
            forms.TAKE_EXISTING: state.get,
        }
        return operations[self.form]()

    def operation(self, queue: bytes, owner: Owner) -> Operation:
        return Operation(
            self.form.verb, queue, list(self.arguments), self.size, owner,
            commands=self.commands, wait=Wait(0), options=self.form.options,
        )  # fmt: skip


class Servers:
    """Two servers on one backend, without their sockets."""

    # The bound of a queue that a put creates; the second server creates none.
    CREATE_BOUNDS = (2, None)

    def __init__(self, backend: Valkey, constants: dict[bytes, int]) -> None:
        self.direct = backend.client()
        self.are_small = bool(constants)
        self.loop = asyncio.new_event_loop()
        self.brokers = [
            default_broker(backend.url, Policy(bound, ERROR, role_timeout=0)) for bound in self.CREATE_BOUNDS
        ]
        for broker in self.brokers:
            (of_shard,) = broker._backends
            of_shard.link = partial(of_shard.link, library=with_constants(library(), constants))
            self.loop.run_until_complete(broker.start())
        self.identities = [broker.identity.encode() for broker in self.brokers]
        self.databases: list[Database] = [broker.default_database for broker in self.brokers]

    def submit(self, server: int, queue: str, submissions: list[Submission]) -> list[Any]:
        """Do the operations, in one call if they fit. Return the outcome of each, as `outcome_of` does."""
        return self.loop.run_until_complete(self._submit(server, queue.encode(), submissions))

    async def _submit(self, server: int, queue: bytes, submissions: list[Submission]) -> list[Any]:
        owners = [CoroutineOwner(None) for _ in submissions]
        attempts = [
            self.databases[server].attempt(submission.operation(queue, owner), owner)
            for submission, owner in zip(submissions, owners, strict=True)
        ]
        return [outcome_of(results) for results in await asyncio.gather(*attempts)]

    def do(self, form: Form, *arguments: bytes, size: int | None = None, server: int = 0) -> Any:
        """Do one operation. Return its outcome."""
        size = len(arguments) if size is None else size
        return self.submit(server, QUEUE, [Submission(form, list(arguments), size)])[0]

    def close(self) -> None:
        for broker in self.brokers:
            self.loop.run_until_complete(broker.close())
        # The transports close in the next iteration.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.direct.close()


def outcome_of(results: Iterable[Any] | PressureError) -> Any:
    """Return the code of an error; or the results, with codes in place of errors."""
    if isinstance(results, PressureError):
        return results.code
    return [result.code if isinstance(result, PressureError) else result for result in results]


@dataclass(eq=False)
class NativeOperation:
    """A native operation that has begun; it may wait for a key."""

    kind: str
    steps: Steps[Any]
    waits_for: str | None = None


messages = st.sampled_from(MESSAGES)
several = st.lists(messages, min_size=1, max_size=8)


def _one_or_many_commands(form: Form) -> st.SearchStrategy[Submission]:
    """Messages of one command, or as many commands of one message."""
    return st.builds(
        lambda words, apart: Submission(form, words, 1 if apart else len(words), len(words) if apart else 1),
        several,
        st.booleans(),
    )


def _creation(bound: int, overwrites: bool) -> Submission:
    return Submission(forms.CREATE, [b"%d" % bound, OVERWRITE if overwrites else b"", b""])


reads = st.one_of(
    st.builds(lambda words: Submission(forms.CONTAINS, words, len(words)), several),
    st.just(Submission(forms.LENGTH, [])),
    st.just(Submission(forms.INFO, [])),
    st.just(Submission(forms.EXISTS, [])),
    st.builds(
        lambda first, more: Submission(forms.RANGE, [b"%d" % first, b"%d" % (first + more if more else -1)]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)
READ_ALL = Submission(forms.CONTAINS, MESSAGES, len(MESSAGES))
gets = st.builds(Submission, st.just(forms.GET), st.just([]), st.integers(1, 5), st.integers(1, 2))
removals = st.builds(
    lambda words: Submission(forms.REMOVE, words, len(words)), st.lists(messages, min_size=1, max_size=3)
)
bounds = st.sampled_from([0, 0, 1, 2, 3, 6])
creations = st.builds(_creation, bounds, st.booleans())
rings = st.builds(_creation, st.integers(1, 3), st.just(True))
alterations = st.builds(lambda bound: Submission(forms.ALTER, [b"bound", b"%d" % bound]), bounds)
deletions = st.just(Submission(forms.DELETE, []))
closings = st.just(Submission(forms.CLOSE, []))
takes = st.just(Submission(forms.TAKE_EXISTING, []))
puts = st.one_of(_one_or_many_commands(forms.ADD), _one_or_many_commands(forms.PUT))
usual = st.one_of(puts, puts, gets, gets, removals, reads)
anything = st.one_of(usual, usual, usual, creations, alterations, deletions, closings)
server_numbers = st.integers(0, 1)
native_names = st.sampled_from(NATIVE_NAMES)
native_kinds = st.sampled_from(
    [
        "put",
        "put",
        "put_non_blocking",
        "put_non_blocking",
        "get",
        "get_non_blocking",
        "get_non_blocking",
        "create",
        "close",
        "delete",
    ]
)
usual_native_kinds = st.sampled_from(["put", "put_non_blocking", "get", "get_non_blocking"])


class QueueMachine(RuleBasedStateMachine):
    """One queue, two servers, and up to four unfinished native operations."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self.servers = servers
        self.direct = servers.direct
        self.direct.flushdb()
        self.native: list[NativeOperation] = []
        # A native Delete or Create has met other operations, or a server's Delete has met native ones: the
        # protocol then promises nothing for tokens and statistics, until all keys are gone.
        self.is_undefined = False
        # A native consumer pushes :not_full some time after its pop, so native clients alone can leave a
        # token on a full queue. It is tolerated until the tokens are right again.
        self.tolerates_token = False
        self.turn = 0
        # Read again after every change.
        self.state = read_state(self.direct)

    # Operations of the servers

    @initialize(creation=st.one_of(st.none(), creations, creations, rings), server=server_numbers)
    def begin(self, creation: Submission | None, server: int) -> None:
        if creation is not None:
            self.submit(server, [creation])

    def submit(self, server: int, submissions: list[Submission]) -> None:
        """Do the operations. Check their outcomes and the keys against the model."""
        state = read_state(self.direct)
        if state.overwrites:
            submissions = submissions[:1]  # neighbours become one run, which is refused as a whole
            first = submissions[0]
            if first.form is forms.ALTER and 0 < int(first.arguments[1]) < len(state.messages):
                return  # a put drops what is above the bound, if need be in a call before it is decided
            if first.form is forms.ADD and self.servers.are_small:
                # It is decided in portions, each when those before it have dropped others.
                submissions = [Submission(forms.ADD, first.arguments[:1])]
        identity, create_bound = self.servers.identities[server], self.servers.CREATE_BOUNDS[server]
        expected: list[Any] = []
        for number, submission in enumerate(submissions, 1):
            try:
                expected.append(submission.expected(state, identity, create_bound))
            except RefusedError as error:
                expected.append(str(error))
                if submission.form is forms.DELETE and expected[-1] == "INUSE":
                    submissions = submissions[:number]  # operations after it may finish the Delete
                    break
        if self.native and any(submission.form is forms.DELETE for submission in submissions):
            self.is_undefined = True
        found = self.servers.submit(server, QUEUE, submissions)
        # A server that has much of the mirror to make notes itself as the producer, even if nothing fits.
        adds = any(submission.form is forms.ADD for submission in submissions)
        for submission, is_, should_be in zip(submissions, found, expected, strict=True):
            if submission.form is forms.INFO and isinstance(is_, list):
                should_be = [QueueInfo(*[*should_be[0], *_NO_SETTINGS])]
                if adds and is_[0].producer == identity:
                    should_be = [should_be[0]._replace(producer=identity)]
            assert is_ == should_be, f"{submission}: {is_} should be {should_be}"
        self.state = read_state(self.direct)
        if not state.exists:
            state.overflow, state.counters.dropped = ERROR, 0
        if adds and state.bound and self.state.producer == identity:
            state.producer = identity
        is_never_full = state.exists and not state.bound
        tokens, found_tokens = state.tokens, self.state.tokens
        if (is_never_full or self.is_undefined) and tokens.not_full and found_tokens.not_full:
            # A second token does no harm to a queue that is never full; native Deletes push one.
            tokens.not_full = found_tokens.not_full
        assert self.state == state
        if submissions[-1].form is forms.DELETE and expected[-1] == [1]:
            assert not self.direct.keys(f"{BASE}*")

    def submit_one(self, server: int, submission: Submission) -> None:
        self.submit(server, [submission])

    put = rule(server=server_numbers, submission=puts)(submit_one)
    get = rule(server=server_numbers, submission=st.one_of(gets, gets, takes))(submit_one)
    remove = rule(server=server_numbers, submission=removals)(submit_one)
    read = rule(server=server_numbers, submission=reads)(submit_one)
    read_all = rule(server=server_numbers, submission=st.just(READ_ALL))(submit_one)
    do_several = rule(server=server_numbers, submissions=st.lists(usual, min_size=2, max_size=5))(submit)
    do_anything = rule(server=server_numbers, submissions=st.lists(anything, min_size=1, max_size=5))(submit)

    # Native clients

    def _begin(self, kind: str, name: str, message: bytes, bound: int) -> NativeOperation:
        steps = NativeSteps(self.direct, QUEUE, name)
        native = NativeOperation(kind, steps.begin(kind, message, bound))
        self.native.append(native)
        return native

    def _advance(self, native: NativeOperation) -> None:
        before = self.state
        try:
            native.waits_for = next(native.steps)
        except (StopIteration, NativeError):
            self.native.remove(native)
        after = self.state = read_state(self.direct)
        # It has pushed a token for a full queue, or filled a queue that had another one's token.
        tokens = after.tokens.not_full
        has_left_token = not after.has_room and tokens > (0 if before.has_room else before.tokens.not_full)
        if tokens > 1 or has_left_token:
            self.tolerates_token = True
        if self.native and after != before and native.kind in ("create", "delete"):
            meets_others = native.kind == "delete" or (after.has_keys and len(self.native) > 1)
            self.is_undefined = self.is_undefined or meets_others

    def _finish(self, native: NativeOperation) -> None:
        """Let the operation go on until it ends or waits."""
        while native in self.native:
            self._advance(native)
            if native.waits_for is not None:
                return

    @precondition(lambda self: len(self.native) < MAX_NATIVE)
    @rule(
        kind=native_kinds,
        name=native_names,
        message=messages,
        bound=st.integers(0, 3),
        count=st.integers(1, 12),
    )
    def begin_native(self, kind: str, name: str, message: bytes, bound: int, count: int) -> None:
        self._begin(kind, name, message, bound)
        self.step_native(-1, count)

    @precondition(lambda self: self.native)
    @rule(which=st.integers(0, MAX_NATIVE - 1), count=st.integers(1, 6))
    def step_native(self, which: int, count: int) -> None:
        native = self.native[which % len(self.native)]
        for _ in range(count):
            if native in self.native:
                self._advance(native)

    @precondition(lambda self: self.native)
    @rule(which=st.integers(0, MAX_NATIVE - 1))
    def finish_native(self, which: int) -> None:
        self._finish(self.native[which % len(self.native)])

    @precondition(lambda self: self.native)
    @rule()
    def finish_all_native(self) -> None:
        for _ in range(3):
            for native in list(self.native):
                self._finish(native)

    @precondition(lambda self: len(self.native) < MAX_NATIVE)
    @rule(kind=usual_native_kinds, name=native_names, contents=several)
    def do_native(self, kind: str, name: str, contents: list[bytes]) -> None:
        for message in contents:
            if len(self.native) < MAX_NATIVE:
                self._finish(self._begin(kind, name, message, 0))

    @precondition(lambda self: self.is_undefined and not any(n.waits_for is None for n in self.native))
    @rule()
    def clean_up(self) -> None:
        """Delete the protocol's keys only, like an operator who does not know the extension keys."""
        self.native.clear()
        self.direct.delete(*[BASE + suffix for suffix in PROTOCOL])
        self.state = read_state(self.direct)

    # Invariants

    @invariant()
    def tokens_and_statistics_are_right_when_no_native_operation_is_unfinished(self) -> None:
        if self.native:
            return
        state = self.state
        if not state.exists:
            self.is_undefined = self.is_undefined and state.has_keys
            self.tolerates_token = False
            return
        tokens, counters, has_room = state.tokens, state.counters, int(state.has_room)
        if tokens.not_full == has_room:
            self.tolerates_token = False
        if self.is_undefined:
            return
        assert (tokens.producer_free, tokens.consumer_free) == (1, 1)
        assert self.tolerates_token or tokens.not_full == has_room
        assert counters.produced - counters.consumed == state.length
        assert counters.produced_bytes - counters.consumed_bytes == sum(map(len, state.messages))

    @invariant()
    def the_mirror_answers_exactly(self) -> None:
        """Ask a copy of the queue, because a read may change the mirror."""
        state = self.state
        if not state.exists:
            return
        pipeline: Any = self.direct.pipeline(transaction=False)
        pipeline.delete(*[CLONE_BASE + suffix for suffix in PROTOCOL + EXTENSION])
        for suffix in PROTOCOL + EXTENSION:
            pipeline.copy(BASE + suffix, CLONE_BASE + suffix)
        pipeline.execute()
        self.turn = 1 - self.turn
        (found,) = self.servers.submit(self.turn, CLONE, [READ_ALL])
        queued = state.contains(MESSAGES)
        assert found == queued, f"{found} should be {queued}: {state.messages}"


MakeServers = Callable[[dict[bytes, int]], Servers]


@pytest.fixture
def make_servers(backend: Valkey) -> Iterator[MakeServers]:
    started: list[Servers] = []

    def make(constants: dict[bytes, int]) -> Servers:
        started.append(Servers(backend, constants))
        return started[-1]

    yield make
    for servers in started:
        servers.close()


@pytest.fixture(params=[{}, SMALL], ids=["usual", "small"])
def servers(make_servers: MakeServers, request: pytest.FixtureRequest) -> Servers:
    return make_servers(request.param)


@pytest.fixture
def native(direct: redis.Redis) -> NativeClient:
    return NativeClient(direct, QUEUE, "native")


@pytest.fixture
def native_steps(direct: redis.Redis) -> NativeSteps:
    return NativeSteps(direct, QUEUE, "native")


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_servers_and_native_clients_act_in_any_order(servers: Servers) -> None:
    machine: Any = lambda: QueueMachine(servers)  # noqa: E731 # the parameter's type is a class
    run_state_machine_as_test(machine, settings=SETTINGS)


# Examples

LARGE = 5000


def test_sadd_writes_the_keys_of_the_protocol(client: redis.Redis, direct: redis.Redis) -> None:
    assert client.sadd("q", "hello") == 1
    state = read_state(direct)
    assert b"pressure-server" in state.producer
    state.producer = b""
    assert state == State(0, [b"hello"], BLOCK, producer=b"", consumer=b"", counters=Counters(1, 5))
    found: Any = direct.keys(f"{BASE}*")
    absent = (":consumer", ":closed", *STATISTICS[2:])
    assert {key for key in map(bytes.decode, found) if ":ext:" not in key} == {
        f"{BASE}{suffix}" for suffix in PROTOCOL if suffix not in absent
    }


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


def test_a_set_forgets_a_queue_that_a_native_client_deletes(
    client: redis.Redis, native: NativeClient
) -> None:
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


def native_puts(direct: redis.Redis, contents: list[bytes]) -> None:
    """Write what a native client leaves after it has put the messages one by one; this is faster."""
    direct.lpush(BASE, *contents)
    _sign_natively(direct, "producer", ":stats:produced", contents)


def native_gets(direct: redis.Redis, count: int) -> None:
    """Take messages, and write what a native client leaves after that."""
    taken: Any = direct.rpop(BASE, count)
    _sign_natively(direct, "consumer", ":stats:consumed", taken)


def _sign_natively(direct: redis.Redis, role: str, statistic: str, contents: list[bytes]) -> None:
    assert direct.llen(f"{BASE}:{role}_free") == 1
    direct.set(f"{BASE}:{role}", "native")
    direct.incrby(f"{BASE}{statistic}_messages", len(contents))
    direct.incrby(f"{BASE}{statistic}_bytes", sum(map(len, contents)))


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def assert_contains_is_exact(servers: Servers, candidates: list[bytes]) -> None:
    queued = set(read_state(servers.direct).messages)
    for server in (0, 1):
        found = servers.do(forms.CONTAINS, *candidates, server=server)
        assert found == [int(candidate in queued) for candidate in candidates]


def assert_add_is_exact(servers: Servers, candidates: list[bytes]) -> None:
    new = len(set(candidates) - set(read_state(servers.direct).messages))
    before = servers.direct.llen(BASE)
    assert servers.do(forms.ADD, *candidates) == [new]
    assert servers.direct.llen(BASE) == before + new


def test_a_large_queue_of_a_native_client_is_mirrored_slice_by_slice(
    make_servers: MakeServers, direct: redis.Redis
) -> None:
    servers = make_servers({b"SLICE": 300, b"SCAN": 20_000})
    assert servers.do(forms.CREATE, b"0") == [1]
    native_puts(direct, numbered(0, LARGE))
    probes = numbered(0, LARGE + 1000)[::397]
    assert_contains_is_exact(servers, probes)
    # Half of each batch is queued already.
    for first in range(LARGE - 500, LARGE + 500, 100):
        assert_add_is_exact(servers, numbered(first, first + 200))
        assert_contains_is_exact(servers, probes)
    assert servers.do(forms.GET, size=LARGE + 600) == numbered(0, LARGE + 600)
    assert direct.scard(f"{BASE}:ext:members") == 0


@pytest.mark.parametrize("between", [1, 3, 999, 6000])
def test_the_mirror_follows_native_puts_and_gets(servers: Servers, direct: redis.Redis, between: int) -> None:
    servers.do(forms.CREATE, b"0")
    servers.do(forms.ADD, b"own")
    for first in range(0, 3 * between, between):
        native_puts(direct, numbered(first, first + between))
        probes = [b"own", b"none", *numbered(first, first + between)[:: max(1, between // 5)]]
        assert_contains_is_exact(servers, probes)
        assert_add_is_exact(servers, [b"own", b"%d" % first, b"new %d" % first])
        native_gets(direct, max(1, between // 2))
        assert_contains_is_exact(servers, probes)


def test_the_mirror_forgets_messages_that_native_clients_take(servers: Servers, direct: redis.Redis) -> None:
    servers.do(forms.CREATE, b"0")
    largest = 0
    for first in range(0, 20_000, 500):
        servers.do(forms.ADD, *numbered(first, first + 500))
        native_gets(direct, direct.llen(BASE))
        largest = max(largest, direct.scard(f"{BASE}:ext:members"))
    assert largest <= 3000
    servers.do(forms.ADD, b"last")
    assert servers.do(forms.GET, size=2) == [b"last"]
    assert_contains_is_exact(servers, [b"last", b"19999"])


def test_a_delete_leaves_no_key(servers: Servers, direct: redis.Redis, native: NativeClient) -> None:
    servers.do(forms.ADD, b"a")
    servers.do(forms.PUT, b"a")
    native.get()
    servers.do(forms.CONTAINS, b"a")
    assert servers.do(forms.DELETE) == [1]
    assert keys_left(direct) == []


def test_a_role_that_a_native_client_holds_is_not_taken(
    servers: Servers, direct: redis.Redis, native_steps: NativeSteps
) -> None:
    servers.do(forms.CREATE, b"0")
    put = native_steps.put(b"native")
    step_until(put, lambda: direct.exists(f"{BASE}:producer") == 1)
    assert servers.do(forms.PUT, b"own") == "INUSE"
    assert servers.do(forms.ADD, b"own") == "INUSE"
    assert servers.do(forms.GET, size=1) == []
    run(put)
    get = native_steps.get()
    step_until(get, lambda: direct.exists(f"{BASE}:consumer") == 1)
    assert servers.do(forms.GET, size=1) == "INUSE"
    assert servers.do(forms.REMOVE, b"native") == "INUSE"
    run(get)
    assert servers.do(forms.GET, size=1) == []


def test_a_delete_that_meets_a_native_client_begins_and_is_finished_later(
    servers: Servers, direct: redis.Redis, native_steps: NativeSteps
) -> None:
    servers.do(forms.CREATE, b"0")
    get = native_steps.get()
    step_until(get, lambda: direct.exists(f"{BASE}:consumer") == 1)
    assert servers.do(forms.DELETE) == "INUSE"
    assert servers.do(forms.EXISTS) == [0]
    assert servers.do(forms.CREATE, b"0") == "INUSE"
    with pytest.raises(native_client.QueueClosedError):
        run(get)
    assert servers.do(forms.FINISH_DELETE) == [1]
    assert keys_left(direct) == []


# Found by the state machine


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_queue_that_a_native_client_is_creating_is_in_use(
    servers: Servers, native_steps: NativeSteps, steps: int
) -> None:
    creating = native_steps.create(0)
    for _ in range(steps):
        next(creating)
    for form in (forms.PUT, forms.ADD):
        assert servers.do(form, b"a") == "INUSE"
    run(creating)
    assert servers.do(forms.ADD, b"a") == [1]


def test_a_message_taken_by_a_native_client_may_be_asked_for_twice(
    servers: Servers, native: NativeClient
) -> None:
    servers.do(forms.CREATE, b"0")
    servers.do(forms.ADD, b"x")
    native.get()
    assert servers.do(forms.CONTAINS, b"x", b"x") == [0, 0]


@pytest.mark.parametrize("form", [forms.PUT, forms.ADD])
def test_a_full_queue_stays_full_until_a_native_consumer_has_pushed_its_token(
    servers: Servers, direct: redis.Redis, native_steps: NativeSteps, form: Form
) -> None:
    servers.do(forms.CREATE, b"1")
    servers.do(form, b"a")
    get = native_steps.get()
    step_until(get, lambda: direct.llen(BASE) == 0)
    assert servers.do(form, b"b") == ["FULL"]
    assert servers.do(form, b"b") == ["FULL"]
    run(get)
    assert servers.do(form, b"b") == [1]
    assert direct.llen(f"{BASE}:not_full") == 0


def test_a_removal_of_nothing_pushes_no_second_token(
    servers: Servers, direct: redis.Redis, native_steps: NativeSteps
) -> None:
    servers.do(forms.CREATE, b"2")
    servers.do(forms.PUT, b"a")
    put = native_steps.put(b"b")
    step_until(put, lambda: direct.llen(f"{BASE}:not_full") == 0)
    assert servers.do(forms.REMOVE, b"none") == [0]
    run(put)
    assert direct.llen(f"{BASE}:not_full") == 0


def test_a_queue_created_during_a_native_delete_has_an_exact_mirror(
    servers: Servers, direct: redis.Redis, native_steps: NativeSteps
) -> None:
    servers.do(forms.CREATE, b"0")
    servers.do(forms.PUT, b"a")
    servers.do(forms.PUT, b"b")
    servers.do(forms.GET, size=1)
    servers.do(forms.PUT, b"c")
    delete = NativeSteps(direct, QUEUE, "deleter").delete()
    step_until(delete, lambda: direct.exists(f"{BASE}:producer", f"{BASE}:consumer") == 0)
    create = NativeSteps(direct, QUEUE, "creator").create(0)
    step_until(create, lambda: direct.llen(f"{BASE}:consumer_free") == 1)
    # The server becomes :consumer again, and stays it when the list is deleted.
    assert servers.do(forms.GET, size=1) == [b"b"]
    assert servers.do(forms.CONTAINS, b"c") == [1]
    run(delete)
    run(create)
    run(native_steps.put(b"x"))
    assert_contains_is_exact(servers, [b"c", b"x"])


def test_nothing_is_taken_from_a_queue_during_a_native_delete(
    client: Client, direct: Client, native_steps: NativeSteps
) -> None:
    client.sadd("q", "a", "b")

    def is_watched() -> bool:
        is_up = bool(direct.info("stats")["tracking_total_keys"])
        client.scard("q")
        return is_up

    # The watch reconnects after the backend was flushed; until then the server would not notice the delete.
    # It watches another key first, so only a question that comes later makes it watch the queue for certain.
    wait_for(is_watched, "the server to watch the queue")
    delete = native_steps.delete()
    step_until(delete, lambda: not direct.exists(f"{BASE}:bound"))
    for _ in delete:
        assert client.lmpop(1, "q", direction="LEFT") is None
        assert client.lmpop(2, "other", "q", direction="LEFT", count=2) is None
        assert client.blpop("q", timeout=0.001) is None
        assert client.blmove("q", "other", 0.001) is None
    wait_for(lambda: keys_left(direct) == [], "the extension keys to be deleted")


@pytest.mark.parametrize("suffix", STATISTICS)
def test_an_invalid_statistic_does_not_stop_operations(client: Client, direct: Client, suffix: str) -> None:
    client.sadd("q", "a", "b")
    client.spop("q")
    direct.set(BASE + suffix, "12x")
    assert client.sadd("q", "c", "d") == 2
    assert client.rpush("q", "e") == 4
    assert client.spop("q") == b"b"
    assert client.lpop("q", 2) == [b"c", b"d"]
    assert client.sismember("q", "e") == 1
    assert client.delete("q") == 1
    wait_for(lambda: keys_left(direct) == [], "the extension keys to be deleted")
