"""Troubles: all that can be wrong with a queue, what each means, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pressure_server.queues.names import CONSUMER_FREE, NOT_FULL, PRODUCER_FREE, printable


class Fix(Enum):
    """What repair can do; the value is its name in doctor.lua."""

    GIVE_BACK_PRODUCER = b"give_back_producer"
    GIVE_BACK_CONSUMER = b"give_back_consumer"
    UNPARK_PRODUCER = b"unpark_producer"
    UNPARK_CONSUMER = b"unpark_consumer"
    PUSH_NOT_FULL = b"push_not_full"
    TAKE_NOT_FULL = b"take_not_full"
    TRIM = b"trim"
    WAKE = b"wake"
    UNLINK = b"unlink"
    SETTLE_STATISTICS = b"settle_statistics"

    @property
    def past(self) -> str:
        """What has been done, for people."""
        return _PAST[self]


_PAST = {
    Fix.GIVE_BACK_PRODUCER: "gave the producer role back",
    Fix.GIVE_BACK_CONSUMER: "gave the consumer role back",
    Fix.UNPARK_PRODUCER: "moved the producer's token back",
    Fix.UNPARK_CONSUMER: "moved the consumer's token back",
    Fix.PUSH_NOT_FULL: f"pushed a {printable(NOT_FULL)} token",
    Fix.TAKE_NOT_FULL: f"took the {printable(NOT_FULL)} token away",
    Fix.TRIM: "left one token of each",
    Fix.WAKE: "gave both roles back to whoever waits there",
    Fix.UNLINK: "deleted what was left",
    Fix.SETTLE_STATISTICS: "corrected the statistics",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Its name, what it means, what repair would do, in words and as what it tries."""

    name: str
    means: str
    remedy: str
    mends: tuple[Fix, ...]


HALF_CREATED = Problem(
    "half created",
    "a native client died while it created the queue: whoever uses it waits for ever",
    "push the tokens that are missing",
    (Fix.GIVE_BACK_PRODUCER, Fix.GIVE_BACK_CONSUMER, Fix.PUSH_NOT_FULL),
)
PRODUCER_STUCK = Problem(
    "producer stuck",
    "a native producer died in the middle of its work (its message may or may not be queued): all other "
    "producers wait for ever",
    f"give the role back (push {printable(PRODUCER_FREE)}), and correct the statistics; but first make sure "
    "that it is dead, and not stopped",
    (Fix.GIVE_BACK_PRODUCER, Fix.SETTLE_STATISTICS),
)
CONSUMER_STUCK = Problem(
    "consumer stuck",
    "a native consumer died in the middle of its work (a message that it had taken is lost with it): all "
    "other consumers wait for ever",
    f"give the role back (push {printable(CONSUMER_FREE)}), and correct the statistics; but first make sure "
    "that it is dead, and not stopped",
    (Fix.GIVE_BACK_CONSUMER, Fix.SETTLE_STATISTICS),
)
PRODUCER_PARKED = Problem(
    "token parked",
    "a pressure-server died, or lost its backend, in its turn: native producers wait for the role",
    f"move it back to {printable(PRODUCER_FREE)}",
    (Fix.UNPARK_PRODUCER,),
)
CONSUMER_PARKED = Problem(
    "token parked",
    "a pressure-server died, or lost its backend, in its turn: native consumers wait for the role",
    f"move it back to {printable(CONSUMER_FREE)}",
    (Fix.UNPARK_CONSUMER,),
)
NO_NOT_FULL = Problem(
    f"no {printable(NOT_FULL)} token",
    "a native client died before it pushed the token: native producers wait for room that is there",
    "push the token (a producer that waits for it then goes on; one that does not is found stuck next)",
    (Fix.PUSH_NOT_FULL,),
)
TOO_MANY_IN_A_ROLE = Problem(
    "too many tokens",
    "a client that had been taken for dead came back: two clients may act in one role at once",
    "leave one",
    (Fix.TRIM,),
)
TOO_MANY_NOT_FULL = Problem(
    "too many tokens",
    "a client of pressure 0.1, which leaves two, was here, or one died before it trimmed the list: the queue "
    "may take more than its bound",
    "leave one",
    (Fix.TRIM,),
)
NOT_FULL_ON_FULL = Problem(
    f"{printable(NOT_FULL)} token on a full queue",
    "a client of pressure 0.1 left one too many, or a native client died: one message more gets in",
    "take the token away",
    (Fix.TAKE_NOT_FULL,),
)
STATISTICS = Problem(
    "statistics",
    "a native client died before it counted what it had put or taken (what it had taken is lost with it), or "
    "somebody else wrote there",
    "add what is missing to the side that counted too little, and the bytes",
    (Fix.SETTLE_STATISTICS,),
)
HALF_DELETED = Problem(
    "half deleted",
    "a client died while it deleted the queue, or waits for a role that a dead one holds: until the rest is "
    "gone the queue cannot be made anew",
    "give back both roles, so that whoever waits there goes on; then delete what is left",
    (Fix.WAKE,),
)
DELETE_ABANDONED = Problem(
    "half deleted",
    "a client died while it deleted the queue: until the rest is gone the queue cannot be made anew",
    "delete the rest, as whoever deleted the queue wanted to",
    (Fix.UNLINK,),
)
LEFT_BEHIND = Problem(
    "left behind",
    "a native client deleted the queue and does not know of this server's keys: they only take up memory",
    "delete them",
    (Fix.UNLINK,),
)
# The last that a Delete comes to. But nothing shows that it was a queue's.
LONE_LIST = Problem(
    "a list alone",
    "a client died at the last step of deleting a queue, or the list is somebody else's",
    "delete it, but only where the queue is named on the command line",
    (Fix.WAKE,),
)
