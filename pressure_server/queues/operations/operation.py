"""Operations: what a client wants done on one queue, how far that has come, and what is on its way to it.

Pure. An operation is a verb (verbs.py) with options (options.py), and stands for one or more equal
commands of one client. Its owner is told what becomes of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from pressure_server.errors import PressureError
from pressure_server.queues.operations.options import DEFAULT, Custody, Options, existing, into_existing
from pressure_server.queues.operations.wait import Wait

# What makes the replies of an operation that has ended.
Reply = Callable[["Operation"], bytes]


def _no_reply(_operation: Operation) -> bytes:
    return b""


class Owner(Protocol):
    """What is told how an operation gets on."""

    __slots__ = ()

    def waits(self, operation: Operation) -> None:
        """Note that the operation begins to wait."""
        return

    def has_some(self, operation: Operation) -> None:
        """Note that a call has brought some of what the operation takes, and others are to follow."""
        return

    def completed(self, operation: Operation) -> None:
        """Take over the operation, which has ended, and what it has taken.

        Its `results` and `error` are final. If it `has_taken` messages, call its `delivered` when they have
        been handed over, or its `put_back`, once: until then the backend keeps them.
        """


class Operation:
    """One or more equal commands on one queue.

    `sizes` has one number a command: how many messages it brought (put, contains, remove), or wants (get).
    `messages` are theirs, end to end. Other verbs have their arguments in `messages`.

    When it has ended, either `error` is set, or `results` holds: for put one entry a command (the queue's
    length after it; with `unique` how many of its messages were new; or the error that it alone met), for
    contains and remove one 1 or 0 a message, for get and move the messages, fewer than wanted if the queue
    ran empty or the time out; for other verbs the one value a command.

    `reply` makes the replies of its commands, one after the other; `encoded` is what it has made, if replies
    of other operations go first. `ended_as` counts the operations on the queue in the order in which they
    ended. `sent` is how many of the commands that are left go with the call under way; None is all of them.
    Pass a `Wait` to override how the operation waits.
    """

    __slots__ = (
        "cancelled",
        "deliveries",
        "encoded",
        "ended_as",
        "error",
        "handed",
        "messages",
        "name",
        "options",
        "owner",
        "reply",
        "results",
        "sealed",
        "sent",
        "sizes",
        "verb",
        "wait",
        "wanted",
    )

    def __init__(
        self,
        verb: Verb,
        name: bytes,
        messages: list[bytes],
        size: int,
        owner: Owner,
        reply: Reply = _no_reply,
        commands: int = 1,
        wait: Wait | None = None,
        options: Options = DEFAULT,
    ) -> None:
        self.verb = verb
        self.options = options
        self.name = name
        self.messages = messages
        self.sizes = [size] if commands == 1 else [size] * commands
        self.wanted = size * commands
        self.owner = owner
        self.reply = reply
        self.encoded: bytes | None = None
        self.results: list[Any] = []
        self.error: PressureError | None = None
        self.sealed = False
        self.sent: int | None = None
        self.cancelled = False
        self.ended_as = 0
        # Each with how many messages there were when it had come.
        self.deliveries: list[tuple[Delivery, int]] | None = None
        # How many of its messages have been handed over, where that is not all.
        self.handed = 0
        self.wait = wait

    def may_extend(self, verb: Verb, name: bytes, reply: Reply, options: Options) -> bool:
        """Return whether more commands like these can become part of it."""
        return (
            not self.sealed
            and self.verb is verb
            and self.name == name
            and self.reply is reply
            and self.wait is None
            and self.options == options
            and self.folds
        )

    def extend(self, messages: list[bytes], size: int, commands: int) -> None:
        """Append more commands of `size` messages each; see `may_extend`."""
        self.messages += messages
        self.sizes += [size] * commands
        self.wanted += size * commands

    def stay(self, *, elsewhere: bool = False) -> None:
        """From now on wait on the queue that exists: neither make a queue, nor wait for another of that name.

        `elsewhere`: that is the queue to which a move goes.
        """
        self.options = into_existing(self.options) if elsewhere else existing(self.options)

    def came_with(self, delivery: Delivery) -> None:
        """A call has brought some of its messages."""
        if self.deliveries is None:
            self.deliveries = [(delivery, len(self.results))]
        else:
            self.deliveries.append((delivery, len(self.results)))

    def delivered(self) -> None:
        """What it has taken has been handed over."""
        deliveries, self.deliveries = self.deliveries, None
        for delivery, _ in deliveries or ():
            delivery.has_arrived(self)

    def hand_over(self, size: int) -> None:
        """So many bytes of the replies have been handed over, and no more will be."""
        if size <= 0 or len(self.sizes) == 1:
            return
        first = copy(self)

        def length(commands: int) -> int:
            first.sizes = self.sizes[:commands]
            first.results = self.results[: sum(first.sizes)]
            return len(self.reply(first))

        commands = bisect_right(range(len(self.sizes)), size, lo=1, key=length) - 1
        self.handed = sum(self.sizes[:commands])

    def put_back(self) -> None:
        """Nobody is there any longer for what it has taken, if anything."""
        if self.deliveries is not None and self.has_taken:
            delivery = self.deliveries[0][0]
            if self.custody is Custody.UNTIL_ACKNOWLEDGED:
                self.deliveries = None
            delivery.put_back(self)

    @property
    def custody(self) -> Custody:
        """Until when the backend keeps a record of what it takes."""
        if not self.verb.takes or self.verb.moves:
            return Custody.NONE
        return Custody.UNTIL_ACKNOWLEDGED if self.options.acknowledged else Custody.UNTIL_DELIVERED

    @property
    def has_taken(self) -> bool:
        """Whether it has messages that are nowhere else now."""
        return bool(self.results) and self.custody is not Custody.NONE

    @property
    def folds(self) -> bool:
        """Whether it can share a run with equal operations."""
        return self.verb.folds and not self.options.several and not self.options.otherwise

    @property
    def is_satisfied(self) -> bool:
        """Whether it has what it was made for, if it lacks nothing that can be waited for."""
        if self.verb.puts:
            return not self.commands_left()
        return bool(self.results) or (self.verb.takes and not self.options.waits)

    def commands_left(self) -> int:
        """How many of its commands have no result yet."""
        return len(self.sizes) - len(self.results)

    def messages_left(self) -> int:
        """How many of its messages have no result yet, or are still wanted."""
        return self.wanted - len(self.results)

    @property
    def units_sent(self) -> int:
        """What goes with the call under way, in the units of its verb's `rest`."""
        rest = self.verb.rest(self)
        return rest if self.sent is None else min(rest, self.sent)

    def size_sent(self) -> int:
        """The bytes of the messages that go with the call under way."""
        done = len(self.results)
        first = sum(self.sizes[:done])
        last = first + sum(self.sizes[done : done + self.units_sent])
        return sum(map(len, self.messages[first:last]))

    def fail(self, error: PressureError) -> None:
        """End with an error what has not been done; what has been done (in an earlier call) stays done."""
        in_part = self.wait.messages if self.wait is not None else 0
        if in_part:
            self.results.append(error.after(in_part))
        if not self.results:
            self.error = error
        elif self.verb.folds and not self.verb.takes:
            self.results += [error] * self.verb.rest(self)


class Delivery:
    """The backend keeps the record of the call of that `number` until all of it has arrived.

    `undelivered` are the operations that have some of it, in the order in which they got it, with what is on
    its way back of it, as recovery.lua knows messages. Whoever makes a delivery holds it, too, and releases
    it when it is known which operations these are.
    """

    __slots__ = ("_arrived", "_holds", "number", "put_back", "undelivered")

    def __init__(
        self, number: int, arrived: Callable[[], None], put_back: Callable[[Operation], None]
    ) -> None:
        """`arrived` is called when all of it has been handed over; `put_back` takes back what cannot be."""
        self.number = number
        self._arrived = arrived
        self.put_back = put_back
        self.undelivered: dict[Operation, list[bytes] | None] = {}
        self._holds = 1

    @property
    def is_held(self) -> bool:
        """Whether it is not known yet which operations have some of it."""
        return self._holds > 0

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived."""
        return not self.undelivered and not self._holds

    def expect(self, operation: Operation) -> None:
        """The operation has some of it."""
        self.undelivered[operation] = None

    def returns(self, operation: Operation, words: list[bytes]) -> None:
        """The operation gives this up; it `has_arrived` when it is back."""
        self.undelivered[operation] = words

    def has_arrived(self, operation: Operation) -> None:
        """The operation has handed it over."""
        del self.undelivered[operation]
        if not (self.undelivered or self._holds):
            self._arrived()

    def hold(self) -> None:
        """More operations may come to have some of it, until it is released."""
        self._holds += 1

    def release(self) -> None:
        """End one hold."""
        self._holds -= 1
        if self.is_complete:
            self._arrived()


class Line(Enum):
    """The two lines of a queue in which operations wait, by the role they need."""

    PRODUCERS = "producer"
    CONSUMERS = "consumer"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verb:
    """How operations of one verb are packed for the script, and how a reply is shared out among them.

    `pack` returns the run's arguments. `share` extends each operation's results from the run's reply, and
    says whether one may lack something, as it then notes in the operation's `wait`. `rest` is what an
    operation still lacks, in the units in which the script says what it left undone.

    `line` is where one waits, and `serves` are those that may go on when one has been done, as many as it
    has messages, or with `serves_all` all. `folds`: equal operations share a run. `changes`: it must not be
    done twice. `restores`: its messages are nowhere else.
    """

    name: bytes
    pack: Callable[[Sequence[Operation]], list[bytes]]
    share: Callable[[Sequence[Operation], Any], bool]
    rest: Callable[[Operation], int] = lambda _: 0
    puts: bool = False
    takes: bool = False
    moves: bool = False
    restores: bool = False
    folds: bool = True
    changes: bool = True
    line: Line | None = None
    serves: tuple[Line, ...] = ()
    serves_all: bool = False

    def __repr__(self) -> str:
        """Its name."""
        return self.name.decode()
