"""Exceptions: one for each error of pressure 0.15, and others for the server and the backend."""

from __future__ import annotations

from enum import Enum


class ErrorKind(Enum):
    """What an error means to a client. A protocol without codes takes its words for errors from here."""

    REQUEST = "the request is wrong: the same request fails again"
    NO_ROOM = "there is no room"
    CLOSING = "nothing is put or begun any more"
    DENIED = "the client is not served"
    PASSING = "the request may be sent again later: the log of the server says more"
    OTHER = "any other error"


class PressureError(Exception):
    """The base class of all errors with which an operation on a queue can end.

    `code` is one upper-case word: wire protocols use it as the error's name. The text says which queue the
    error concerns, and what the client can do; classes have it in `text` if it is always the same. `kind` is
    for protocols that have only a few words for errors.
    """

    code = "ERR"
    kind = ErrorKind.OTHER
    text = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or self.text)

    def after(self, messages: int) -> PressureError:
        """Return the same error for a command that had already put `messages` of its messages."""
        error = PressureError(f"{self}; {messages} of the command's messages had been put already")
        error.code, error.kind = self.code, self.kind
        return error


class CommandError(Exception):
    """A command, or a setting of a queue, is wrong. The text begins with the error's code, as in Redis."""


class _QueueError(PressureError):
    """An error of one queue. The first {} in `text` is the queue's printable name, the second a detail."""

    def __init__(self, queue: str, detail: str = "") -> None:
        super().__init__(self.text.format(queue, detail))


class QueueDoesNotExistError(_QueueError):
    """The queue has not been created, or has been deleted."""

    code = "NOQUEUE"
    text = (
        "queue '{}' does not exist: PRESSURE.CREATE makes it; so does SADD or RPUSH through the server, "
        "unless it runs with --no-auto-create"
    )


class QueueAlreadyExistsError(_QueueError):
    """The queue that a client wants to create already exists."""

    code = "EXISTS"
    text = "queue '{}' already exists"


class QueueLimitError(_QueueError):
    """There are as many queues as servers may create; the detail is how many."""

    code = "MAXQUEUES"
    text = (
        "queue '{}' cannot be created: there are {} queues, which is the limit (--max-queues); "
        "delete some first"
    )


class QueueClosedError(_QueueError):
    """A put on a closed queue, or a get that would wait on a closed and empty queue."""

    code = "CLOSED"
    kind = ErrorKind.CLOSING
    text = "queue '{}' is closed: nothing more can be put, and when it is empty nothing more will come"


class QueueFullError(_QueueError):
    """The put would exceed the queue's bound or its limit of bytes."""

    code = "FULL"
    kind = ErrorKind.NO_ROOM
    text = "queue '{}' is full: take messages from it, then put again"


class QueueInUseError(_QueueError):
    """Another client holds the role (producer or consumer) that the operation needs; the detail names it."""

    code = "INUSE"
    text = "queue '{}' is in use {}: try again; if this persists, run pressure-server doctor"


class QueueTypeError(PressureError):
    """The queue was created with a type that does not support the operation.

    `reason` is a word of the library, and for some a detail: 'not-jobs fifo'.
    """

    code = "TYPE"

    def __init__(self, queue: str, reason: str) -> None:
        word, _, detail = reason.partition(" ")
        super().__init__(f"queue '{queue}' {_REASONS_OF_TYPE[word].format(detail)}")


_REASONS_OF_TYPE = {
    "has-groups": "is read by groups: take its messages from 'queue+group'",
    "has-returned": "has messages that came back to it: take these first, then add groups",
    "is-group": "belongs to a group: put into the log that it reads",
    "is-group-no-index": "belongs to a group: only the log that it reads has an index",
    "is-group-no-policy": "belongs to a group, which has no BOUND, OVERFLOW, MAX-BYTES, RETRY-DELAY, "
    "IN-FLIGHT or RATE",
    "is-group-no-removal": "belongs to a group: nothing leaves it from the middle",
    "is-log": "is a log: nothing leaves it from the middle",
    "lacks": "has no {}",
    "newer": "is of the kind '{}', which only newer versions of pressure-server know",
    "no-groups": "has no groups: they need a queue of the type log",
    "no-offsets": "has no offsets: they need a queue of the type log",
    "no-origins": "has no messages whose origin is known: say TO which queue they go",
    "no-positions": "is not a plain list: positions in it change by themselves",
    "no-reservations": "is a log, which has no reservations: read it with a group",
    "not-jobs": "was created as a {}: jobs need a queue of the type jobs",
    "not-unique": "was not created with UNIQUE",
}


class GroupDoesNotExistError(_QueueError):
    """No group of this name reads the log."""

    code = "NOGROUP"
    text = "queue '{}' has no such group: PRESSURE.GROUP CREATE makes it"


class OffsetAheadError(_QueueError):
    """No message with this offset has been put yet; the detail is the next offset."""

    code = "AHEAD"
    text = "queue '{}' has no message there yet: the next one gets the offset {}"


class OffsetGoneError(_QueueError):
    """The message with this offset has left the log; the detail is the oldest offset."""

    code = "GONE"
    text = "queue '{}' no longer has a message there: its oldest one has the offset {}"


class TransactionIdError(_QueueError):
    """A transaction id that another kind of put has used."""

    code = "TXN"
    text = (
        "this transaction id was used for another kind of put on queue '{}': give each put an id of its own"
    )


class CrossShardError(_QueueError):
    """An operation on several queues at once, which are in different shards of a cluster."""

    code = "CROSSSLOT"
    text = "'{}' and '{}' are in different shards: give both the same {{tag}} in their names"


class QueueChangedError(PressureError):
    """A queue that a transaction watches has changed."""

    code = "CHANGED"
    text = "a watched queue has changed"


class StoppingError(PressureError):
    """The operation was waiting when the server began to stop: it is not done, and mostly gets no reply."""

    code = "STOPPING"
    kind = ErrorKind.CLOSING
    text = "the server is stopping, and this was not done: connect again and try again"


class DrainingError(PressureError):
    """The server is draining: it still serves its clients, but is not ready for new ones."""

    code = "STOPPING"
    kind = ErrorKind.CLOSING
    text = "the server is draining: connect to another one"


class WaitLimitError(PressureError):
    """The operation would have to wait, but the limit of waiting operations is reached."""

    code = "OVERLOAD"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} operations are waiting already, which is the limit (--max-waiting): try again later"
        )


class UnblockedError(PressureError):
    """The operation was waiting when another client ended the wait."""

    code = "UNBLOCKED"
    kind = ErrorKind.PASSING
    text = "client unblocked via CLIENT UNBLOCK"  # as in Redis


class BufferLimitError(PressureError):
    """The memory budget is exceeded, and this client has the most bytes buffered: it is disconnected."""

    code = "OOM"
    kind = ErrorKind.NO_ROOM

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"closing this connection: the limit of {limit} bytes buffered for all clients is reached "
            f"(--max-buffered-bytes), and this client has the most, {size}"
        )


class StrangerLimitError(BufferLimitError):
    """The memory budget of clients that have not logged in is exceeded: this one is disconnected."""

    def __init__(self, limit: int) -> None:
        PressureError.__init__(
            self,
            f"closing this connection: it has not logged in, and the limit of {limit} bytes buffered for all "
            "such clients is reached",
        )


class QueueNameError(PressureError):
    """The name is not allowed: keys of the queue could be keys of another queue."""

    kind = ErrorKind.REQUEST


class PatternError(PressureError):
    """The pattern for queue names is invalid."""


class DeniedError(PressureError):
    """The client is on another machine, and the server is in protected mode."""

    code = "DENIED"
    kind = ErrorKind.DENIED
    text = (
        "pressure-server is in protected mode, because clients need not log in: it serves only clients "
        "on its own machine. To serve others, restart it with a password (--password-file) or users "
        "(--users). If a firewall admits only trusted clients, restart it with --no-protected-mode"
    )


class StartError(Exception):
    """The server cannot start, or cannot go on; the text gives the reason."""


class BackendError(PressureError):
    """The backend cannot be reached, or has answered with an error of its own."""

    code = "BACKEND"
    kind = ErrorKind.PASSING

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        if "OOM" in text:  # the word of Redis for a backend without memory
            self.kind = ErrorKind.NO_ROOM


class BackendAwayError(BackendError):
    """The backend cannot be reached: nothing has been done. Commands that wait do not fail with it."""


class OutcomeUnknownError(BackendError):
    """The connection to the backend was lost before the answer: the operation may have been done."""

    text = "the backend was lost before it answered: this may or may not have been done"


class UnansweredError(BackendError):
    """The answer to a read did not come, or is not known to be safe."""

    text = "the backend was lost before it answered, or did not confirm its answer: ask again"


# After these a read, or a take whose messages go back, may be tried again when the backend is back. So a
# command that waits on several queues goes on waiting.
BACKEND_LOST = (BackendAwayError, OutcomeUnknownError, UnansweredError)


class BackendDiedError(OutcomeUnknownError):
    """The backend died each time it was sent the operation, which may have been done."""

    def __init__(self, deaths: int) -> None:
        times = "once" if deaths == 1 else f"{deaths} times"
        BackendError.__init__(
            self,
            f"the backend died {times} while it was doing this, so this is not sent again: it may or may not "
            "have been done; see the backend's log",
        )


class NotSafeError(BackendError):
    """The operation has been done, but the backend has not confirmed the durability level."""

    def __init__(self, level: str, why: str) -> None:
        super().__init__(f"this has been done, but is not known to be safe (durability {level}): {why}")


class BackendReplyError(BackendError):
    """The backend answered with an error."""


class BackendRefusedError(BackendError):
    """The backend cannot be used, and retrying does not help: wrong version, login or database."""


class NoSuchDatabaseError(BackendRefusedError):
    """The backend has no database with this number."""


def forget_frames(error: BaseException | None) -> None:
    """Free the frames through which an error that has been handled was raised.

    They keep the messages of their commands. If one of them refers to the error, as the task or the operation
    of a command does, only the garbage collector would free them.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
