"""Marks, which are the flags and expiry of messages: compared with a model, and with native clients at work.

Native clients neither write nor read marks.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from pressure_server.errors import BackendError, QueueDoesNotExistError, QueueFullError
from pressure_server.queues.broker import Broker
from pressure_server.queues.calls.direct import recover
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import flags_of
from pressure_server.queues.operations.jobs import attached, claim
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.wait import Wait, WaitCondition
from tests.support import forms, scripts
from tests.support.brokers import default_broker
from tests.support.forms import Form
from tests.support.model_settings import model_settings
from tests.support.native import NativeClient, NativeSteps, step_until
from tests.support.programs import Client, Valkey, keys_left, wait_for
from tests.support.reference import queue as reference
from tests.support.reference.jobs import Job
from tests.support.reference.queue import Marked
from tests.support.reference.queues import Queues
from tests.support.scripts import RECORDS, Block, Run

BASE = "__pressure__:q"
MARKS = f"{BASE}:ext:marks"
LONG_PAST = b"1"
CLAIM = claim(attached(1))
SETTINGS = settings(model_settings("PRESSURE_MARKS_EXAMPLES", 60), stateful_step_count=40)
# Few, so that messages repeat; of every length that is stored differently.
CONTENTS = [b"", b"1", b"a\r\n\0 b", b"x" * 64, b"y" * 65, b"5 5 5"]
FLAGS = st.sampled_from([0, 1, 7, 2**32 - 1])


class Receiver:
    """A client that keeps the operations whose messages it has received."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def begin_wait(self, waiter: object, queues: Sequence[bytes]) -> None:
        pass

    def end_wait(self, waiter: object) -> None:
        pass

    def partly_taken(self, operation: Operation) -> None:
        pass

    def take_over(self, operation: Operation) -> None:
        self.operations.append(operation)


class Queue:
    """The queue `q`, used by its own broker; every method blocks until it is done."""

    def __init__(self, backend: Valkey, direct: Client) -> None:
        self.direct = direct
        self.native = NativeClient(direct, "q", "native-1")
        self._loop = asyncio.new_event_loop()
        self._broker = self.do(self._start(backend))
        self.receiver = Receiver()

    async def _start(self, backend: Valkey) -> Broker:
        broker = default_broker(backend.url)
        await broker.start()
        return broker

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def run(
        self, form: Form, *arguments: bytes, size: int = 1, client: Any = None, waits: bool = False
    ) -> Any:
        wait = Wait(0) if waits else None
        run = self._broker.default_database.run(
            form.verb, b"q", list(arguments), size, wait=wait, client=client, options=form.options
        )
        try:
            return self.do(run)
        except QueueDoesNotExistError:
            return []

    def recovered(self) -> int:
        """Recover as if the broker were dead. Return the number of messages that have come back."""
        (key,) = self.direct.keys("*!calls:*")
        self.direct.hset(key, "epoch", 0)
        _, _, _, back = self.do(recover(self._broker.default_database.shards[0], key))
        return sum(back.values())

    def put(self, message: bytes, flags: int, expires: bytes = b"0") -> None:
        self.run(forms.PUT_MARKED, b"%d %b %b" % (flags, expires, message))

    def get(self, count: int = 1) -> list[tuple[int, bytes]]:
        taken: list[bytes] = self.run(forms.GET_MARKED, size=count)
        return [with_flags(message) for message in taken]

    def open(self) -> list[tuple[int, bytes]]:
        taken: list[bytes] = self.run(forms.TAKE_OPENED, CLAIM, client=self.receiver, waits=True)
        return [(int(flags), message) for _, _, flags, _, message in (one.split(b" ", 4) for one in taken)]

    def settled(self) -> None:
        """Return when no call is in flight."""
        database = self._broker.default_database
        # Otherwise put-backs are sent a few loop iterations later, perhaps after the reply below.
        database.shards[0].flush_put_backs()
        self.do(database.run(verbs.EXISTS, b"q"))

    def close(self) -> None:
        self.do(self._broker.settle(5))
        self.do(self._broker.close())
        self.do(asyncio.sleep(0))  # lets cancelled tasks end
        self._loop.close()


def with_flags(message: bytes) -> tuple[int, bytes]:
    """Return the message's flags and the message itself."""
    return int(flags_of(message)), bytes(message)


def told(message: bytes) -> tuple[int, bytes]:
    """Return the flags of a message of the reference, and the message itself."""
    return reference.flags_of(message), bytes(message)


class MarksMachine(RuleBasedStateMachine):
    """Compares a queue with the reference (tests/support/reference)."""

    make: Callable[[], Queue]

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.make()
        self.queue.direct.flushall()
        self.model = Queues().create("q")
        self.open: list[tuple[Operation, Job]] = []

    @rule(message=st.sampled_from(CONTENTS), flags=FLAGS, expired=st.booleans())
    def put(self, message: bytes, flags: int, expired: bool) -> None:
        self.queue.put(message, flags, LONG_PAST if expired else b"+1000")
        self.model.put([Marked(message, flags, is_expired=expired)])

    @rule(message=st.sampled_from(CONTENTS), flags=FLAGS)
    def add(self, message: bytes, flags: int) -> None:
        new = self.queue.run(forms.ADD_MARKED, b"%d 0 %b" % (flags, message))
        assert new == [self.model.put([Marked(message, flags)], unique=True)]

    @rule(messages=st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=4))
    def put_plain(self, messages: list[bytes]) -> None:
        self.queue.run(forms.PUT, *messages, size=len(messages))
        self.model.put(messages)

    @rule(count=st.integers(1, 4))
    def get(self, count: int) -> None:
        assert self.queue.get(count) == [told(message) for message in self.model.take(count)]

    @rule(count=st.integers(1, 4))
    def get_plain(self, count: int) -> None:
        assert self.queue.run(forms.GET, size=count) == self.model.take(count)

    @rule(messages=st.lists(st.sampled_from(CONTENTS), min_size=1, max_size=3))
    def remove(self, messages: list[bytes]) -> None:
        removed = self.queue.run(forms.REMOVE, *messages, size=len(messages))
        assert removed in (self.model.remove(messages), [])

    @rule(message=st.sampled_from(CONTENTS), wanted=st.integers(-2, 2))
    def remove_copies(self, message: bytes, wanted: int) -> None:
        removed = self.queue.run(forms.REMOVE_COPIES, b"%d" % wanted, message)
        assert removed in ([self.model.remove_copies(wanted, message)], [])

    @rule(count=st.integers(1, 3))
    def pop_newest(self, count: int) -> None:
        newest = self.queue.run(forms.TRIM, b"0", b"%d" % (-count - 1))
        assert newest in ([1], [])
        self.model.drop_newest(count)

    @rule()
    def peek(self) -> None:
        found = self.queue.run(forms.PEEK)
        expected = [told(message) for message in self.model.peek()]
        assert [with_flags(message) for message in (found[0] if found else [])] == expected

    @rule()
    def take_opened(self) -> None:
        jobs = self.model.reserve("reader")
        assert self.queue.open() == [told(job.message) for job in jobs]
        self.open += [(self.queue.receiver.operations.pop(), job) for job in jobs]

    @precondition(lambda self: self.open)
    @rule()
    def close_opened(self) -> None:
        operation, job = self.open.pop()
        operation.acknowledge()
        self.model.acknowledge([job.id], "reader")
        self.queue.settled()

    @precondition(lambda self: self.open)
    @rule()
    def abort_opened(self) -> None:
        operation, job = self.open.pop()
        operation.put_back()
        self.model.give_back([job])
        self.queue.settled()

    @precondition(lambda self: self.model.length)
    @rule()
    def get_natively(self) -> None:
        # Otherwise the native get would block.
        assert self.queue.direct.llen(BASE) == self.model.length
        assert self.queue.native.get() == self.model.messages.pop(0)

    @rule(message=st.sampled_from(CONTENTS))
    def put_natively(self, message: bytes) -> None:
        if self.queue.direct.exists(f"{BASE}:bound"):
            self.queue.native.put(message)
            self.model.put([message])

    @rule()
    def flush(self) -> None:
        flushed = self.queue.run(forms.PURGE, b"ready")
        assert flushed in ([[self.model.flush(), 0]], [])

    @rule()
    def nothing_is_left_of_an_empty_queue(self) -> None:
        if not self.model.length and self.queue.get() == []:
            assert self.queue.direct.llen(BASE) == 0

    def teardown(self) -> None:
        try:
            for operation, _ in self.open:
                operation.acknowledge()
            assert self.queue.get(1000) == [told(message) for message in self.model.take(1000)]
            names = (f"{BASE}:stats:produced_messages", f"{BASE}:stats:consumed_messages")
            produced, consumed = self.queue.direct.mget(*names)
            assert produced == consumed or not produced
        finally:
            self.queue.close()


@pytest.fixture
def make(backend: Valkey, direct: Client) -> Callable[[], Queue]:
    return lambda: Queue(backend, direct)


@pytest.mark.slow
def test_flags_and_expiry_stay_with_their_messages(make: Callable[[], Queue]) -> None:
    machine = type("Machine", (MarksMachine,), {"make": staticmethod(make)})
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.fixture
def queue(make: Callable[[], Queue]) -> Any:
    made = make()
    yield made
    made.close()


def test_gaps_beyond_the_stored_ones_keep_the_flags_of_different_messages(queue: Queue) -> None:
    numbers = [b"%d" % number for number in range(250)]
    for number in numbers:
        queue.put(number, int(number))
    odd = numbers[1::2]
    assert queue.run(forms.REMOVE, *odd, size=len(odd)) == [1] * len(odd)
    assert queue.direct.hget(MARKS, "state").count(b" ") == 2 * 100
    assert queue.get(250) == [(int(number), number) for number in numbers[::2]]


def test_marks_survive_native_clients_that_die_before_they_count(queue: Queue) -> None:
    for number in range(3):
        queue.put(b"%d" % number, number)
    assert queue.direct.rpop(BASE) == b"0"
    queue.put(b"late", 99)
    assert queue.get(10) == [(1, b"1"), (2, b"2"), (99, b"late")]
    assert not queue.direct.exists(MARKS)
    queue.put(b"a", 1)
    queue.direct.lpush(BASE, b"uncounted")
    queue.put(b"b", 7)
    assert queue.get(3) == [(1, b"a"), (0, b"uncounted"), (7, b"b")]


def test_marks_survive_a_put_during_a_native_get(queue: Queue) -> None:
    queue.put(b"first", 1)
    taking = NativeSteps(queue.direct, "q", "native-2").get()
    step_until(taking, lambda: not queue.direct.llen(BASE))
    queue.put(b"flagged", 7)
    queue.put(b"old", 8, LONG_PAST)
    for _ in taking:
        pass
    assert queue.get(3) == [(7, b"flagged")]
    assert not queue.direct.exists(MARKS)


def test_marks_of_messages_taken_natively_do_not_accumulate_and_go_with_the_queue(queue: Queue) -> None:
    for number in range(10):
        queue.put(b"%d" % number, 1)
        assert queue.native.get() == b"%d" % number
    assert queue.direct.hlen(MARKS) == 1
    queue.run(forms.DELETE)
    wait_for(lambda: not keys_left(queue.direct), "no key to be left")


@pytest.mark.slow
def test_marks_of_messages_taken_natively_are_limited_in_number(queue: Queue) -> None:
    queue.run(forms.PUT, b"first")
    for number in range(1100):
        queue.put(b"%d" % number, 1)
        queue.native.get()
    assert queue.direct.hlen(MARKS) < 1010
    assert queue.get(2) == [(1, b"1099")]


def test_a_put_that_drops_an_expired_message_notes_the_right_position(queue: Queue) -> None:
    queue.run(forms.CREATE, b"2", b"error")
    queue.put(b"soon", 1, b"+1")
    end = queue.direct.time()[0] + 2
    queue.run(forms.PUT, b"removed")
    queue.run(forms.REMOVE, b"removed")
    # From now on noted positions are off by one, until the last message with marks is gone.
    assert queue.run(forms.PEEK) == [[b"soon"]]
    queue.run(forms.PUT, b"plain")
    wait_for(lambda: queue.direct.time()[0] >= end, "the message to expire")
    queue.put(b"flagged", 7)
    assert queue.get(2) == [(0, b"plain"), (7, b"flagged")]


def test_a_marked_message_among_many_equal_ones_is_found_quickly(queue: Queue) -> None:
    queue.run(forms.PUT, *[b"tick"] * 50_000, size=50_000)
    queue.put(b"tick", 7)
    queue.direct.config_resetstat()
    assert queue.get(200) == [(0, b"tick")] * 200
    # Counting all equal messages took 1500 microseconds per message.
    assert queue.direct.info("commandstats")["cmdstat_lpos"]["usec_per_call"] < 100


def test_a_message_expires_by_the_backend_s_clock(queue: Queue) -> None:
    queue.put(b"soon", 1, b"+1")
    queue.put(b"later", 2, b"+1000")
    seconds = int(queue.direct.time()[0])
    queue.put(b"then", 3, b"%d" % (seconds + 1000))
    assert [with_flags(message) for message in queue.run(forms.PEEK)[0]] == [(1, b"soon")]
    wait_for(lambda: queue.run(forms.PEEK) == [[b"later"]], "the message to expire")
    assert queue.get(3) == [(2, b"later"), (3, b"then")]


def test_an_expired_message_does_not_wake_a_waiting_peek(queue: Queue) -> None:
    queue.put(b"old", 1, LONG_PAST)
    assert queue.run(forms.PEEK) == [[]]
    changes = queue._broker.default_database.shards[0].notifications
    assert not queue.do(changes.wait_for(b"q", WaitCondition.MESSAGE, 0.2))


def test_a_move_skips_expired_messages(queue: Queue) -> None:
    queue.put(b"old", 1, LONG_PAST)
    queue.put(b"new", 2)
    move = queue._broker.default_database.move
    assert [queue.do(move(b"q", b"other")) for _ in range(2)] == [b"new", None]
    assert queue.direct.lrange("__pressure__:other", 0, -1) == [b"new"]


def test_an_open_read_survives_a_record_key_of_the_wrong_type(queue: Queue) -> None:
    queue.put(b"a", 5)
    queue.settled()
    (key,) = queue.direct.keys("*!calls:*")
    queue.direct.delete(key)
    queue.direct.set(key, "wrong")
    assert queue.open() == [(5, b"a")]
    queue.receiver.operations.pop().put_back()
    queue.settled()
    assert queue.get() == [(5, b"a")]


def call(direct: Client, bases: list[str], number: int, *runs: Run) -> Any:
    """Return the library's reply for one block. The call has no record if the number is 0."""
    (reply,) = scripts.call(direct, Block(bases, runs), number=number)
    return reply


def test_equal_messages_are_put_back_with_their_own_marks(direct: Client) -> None:
    call(direct, [BASE], 1, ("put", "", "x"))
    call(direct, [BASE], 2, ("put flags now", "", "5 0 x"))
    assert call(direct, [BASE], 3, ("get flags", "2")) == [0, [b"x", b"x", b"0 5"]]
    assert call(direct, [BASE], 4, ("put_back", "3", "0 x")) == [0, 1]
    assert not direct.exists(MARKS)
    assert call(direct, [BASE], 5, ("put_back", "3", "5 x")) == [0, 1]
    assert call(direct, [BASE], 0, ("get flags", "2")) == [0, [b"x", b"x", b"5 0"]]


def test_messages_of_one_call_return_to_each_queue_with_their_marks(direct: Client) -> None:
    other = "__pressure__:other"
    call(direct, [BASE], 1, ("put flags now", "", "1 0 x"))
    call(direct, [other], 2, ("put flags now", "", "2 0 x"))
    both = (("get", "1"), ("on", other), ("get", "1"))
    assert call(direct, [BASE, other], 9, *both) == [0, [b"x"], [b"x"]]
    (reply,) = scripts.call(direct, Block([RECORDS], [("9",)], "recover"), number=10)
    more, done, failed, why, *back = reply
    assert (more, done, failed, why) == (0, 1, 0, b"")
    assert dict(zip(back[::2], back[1::2], strict=True)) == {BASE.encode(): 1, other.encode(): 1}
    for base, flags in ((BASE, b"1"), (other, b"2")):
        assert call(direct, [base], 0, ("get flags", "1")) == [0, [b"x", flags]]


def test_marks_of_the_wrong_type_lose_no_message(queue: Queue) -> None:
    queue.run(forms.PUT, b"a")
    queue.direct.set(MARKS, "wrong")
    for act in (
        lambda: queue.put(b"b", 5),
        lambda: queue.get(),
        lambda: queue.run(forms.GET),
        lambda: queue.run(forms.REMOVE, b"a"),
        lambda: queue.open(),
    ):
        with pytest.raises(BackendError, match="WRONGTYPE"):
            act()
    assert queue.direct.lrange(BASE, 0, -1) == [b"a"]
    queue.direct.delete(MARKS)
    assert queue.get(5) == [(0, b"a")]


def test_an_expired_message_at_the_head_of_a_full_queue_makes_room(queue: Queue) -> None:
    queue.run(forms.CREATE, b"2", b"error")
    queue.put(b"old", 1, LONG_PAST)
    queue.put(b"new", 2)
    assert queue.run(forms.PUT, b"newer") == [2]
    assert isinstance(queue.run(forms.PUT_MARKED, b"3 0 more")[0], QueueFullError)
    assert queue.get(3) == [(2, b"new"), (0, b"newer")]


# Of long messages, records note the flags by the beginning.
MIXED = [(0, b"a"), (5, b"1 b"), (7, b""), (0, b"5 5"), (7, b"x" * 2000), (6, b"x" * 3000), (5, b"a")]


@pytest.fixture
def mixed(queue: Queue) -> Queue:
    for flags, message in MIXED:
        queue.put(message, flags, b"+1000")
    return queue


@pytest.mark.parametrize("form", [forms.GET_MARKED, forms.GET, forms.TAKE_MARKED])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_messages_put_back_for_a_lost_client_keep_their_marks(mixed: Queue, form: Form, count: int) -> None:
    client = Receiver()
    mixed.run(form, size=count, client=client, waits=form is forms.TAKE_MARKED)
    client.operations[0].put_back()
    wait_for(lambda: mixed.run(forms.LENGTH) == [len(MIXED)], "all messages to be back")
    assert mixed.get(10) == MIXED


@pytest.mark.parametrize("form", [forms.GET_MARKED, forms.GET, forms.TAKE_OPENED])
def test_messages_recovered_from_a_dead_server_keep_their_marks(mixed: Queue, form: Form) -> None:
    client = Receiver()
    for _ in range(3):
        claims = [CLAIM] if form is forms.TAKE_OPENED else []
        mixed.run(form, *claims, client=client, waits=form.options.waits)
    assert mixed.run(forms.LENGTH) == [len(MIXED) - 3]
    assert mixed.recovered() == 3
    assert mixed.get(10) == MIXED
    for operation in client.operations:
        operation.put_back()
    mixed.settled()
    assert mixed.run(forms.LENGTH) == [0]


@pytest.mark.slow
def test_many_equal_messages_keep_their_order_and_marks(queue: Queue) -> None:
    put, form = queue._broker.default_database.run, forms.PUT_MARKED

    async def many(count: int) -> None:
        marked = [b"%d 0 5" % (1 + number % 3) for number in range(count)]
        await asyncio.gather(*[put(form.verb, b"q", [one], options=form.options) for one in marked])

    for _ in range(4):
        queue.do(many(5000))
    expected = [(1 + n % 3, b"5") for n in range(5000)] * 4
    assert queue.get(7) == expected[:7]
    assert queue.get(20_000) == expected[7:]
    assert not queue.direct.exists(MARKS)


def test_a_get_drops_thousands_of_expired_messages(queue: Queue) -> None:
    for _ in range(3):
        queue.run(forms.PUT_MARKED, *[b"1 1 old"] * 2000, size=2000)
    queue.put(b"new", 7)
    assert queue.get() == [(7, b"new")]
    assert queue.run(forms.LENGTH) == [0]
