"""Operations: what a client wants done on one queue, and how far that has come.

Pure: values in, values out. One may stand for many equal commands of one client; what it does is its kind's
affair (kinds.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pressure_server.broker.delivery import Delivery
from pressure_server.broker.wait import Wait
from pressure_server.errors import PressureError


class Operation:
    """One or more equal commands on one queue.

    `sizes` has one number a command: how many messages it brought (put, add, contains, remove), or
    wants (get, take). `messages` are theirs, end to end. Other kinds have their arguments in `messages`.

    When it has ended, `owner.completed(operation)` is called, and either `error` is set, or `results`
    holds: for put and add one entry a command (the queue's length after it; how many of its messages
    were new; or the error that it alone met), for contains and remove one 1 or 0 a message, for get and
    take the messages, fewer than wanted when the queue ran empty or the time out; for other kinds the one
    value.

    `reply` is a function that makes the replies of its commands, one behind the other, and `encoded` what it
    has made, until that is written.

    `ended_as` counts the operations on the queue in the order in which they ended.
    If it `has_taken` messages, its owner has them from `completed` on, and calls `delivered` when they have
    been handed over, or `put_back`, once: until then the backend keeps them for us.

    `encoded` is its reply, where it has ended before others whose replies go first.

    `sent` is how many of the commands that are left go with the call under way; None is all of them.

    One that may have to wait, otherwise than all do, is made with a `Wait`. `owner.waits(operation)` is
    called when it begins to.
    """

    __slots__ = (
        "cancelled",
        "deliveries",
        "encoded",
        "ended_as",
        "error",
        "handed",
        "kind",
        "messages",
        "name",
        "owner",
        "reply",
        "results",
        "sealed",
        "sent",
        "sizes",
        "wait",
        "wanted",
    )

    def __init__(
        self,
        kind: Kind,
        name: bytes,
        messages: list[bytes],
        size: int,
        owner: Any,
        reply: Any = None,
        commands: int = 1,
        wait: Wait | None = None,
    ) -> None:
        self.kind = kind
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

    def may_extend(self, kind: Kind, name: bytes, reply: Any) -> bool:
        """Whether more commands like these can become part of it."""
        return (
            not self.sealed
            and self.kind is kind
            and self.name == name
            and self.reply is reply
            and self.wait is None
            and kind.folds
        )

    def extend(self, messages: list[bytes], size: int, commands: int) -> None:
        """Append more commands of `size` messages each; see `may_extend`."""
        self.messages += messages
        self.sizes += [size] * commands
        self.wanted += size * commands

    def stay(self, *, elsewhere: bool = False) -> None:
        """It waits on a queue that exists, and so not for another of that name, nor does it make one.

        `elsewhere`: that is the queue to which a move goes.
        """
        if elsewhere:
            self.messages[1] = self.messages[1].removesuffix(b" existing") + b" existing"
        else:
            self.kind = self.kind.waiting or self.kind

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
            if self.kind.opens:
                self.deliveries = None
            delivery.put_back(self)

    @property
    def has_taken(self) -> bool:
        """Whether it has messages that are nowhere else now."""
        return bool(self.results) and self.kind.takes and not self.kind.moves

    def commands_left(self) -> int:
        """How many of its commands have no result yet."""
        return len(self.sizes) - len(self.results)

    def messages_left(self) -> int:
        """How many of its messages have no result yet, or are still wanted."""
        return self.wanted - len(self.results)

    @property
    def units_sent(self) -> int:
        """What goes with the call under way, in the units of its kind's `rest`."""
        rest = self.kind.rest(self)
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
        elif self.kind.folds and not self.kind.takes:
            self.results += [error] * self.kind.rest(self)


class Line(Enum):
    """The two lines of a queue in which operations wait, by the role they need."""

    PRODUCERS = "producer"
    CONSUMERS = "consumer"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kind:
    """How operations of one kind are packed for the script, and how a reply is shared out among them.

    `pack` appends the run's arguments. `share` extends each operation's results from the run's reply, and
    says whether one may lack something, as it then notes in the operation's `wait`. `rest` is what an
    operation still lacks, in the units in which the script says what it left undone.

    `line` is where one waits, and `serves` are those who may go on when one has been done. One that has
    waited goes on as `waiting`, which does not create a queue that has been deleted meanwhile. `counts`: a
    command's result is a count, which adds up where it is done in parts. `changes`: it must not be done
    twice. `restores`: its messages are nowhere else. `opens`: what it has taken is delivered when its client
    says so, and not when it has been sent. `marked`: it takes messages with their flags.
    """

    name: bytes
    pack: Callable[[Sequence[Operation]], list[bytes]]
    share: Callable[[Sequence[Operation], Any], bool]
    rest: Callable[[Operation], int] = lambda _: 0
    puts: bool = False
    takes: bool = False
    moves: bool = False
    restores: bool = False
    marked: bool = False
    opens: bool = False
    folds: bool = True
    counts: bool = False
    changes: bool = True
    line: Line | None = None
    serves: tuple[Line, ...] = ()
    satisfied: Callable[[Operation], bool] = lambda _: True
    waiting: Kind | None = None

    def __repr__(self) -> str:
        """Its name."""
        return self.name.decode()
