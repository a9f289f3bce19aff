"""The ledger of a chaos run. It identifies messages by their names, and knows their jobs."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tests.chaos.messages import flags_of, name_of
from tests.support.ledger import Event, Ledger, Strange

# The time to run of a message that was put without, in seconds.
_DEFAULT_TTR = 60.0


class Refusal(NamedTuple):
    """A reservation that ended early: an event of the job was refused before its time to run was over.

    `reserved` and `refused` are of the same client. A detached reservation does not end with its proxy.
    """

    message: bytes
    event: str
    reserved: Event
    refused: Event
    is_detached: bool


class NamedLedger(Ledger):
    """A ledger of the messages of `messages.py`. It detects changed messages and wrong flags.

    A message that was reserved is received when its job is ended: the reply to its deletion was read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_receipt = 0.0
        # How often workers ended the job of a message, if they did.
        self.ends: Counter[bytes] = Counter()
        self.refusals: list[Refusal] = []
        # Ids that two messages had, and messages with two ids.
        self.wrong_ids: list[str] = []
        # The number of acknowledged messages that were put as jobs.
        self.jobs = 0
        self._ttrs: dict[bytes, float] = {}
        self._ids: dict[bytes, int] = {}
        self._messages: dict[int, bytes] = {}

    def read(self, data: bytes, receipt: Event, flags: int | None = None) -> None:
        """Note a message that a client has received, with its flags if the reply had any."""
        name = self.see(data, receipt, flags)
        if name:
            self.receive([name], receipt)

    def see(self, data: bytes, receipt: Event, flags: int | None = None) -> bytes:
        """Note a message that a client has read, and that stays in its queue or is put back.

        Return its name, or b"" if nobody sent it.
        """
        self.last_receipt = receipt.when
        try:
            name = name_of(data)
        except ValueError:
            name = b""
        is_sent = self.is_sent(name)
        if not is_sent or (flags is not None and flags != flags_of(name)):
            self.strange.append(Strange(data, receipt, flags))
        return name if is_sent else b""

    def send_job(self, name: bytes, ttr: float) -> None:
        """Note the time to run of a job that is about to be put, in seconds."""
        self._ttrs[name] = ttr

    def ttr_of(self, name: bytes) -> float:
        """Return the time to run of a message, in seconds."""
        return self._ttrs.get(name, _DEFAULT_TTR)

    def queue_of(self, name: bytes) -> str:
        """Return the queue into which a message was put."""
        return self._sent[name][1].queue

    def acknowledged_in(self, queue: str) -> int:
        """Return how many messages that were put into the queue are acknowledged."""
        return sum(self._sent[name][1].queue == queue for name in self._acknowledged)

    @property
    def ids(self) -> Mapping[int, bytes]:
        """The messages by the ids that their jobs have had."""
        return self._messages

    def identify(self, name: bytes, job: int, *, is_kept: bool) -> None:
        """Note the id of a message's job. No other message may have it.

        A message keeps it if `is_kept`; a message of a list gets a new id for each reservation.
        """
        other = self._messages.setdefault(job, name)
        if other != name:
            self.wrong_ids.append(f"{job} is the id of {other.decode()} and of {name.decode()}")
        if is_kept:
            first = self._ids.setdefault(name, job)
            if first != job:
                self.wrong_ids.append(f"{name.decode()} has the ids {first} and {job}")

    def end(self, name: bytes, receipt: Event) -> None:
        """Note a job that a worker has deleted."""
        self.ends[name] += 1
        self.receive([name], receipt)

    @property
    def doubtful(self) -> int:
        """The number of messages whose deletion got no reply, and that nobody received."""
        return self.settled - self.received

    def inserted(self, name: bytes, job: int) -> None:
        """Note that the put of a job was acknowledged, with its id."""
        self.acknowledge([name])
        self.identify(name, job, is_kept=True)
        self.jobs += 1

    def is_job(self, name: bytes) -> bool:
        """Return whether the message was put as a job."""
        return name in self._ttrs
