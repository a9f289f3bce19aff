"""What can go wrong with a queue: one exception for each error of pressure 0.15, and the backend's own."""

from __future__ import annotations


class PressureError(Exception):
    """The root of every error that an operation on a queue can end with.

    Each class has a `code`, one upper-case word, by which a wire protocol may name it; the text says
    which queue it is about and what can be done.
    """

    code = "ERR"

    def after(self, messages: int) -> PressureError:
        """The same error, of a command that had already put so many of its messages."""
        error = PressureError(f"{self}; {messages} of the command's messages had been put already")
        error.code = self.code
        return error


class QueueDoesNotExistError(PressureError):
    """The queue has not been created, or has been deleted."""

    code = "NOQUEUE"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue '{queue}' does not exist: PRESSURE.CREATE makes it; "
            "so does SADD or RPUSH through the server, unless it runs with --no-auto-create"
        )


class QueueAlreadyExistsError(PressureError):
    """Create was asked for a queue that exists."""

    code = "EXISTS"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue '{queue}' already exists")


class QueueClosedError(PressureError):
    """A put on a closed queue, or a wait for a message on one that is empty."""

    code = "CLOSED"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue '{queue}' is closed: nothing more can be put, and when it is empty nothing more will come"
        )


class QueueFullError(PressureError):
    """A put that would exceed the queue's bound."""

    code = "FULL"

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue '{queue}' is full: take messages from it, then put again")


class QueueInUseError(PressureError):
    """Another client holds the role (producer or consumer) that the operation needs."""

    code = "INUSE"

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(
            f"queue '{queue}' is in use {reason}: try again; if it stays so, ask pressure-server doctor"
        )


class QueueChangedError(PressureError):
    """A queue has changed on whose not changing a transaction depended."""

    code = "CHANGED"


class StoppingError(PressureError):
    """The operation waited, and the server stops."""

    code = "STOPPING"

    def __init__(self) -> None:
        super().__init__("the server is stopping, so the wait has ended: connect again, and try again")


class DrainingError(PressureError):
    """The server stops: it serves its clients, but is not ready for new ones."""

    code = "STOPPING"

    def __init__(self) -> None:
        super().__init__("the server is draining: connect to another one")


class TooManyWaitError(PressureError):
    """The operation would have to wait, and as many do as may."""

    code = "OVERLOAD"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} operations wait already, as many as may (--max-waiting): try again when some have ended"
        )


class OutOfMemoryError(PressureError):
    """Clients have the server keep more than it may; who has it keep most is disconnected."""

    code = "OOM"

    def __init__(self, size: int, limit: int) -> None:
        """`size` is what that one holds, and `limit` what all may, in bytes."""
        super().__init__(
            f"closing this connection: of {limit} bytes that may be buffered for all clients "
            f"(--max-buffered-bytes) it had {size}"
        )


class QueueNameError(PressureError):
    """The name would alias keys of another queue."""

    code = "ERR"


class PatternError(PressureError):
    """A pattern for names that cannot be used."""


class DeniedError(PressureError):
    """A client from elsewhere, where nobody has said who may come in."""

    code = "DENIED"

    def __init__(self) -> None:
        super().__init__(
            "pressure-server is in protected mode, because clients need not log in: only those on this "
            "machine are served. To serve others, either give the server a password (--password-file), or "
            "users (--users), and restart it; or, where a firewall lets in only who may use the queues, "
            "restart it with --no-protected-mode"
        )


class BackendError(PressureError):
    """The backend cannot be reached, or answered an operation with an error of its own."""

    code = "BACKEND"


class OutcomeUnknownError(BackendError):
    """The backend was lost before it answered: the operation may or may not have been done."""

    def __init__(self) -> None:
        super().__init__("the backend was lost before it answered: this may or may not have been done")


class UnansweredError(BackendError):
    """The backend was lost before it answered a question."""

    def __init__(self) -> None:
        super().__init__("the backend was lost before it answered: ask again")


class BackendDiedError(OutcomeUnknownError):
    """The backend died whenever it was sent this: the operation may or may not have been done."""

    def __init__(self, deaths: int) -> None:
        times = "once" if deaths == 1 else f"{deaths} times"
        BackendError.__init__(
            self,
            f"the backend died {times} while it was doing this, so this is not sent again: it may or may not "
            "have been done; the log of the backend may say why",
        )


class NotSafeError(BackendError):
    """The operation has been done, but the backend did not confirm what `--durability` asks for."""

    def __init__(self, level: str, why: str) -> None:
        super().__init__(f"this has been done, but is not known to be safe (durability {level}): {why}")


class BackendReplyError(BackendError):
    """The backend was reached, and answered with an error."""
