"""Operations: what a client wants done on one queue, its progress, and its messages in transit. Pure.

An operation is a verb (verbs.py) with options (options.py), and stands for equal commands of one client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Any

from pressure_server.compiled import mypyc_attr
from pressure_server.errors import PressureError, StoppingError
from pressure_server.queues.operations.flagged import recovery_form
from pressure_server.queues.operations.options import DEFAULT, Options, requiring_destination, requiring_queue
from pressure_server.queues.operations.wait import Wait

# Encodes the replies to an operation that has ended.
Encode = Callable[["Operation"], bytes]


def _no_reply(_operation: Operation) -> bytes:
    return b""


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner(ABC):
    """The object that is told of an operation's progress."""

    __slots__ = ()

    def wait_began(self, operation: Operation) -> None:
        """Note that the operation has begun to wait."""
        return

    def partly_taken(self, operation: Operation) -> None:
        """Note that a call has brought some of what the operation takes, and another call is to follow."""
        return

    def begin_pop(self, name: bytes) -> tuple[bytes, list[bytes]] | None:
        """Begin a pop from the queue `name` with ACK NEXT; return None to take the messages for good.

        Return the owner of the reservations, and the jobs that it has finished here, for DELETE_JOB.
        """
        return None

    @abstractmethod
    def completed(self, operation: Operation) -> None:
        """Take over the ended operation, whose `results` and `error` are final, with what it has taken.

        If it `has_taken` messages, call its `acknowledge` or `put_back` once: a record is kept until then.
        """


class Operation:
    """One or more equal commands on one queue.

    `sizes` has one number per command: how many of the `messages` it brings (put, contains, remove), or how
    many it wants (get). Other verbs have their arguments in `messages`. When it has ended, either `error` is
    set, or `results` has:

    * put: an entry per command: the length of the queue after it; with `unique`, how many of its messages
      were new; or the error of that command alone
    * contains, remove, events of jobs: a 1 or 0 per message, or the error of that message alone
    * get, move, reserve: the messages or jobs (jobs.py), fewer than wanted if there were no more in time
    * other verbs: the single value, once per command

    `encode` makes the replies of all commands; `encoded_reply` keeps them while earlier operations are not
    answered yet. `end_order` is its place in the order in which operations on the queue ended.
    `commands_in_call` is how many of the commands that are left go with the call in flight; None for all. If
    it `is_sealed`, it cannot be extended. Pass a `Wait` to override how it waits.
    """

    __slots__ = (
        "cancelled", "command", "commands_in_call", "deliveries", "encode", "encoded_reply", "end_order",
        "error", "has_errors", "is_sealed", "measured_from", "messages", "messages_handed_over", "name",
        "options", "owner", "results", "sizes", "unsafe_run", "verb", "wait", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        verb: Verb,
        name: bytes,
        messages: list[bytes],
        size: int,
        owner: Owner,
        encode: Encode = _no_reply,
        commands: int = 1,
        wait: Wait | None = None,
        options: Options = DEFAULT,
    ) -> None:
        # The statistics of the client's command: for its connection.
        self.command: Any = None
        self.measured_from = 0.0  # when it was submitted, by perf_counter; 0 if its latency is not measured
        self.verb = verb
        self.options = options
        self.name = name
        self.messages = messages
        self.sizes = [size] if commands == 1 else [size] * commands
        self.wanted = size * commands
        self.owner = owner
        self.encode = encode
        self.encoded_reply: bytes | None = None
        self.results: list[Any] = []
        self.error: PressureError | None = None
        self.has_errors = False  # whether some of the results may be errors
        self.is_sealed = False
        self.commands_in_call: int | None = None
        self.cancelled = False
        self.end_order = 0
        # Each delivery, with the number of results after its messages were added.
        self.deliveries: list[tuple[Delivery, int]] | None = None
        # How many of its messages have been handed over, if only some have been.
        self.messages_handed_over = 0
        # The run of the backend that has done the first part, if that was not known to be durable.
        self.unsafe_run = ""
        self.wait = wait

    def may_extend(self, verb: Verb, name: bytes, encode: Encode, options: Options) -> bool:
        """Return whether more commands like these can become part of this operation."""
        return (
            not self.is_sealed
            and self.verb is verb
            and self.name == name
            and self.encode is encode
            and self.wait is None
            and (self.options is options or self.options == options)
            and self.can_fold
        )

    def extend(self, messages: list[bytes], size: int, commands: int) -> None:
        """Append more commands of `size` messages each. Call `may_extend` first."""
        self.messages += messages
        self.sizes += [size] * commands
        self.wanted += size * commands

    def require_existing(self, *, at_destination: bool = False) -> None:
        """From now on, wait only on the present queue, or destination of a move: do not create it."""
        self.options = (
            requiring_destination(self.options) if at_destination else requiring_queue(self.options)
        )

    def acknowledge(self) -> None:
        """Note that the messages taken have been handed over."""
        deliveries, self.deliveries = self.deliveries, None
        for delivery, _ in deliveries or ():
            del delivery.undelivered[self]
            if not delivery.undelivered:
                delivery.may_be_complete()

    def note_handed_over(self, size: int) -> None:
        """Let `put_back` leave out the commands whose replies are in the first `size` bytes of all."""
        if size <= 0 or len(self.sizes) == 1:
            return
        first = Operation(self.verb, self.name, self.messages, 0, self.owner, options=self.options)
        first.has_errors = self.has_errors

        def length(commands: int) -> int:
            first.sizes = self.sizes[:commands]
            first.results = self.results[: sum(first.sizes)]
            return len(self.encode(first))

        commands = bisect_right(range(len(self.sizes)), size, lo=1, key=length) - 1
        self.messages_handed_over = sum(self.sizes[:commands])

    def put_back(self) -> None:
        """Put back the messages taken, if any: there is no client to receive them."""
        if self.deliveries is not None and self.has_taken:
            delivery = self.deliveries[0][0]
            if self.verb.reserves:
                self.deliveries = None
            delivery.put_back(self)

    def taken_by_delivery(self) -> Iterator[tuple[Delivery, list[bytes]]]:
        """Yield by delivery what it has taken and not handed over, as recovery.lua identifies it."""
        first = 0
        for delivery, end in self.deliveries or ():
            messages = self.results[max(first, self.messages_handed_over) : end]
            yield delivery, list(map(recovery_form, messages)) if self.options.has_flags else messages
            first = end

    @property
    def has_taken(self) -> bool:
        """Whether it has taken messages that are in no queue now."""
        return bool(self.results) and self.verb.may_go_back

    @property
    def is_done_in_part(self) -> bool:
        """Whether a call has done some of it."""
        return bool(self.results) or (self.wait is not None and self.wait.messages_done > 0)

    @property
    def waits_for_message(self) -> bool:
        """Whether it waits if there is no message."""
        return self.options.waits and self.wait is not None and self.wait.timeout != 0

    @property
    def can_fold(self) -> bool:
        """Whether it can share a run with equal operations."""
        options = self.options
        return self.verb.can_fold and not (options.wait_for_first or options.if_none_taken)

    @property
    def can_end(self) -> bool:
        """Whether the operation has all it needs to end, provided that it lacks nothing to wait for."""
        if self.verb.puts:
            return not self.commands_left()
        return bool(self.results) or (self.verb.takes and not self.options.waits)

    def commands_left(self) -> int:
        """Return how many of its commands have no result yet."""
        return len(self.sizes) - len(self.results)

    def messages_left(self) -> int:
        """Return how many of its messages have no result yet, or are still wanted."""
        return self.wanted - len(self.results)

    @property
    def units_in_call(self) -> int:
        """How much goes with the call in flight, in the units of the verb's `units_left`."""
        rest = self.verb.units_left(self)
        return rest if self.commands_in_call is None else min(rest, self.commands_in_call)

    def bytes_in_call(self) -> int:
        """Return the size in bytes of the messages that go with the call in flight."""
        done = len(self.results)
        first = sum(self.sizes[:done])
        last = first + sum(self.sizes[done : done + self.units_in_call])
        return sum(map(len, self.messages[first:last]))

    def bytes_of_next(self, portion: int) -> int:
        """Return the size in bytes of the next `portion` messages."""
        done = len(self.results)
        return sum(map(len, self.messages[done : done + portion]))

    def fail(self, error: PressureError) -> None:
        """Fail the commands that are not done; results of earlier calls stay."""
        in_part = self.wait.messages_done if self.wait is not None else 0
        if in_part:
            self.results.append(error.after(in_part))
            self.has_errors = True
        if not self.results:
            self.error = error
        elif self.verb.can_fold and not self.verb.takes:
            self.results += [error] * self.verb.units_left(self)
            self.has_errors = True

    @property
    def is_left_undone(self) -> bool:
        """Whether a stop of the server has ended the wait of its last commands, or of all."""
        return isinstance(self.results[-1] if self.results else self.error, StoppingError)

    def drop_undone(self) -> bool:
        """Leave out the commands at the end that a stop has left undone. Return whether others are left."""
        done = len(self.results)
        while done and isinstance(self.results[done - 1], StoppingError):
            done -= 1
        commands = done if self.verb.puts else bisect_left([*accumulate(self.sizes, initial=0)], done)
        self.sizes = self.sizes[:commands]
        self.results = self.results[: commands if self.verb.puts else sum(self.sizes)]
        return commands > 0

    def errors_of_commands(self) -> list[PressureError]:
        """Return the first error of each command that has errors among its results."""
        results = self.results
        if len(results) == len(self.sizes):
            return [result for result in results if isinstance(result, PressureError)]
        ends = list(accumulate(self.sizes))
        of_commands = (results[end - size : end] for size, end in zip(self.sizes, ends, strict=True))
        first = (next((one for one in some if isinstance(one, PressureError)), None) for some in of_commands)
        return [error for error in first if error is not None]


class Delivery:
    """The messages that the call with this `number` has taken, until all of them have arrived.

    `undelivered` has the operations that still have some, in order; the value is None, or the messages on
    their way back to the queue, as recovery.lua identifies them. A new delivery is being shared out until
    all its operations are registered.
    """

    __slots__ = ("_on_arrival", "is_shared_out", "number", "put_back", "undelivered")

    def __init__(
        self, number: int, on_arrival: Callable[[], None], put_back: Callable[[Operation], None]
    ) -> None:
        """Call `on_arrival` when all messages have arrived; `put_back` puts an operation's messages back."""
        self.number = number
        self._on_arrival = on_arrival
        self.put_back = put_back
        self.undelivered: dict[Operation, list[bytes] | None] = {}
        self.is_shared_out = False

    def add(self, operations: Sequence[Operation]) -> None:
        """Note that the operations have some of the messages: those just added to their `results`."""
        for operation in operations:
            results = operation.results
            if results:
                self.undelivered[operation] = None
                if operation.deliveries is None:
                    operation.deliveries = [(self, len(results))]
                else:
                    operation.deliveries.append((self, len(results)))

    def complete_part(self, operation: Operation) -> None:
        """Note that the operation's messages have been handed over, or are back in the queue."""
        del self.undelivered[operation]
        self.may_be_complete()

    def may_be_complete(self) -> None:
        """Note that messages have left: these may have been the last ones."""
        if self.is_shared_out and not self.undelivered:
            self._on_arrival()

    def end_sharing_out(self) -> bool:
        """Note that all operations with its messages are registered. Return whether all have arrived."""
        self.is_shared_out = True
        self.may_be_complete()
        return not self.undelivered


class Line(Enum):
    """The two lines of a queue in which operations wait, by the role they need."""

    PRODUCERS = "producer"
    CONSUMERS = "consumer"


@dataclass(frozen=True, eq=False, repr=False)
class Verb:
    """How operations of one verb are packed for the script, and how a reply is distributed among them.

    `pack` returns a run's arguments. `distribute` adds its reply to the operations' results; it returns
    whether one may have to wait, whose `wait` then says for what. `units_left` returns how much of an
    operation is not done, in the units of the script.

    `line` is where operations wait. `wakes` are the lines of which operations may go on after this one: as
    many as it has messages, or all with `wakes_all`. `can_fold`: equal operations share a run. `can_split`:
    many messages may take several calls. `overtakes`: may be done before operations of other owners that
    came first. `reserves`: takes jobs until the client acknowledges them. `changes`: must not be done twice.
    `is_put_back`: its messages exist nowhere else. `gives_up`: waiting operations are tried after all that
    is given up. `must_last`: clients act on the answer for good, so what it tells must be durable before they
    get it. Set for every change except put-backs, of which no client is told: if a new master lacks one,
    Records.count_lost does it again.
    """

    name: bytes
    pack: Callable[[Sequence[Operation]], list[bytes]]
    distribute: Callable[[Sequence[Operation], Any], bool]
    units_left: Callable[[Operation], int] = lambda _: 0
    puts: bool = False
    takes: bool = False
    reserves: bool = False
    moves: bool = False
    is_put_back: bool = False
    gives_up: bool = False
    can_fold: bool = True
    can_split: bool = False
    overtakes: bool = False
    changes: bool = True
    must_last: bool = False
    line: Line | None = None
    wakes: tuple[Line, ...] = ()
    wakes_all: bool = False
    # Whether what these operations take goes back if it does not arrive.
    may_go_back: bool = field(init=False)

    def __post_init__(self) -> None:
        """Derive `may_go_back` and `must_last`."""
        object.__setattr__(self, "may_go_back", self.takes and not self.moves)
        must_last = self.must_last or (self.changes and not self.is_put_back)
        object.__setattr__(self, "must_last", must_last)

    def __repr__(self) -> str:
        """Return the verb's name."""
        return self.name.decode()
