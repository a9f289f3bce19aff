"""Problems: all that a queue can have, what each means, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pressure_server.queues.names import CONSUMER_FREE, NOT_FULL, PRODUCER_FREE
from pressure_server.text import printable


class Fix(Enum):
    """A change that repair can make: its name in doctor.lua, and in words, in the past tense."""

    GIVE_BACK_PRODUCER = (b"give_back_producer", "gave the producer role back")
    GIVE_BACK_CONSUMER = (b"give_back_consumer", "gave the consumer role back")
    UNPARK_PRODUCER = (b"unpark_producer", "moved the producer's token back")
    UNPARK_CONSUMER = (b"unpark_consumer", "moved the consumer's token back")
    PUSH_NOT_FULL = (b"push_not_full", f"pushed a {printable(NOT_FULL)} token")
    TAKE_NOT_FULL = (b"take_not_full", f"took the {printable(NOT_FULL)} token away")
    TRIM = (b"trim", "left one token of each")
    WAKE = (b"wake", "gave both roles back to the waiting clients")
    UNLINK = (b"unlink", "deleted what was left")
    SETTLE_STATISTICS = (b"settle_statistics", "corrected the statistics")


# By the name in doctor.lua: the change in words.
FIXED: dict[bytes, str] = dict(fix.value for fix in Fix)


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of problem: its name, its meaning, and what repair does, in words and as a list of fixes."""

    name: str
    means: str
    remedy: str
    fixes: tuple[Fix, ...]


HALF_CREATED = Problem(
    "half created",
    "a native client died while it created the queue: clients that use the queue wait for ever",
    "push the missing tokens",
    (Fix.GIVE_BACK_PRODUCER, Fix.GIVE_BACK_CONSUMER, Fix.PUSH_NOT_FULL),
)
PRODUCER_STUCK = Problem(
    "producer stuck",
    "a native producer died while it held the role (its message may or may not be queued): all other "
    "producers wait for ever",
    f"give the role back (push {printable(PRODUCER_FREE)}), and correct the statistics; but first make sure "
    "that the producer is dead, not just suspended",
    (Fix.GIVE_BACK_PRODUCER, Fix.SETTLE_STATISTICS),
)
CONSUMER_STUCK = Problem(
    "consumer stuck",
    "a native consumer died while it held the role (a message that it had taken is lost): all other "
    "consumers wait for ever",
    f"give the role back (push {printable(CONSUMER_FREE)}), and correct the statistics; but first make sure "
    "that the consumer is dead, not just suspended",
    (Fix.GIVE_BACK_CONSUMER, Fix.SETTLE_STATISTICS),
)
PRODUCER_PARKED = Problem(
    "token parked",
    "a pressure-server died, or lost its backend, in its turn: native producers wait for the role",
    f"move the token back to {printable(PRODUCER_FREE)}",
    (Fix.UNPARK_PRODUCER,),
)
CONSUMER_PARKED = Problem(
    "token parked",
    "a pressure-server died, or lost its backend, in its turn: native consumers wait for the role",
    f"move the token back to {printable(CONSUMER_FREE)}",
    (Fix.UNPARK_CONSUMER,),
)
NO_NOT_FULL = Problem(
    f"no {printable(NOT_FULL)} token",
    "a native client died before it pushed the token: native producers wait although there is room",
    "push the token (a producer that waits for it then continues; one that does not is reported as stuck)",
    (Fix.PUSH_NOT_FULL,),
)
TOO_MANY_IN_A_ROLE = Problem(
    "too many tokens",
    "a client that was considered dead has continued: two clients may act in one role at the same time",
    "remove all but one",
    (Fix.TRIM,),
)
TOO_MANY_NOT_FULL = Problem(
    "too many tokens",
    "a client of pressure 0.1, which leaves two tokens, used the queue, or a client died before it trimmed "
    "the list: the queue may take more messages than its bound",
    "remove all but one",
    (Fix.TRIM,),
)
NOT_FULL_ON_FULL = Problem(
    f"{printable(NOT_FULL)} token on a full queue",
    "a client of pressure 0.1 left a surplus token, or a native client died: the queue may take one message "
    "more than its bound",
    "remove the token",
    (Fix.TAKE_NOT_FULL,),
)
STATISTICS = Problem(
    "statistics",
    "a native client died before it counted messages that it had put or taken (messages taken are lost), or "
    "another program changed the statistics",
    "add the difference to the side that counted too little, and correct the bytes",
    (Fix.SETTLE_STATISTICS,),
)
HALF_DELETED = Problem(
    "half deleted",
    "a client died while it deleted the queue, or waits for a role that a dead client holds: the queue "
    "cannot be created again until its remaining keys are deleted",
    "give back both roles, so that waiting clients continue; then delete the remaining keys",
    (Fix.WAKE,),
)
DELETE_ABANDONED = Problem(
    "half deleted",
    "a client died while it deleted the queue: the queue cannot be created again until its remaining keys "
    "are deleted",
    "delete the remaining keys, which completes the deletion",
    (Fix.UNLINK,),
)
LEFT_BEHIND = Problem(
    "left behind",
    "a native client deleted the queue, but not the keys that pressure-server added: they only use memory",
    "delete these keys",
    (Fix.UNLINK,),
)
# A Delete deletes the list last, so the list may remain; but nothing proves that it was a queue's.
LONE_LIST = Problem(
    "a list alone",
    "a client died in the last step of deleting a queue, or the list belongs to another program",
    "delete the list, but only if the queue is named on the command line",
    (Fix.WAKE,),
)
