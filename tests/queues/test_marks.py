"""Marks, the flags and expiry of messages, beside native clients, which neither write nor read them."""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from pressure_server.errors import BackendError, QueueDoesNotExistError, QueueFullError
from pressure_server.queues.broker import Broker
from pressure_server.queues.calls.direct import recover
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.flagged import flags_of
from pressure_server.queues.operations.jobs import attached, claim
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.options import DEFAULT, WAITS, OnFull, Options
from pressure_server.queues.operations.wait import Wait, WaitCondition
from tests.support import scripts
from tests.support.brokers import default_broker
from tests.support.native import NativeClient, NativeSteps, step_until
from tests.support.programs import Client, Valkey, keys_left, wait_for
from tests.support.scripts import RECORDS, Block, Run

BASE = "__pressure__:q"
MARKS = f"{BASE}:ext:marks"
LONG_PAST = b"1"
CLAIM = claim(attached(1))


class Form(NamedTuple):
    """What an operation does, and how."""

    verb: Verb
    options: Options = DEFAULT


_MARKED = Options(has_flags=True, on_full=OnFull.FAIL)

PUT = Form(verbs.PUT)
PUT_MARKED = Form(verbs.PUT, _MARKED)
GET = Form(verbs.GET)
GET_MARKED = Form(verbs.GET, Options(has_flags=True))
TAKE_MARKED = Form(verbs.GET, Options(has_flags=True, waits=True))
TAKE_OPENED = Form(verbs.RESERVE, WAITS)
REMOVE = Form(verbs.REMOVE)
LENGTH = Form(verbs.LENGTH)
PEEK = Form(verbs.PEEK)
CREATE = Form(verbs.CREATE)
DELETE = Form(verbs.DELETE)


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
        self.run(PUT_MARKED, b"%d %b %b" % (flags, expires, message))

    def get(self, count: int = 1) -> list[tuple[int, bytes]]:
        taken: list[bytes] = self.run(GET_MARKED, size=count)
        return [with_flags(message) for message in taken]

    def open(self) -> list[tuple[int, bytes]]:
        taken: list[bytes] = self.run(TAKE_OPENED, CLAIM, client=self.receiver, waits=True)
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


@pytest.fixture
def queue(backend: Valkey, direct: Client) -> Iterator[Queue]:
    made = Queue(backend, direct)
    yield made
    made.close()


def test_gaps_beyond_the_stored_ones_keep_the_flags_of_different_messages(queue: Queue) -> None:
    numbers = [b"%d" % number for number in range(250)]
    for number in numbers:
        queue.put(number, int(number))
    odd = numbers[1::2]
    assert queue.run(REMOVE, *odd, size=len(odd)) == [1] * len(odd)
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


def test_a_message_does_not_expire_like_an_equal_one_that_a_native_client_took(queue: Queue) -> None:
    queue.put(b"taken", 0)
    queue.put(b"removed", 7)
    assert queue.native.get() == b"taken"
    queue.put(b"equal", 7, LONG_PAST)
    queue.native.put(b"equal")
    queue.run(REMOVE, b"removed")
    assert queue.native.get() == b"equal"
    assert queue.get() == [(0, b"equal")]


def test_a_message_that_was_put_back_has_no_marks_of_one_taken_meanwhile(queue: Queue) -> None:
    queue.put(b"equal", 0)
    queue.put(b"equal", 7, LONG_PAST)
    assert queue.open() == [(0, b"equal")]
    queue.put(b"last", 1)
    assert queue.native.get() == b"equal"
    queue.receiver.operations[0].put_back()
    queue.settled()
    assert queue.get(2) == [(0, b"equal"), (1, b"last")]


def test_marks_of_messages_taken_natively_do_not_accumulate_and_go_with_the_queue(queue: Queue) -> None:
    for number in range(10):
        queue.put(b"%d" % number, 1)
        assert queue.native.get() == b"%d" % number
    assert queue.direct.hlen(MARKS) == 1
    queue.run(DELETE)
    wait_for(lambda: not keys_left(queue.direct), "no key to be left")


@pytest.mark.slow
def test_marks_of_messages_taken_natively_are_limited_in_number(queue: Queue) -> None:
    queue.run(PUT, b"first")
    for number in range(1100):
        queue.put(b"%d" % number, 1)
        queue.native.get()
    assert queue.direct.hlen(MARKS) < 1010
    assert queue.get(2) == [(1, b"1099")]


def test_a_put_that_drops_an_expired_message_notes_the_right_position(queue: Queue) -> None:
    queue.run(CREATE, b"2", b"error")
    queue.put(b"soon", 1, b"+1")
    end = queue.direct.time()[0] + 2
    queue.run(PUT, b"removed")
    queue.run(REMOVE, b"removed")
    # From now on noted positions are off by one, until the last message with marks is gone.
    assert queue.run(PEEK) == [[b"soon"]]
    queue.run(PUT, b"plain")
    wait_for(lambda: queue.direct.time()[0] >= end, "the message to expire")
    queue.put(b"flagged", 7)
    assert queue.get(2) == [(0, b"plain"), (7, b"flagged")]


def test_a_marked_message_among_many_equal_ones_is_found_quickly(queue: Queue) -> None:
    queue.run(PUT, *[b"tick"] * 50_000, size=50_000)
    queue.put(b"tick", 7)
    queue.direct.config_resetstat()
    assert queue.get(200) == [(0, b"tick")] * 200
    # Counting equal messages takes longer than all else.
    assert queue.direct.info("commandstats")["cmdstat_lpos"]["calls"] == 1


def test_a_message_expires_by_the_backend_s_clock(queue: Queue) -> None:
    queue.put(b"soon", 1, b"+1")
    queue.put(b"later", 2, b"+1000")
    seconds = int(queue.direct.time()[0])
    queue.put(b"then", 3, b"%d" % (seconds + 1000))
    assert [with_flags(message) for message in queue.run(PEEK)[0]] == [(1, b"soon")]
    wait_for(lambda: queue.run(PEEK) == [[b"later"]], "the message to expire")
    assert queue.get(3) == [(2, b"later"), (3, b"then")]


def test_an_expired_message_does_not_wake_a_waiting_peek(queue: Queue) -> None:
    queue.put(b"old", 1, LONG_PAST)
    assert queue.run(PEEK) == [[]]
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
    queue.run(PUT, b"a")
    queue.direct.set(MARKS, "wrong")
    for act in (
        lambda: queue.put(b"b", 5),
        lambda: queue.get(),
        lambda: queue.run(GET),
        lambda: queue.run(REMOVE, b"a"),
        lambda: queue.open(),
    ):
        with pytest.raises(BackendError, match="WRONGTYPE"):
            act()
    assert queue.direct.lrange(BASE, 0, -1) == [b"a"]
    queue.direct.delete(MARKS)
    assert queue.get(5) == [(0, b"a")]


def test_an_expired_message_at_the_head_of_a_full_queue_makes_room(queue: Queue) -> None:
    queue.run(CREATE, b"2", b"error")
    queue.put(b"old", 1, LONG_PAST)
    queue.put(b"new", 2)
    assert queue.run(PUT, b"newer") == [2]
    assert isinstance(queue.run(PUT_MARKED, b"3 0 more")[0], QueueFullError)
    assert queue.get(3) == [(2, b"new"), (0, b"newer")]


# Of long messages, records note the flags by the beginning.
MIXED = [(0, b"a"), (5, b"1 b"), (7, b""), (0, b"5 5"), (7, b"x" * 2000), (6, b"x" * 3000), (5, b"a")]


@pytest.fixture
def mixed(queue: Queue) -> Queue:
    for flags, message in MIXED:
        queue.put(message, flags, b"+1000")
    return queue


@pytest.mark.parametrize("form", [GET_MARKED, GET, TAKE_MARKED])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_messages_put_back_for_a_lost_client_keep_their_marks(mixed: Queue, form: Form, count: int) -> None:
    client = Receiver()
    mixed.run(form, size=count, client=client, waits=form is TAKE_MARKED)
    client.operations[0].put_back()
    wait_for(lambda: mixed.run(LENGTH) == [len(MIXED)], "all messages to be back")
    assert mixed.get(10) == MIXED


@pytest.mark.parametrize("form", [GET_MARKED, GET, TAKE_OPENED])
def test_messages_recovered_from_a_dead_server_keep_their_marks(mixed: Queue, form: Form) -> None:
    client = Receiver()
    for _ in range(3):
        claims = [CLAIM] if form is TAKE_OPENED else []
        mixed.run(form, *claims, client=client, waits=form.options.waits)
    assert mixed.run(LENGTH) == [len(MIXED) - 3]
    assert mixed.recovered() == 3
    assert mixed.get(10) == MIXED
    for operation in client.operations:
        operation.put_back()
    mixed.settled()
    assert mixed.run(LENGTH) == [0]


@pytest.mark.slow
def test_many_equal_messages_keep_their_order_and_marks(queue: Queue) -> None:
    put, form = queue._broker.default_database.run, PUT_MARKED

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
        queue.run(PUT_MARKED, *[b"1 1 old"] * 2000, size=2000)
    queue.put(b"new", 7)
    assert queue.get() == [(7, b"new")]
    assert queue.run(LENGTH) == [0]


@pytest.mark.parametrize("seed", range(8))
def test_each_of_many_equal_messages_has_its_own_marks(queue: Queue, seed: int) -> None:
    chosen = random.Random(seed)
    sent = [(chosen.randrange(3), chosen.choice([b"0", LONG_PAST, b"+1000"])) for _ in range(60)]
    queue.run(CREATE, b"60", b"error")
    for flags, expires in sent:
        queue.put(b"equal", flags, expires)
    left = [flags for flags, expires in sent if expires != LONG_PAST]
    for taken in (0, 1, 0, 5, 0):
        assert queue.get(taken) == [(flags, b"equal") for flags in left[:taken]]
        left = left[taken:]
        (seen,) = queue.run(PEEK)
        assert [with_flags(message) for message in seen] == [(left[0], b"equal")]
    queue.put(b"last", 1)  # drops those that have expired, if the queue is full
    assert queue.get(60) == [(flags, b"equal") for flags in left] + [(1, b"last")]
    assert not queue.direct.exists(MARKS)
