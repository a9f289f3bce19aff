"""What an event of the matrix is. The tables are in puts.py, jobs.py, endings.py and room.py.

Commands are separated by semicolons. Words in braces:

| word | meaning |
|---|---|
| {q} | the queue on which the waiter waits; if the event is `of_group`, the queue {x}+g of a group |
| {x} | another queue, or the log of the group |
| {d}, {y} | the destination of moves; another queue |
| {m} | the message for the waiter |
| {id} | the id of the last job that was put with options, or reserved, during the preparation |
| {s} | the time until the event is due, in seconds |
| {k}, {kx} | the base keys of {q} and {x} in the backend |
"""

from dataclasses import dataclass

from tests.waiting.matrix.wires import RESP

# What the waiter gets: its message, an error, or the success of its put.
MESSAGE, CLOSED, NO_QUEUE, DONE = "message", "closed", "no queue", "done"
# Actions that are no command: the client closes its connection, with FIN or RST.
CLOSE, RESET = "(close)", "(reset)"
# Delays in seconds. Beanstalk counts in whole seconds.
SHORT, SECOND = 0.08, 1.0

# Parts of events.
LIST = "PRESSURE.CREATE {q}"
JOBS = "PRESSURE.CREATE {q} TYPE JOBS"
LOG = "PRESSURE.CREATE {x} TYPE LOG; PRESSURE.GROUP CREATE {x} g"
PUT_JOB = "PRESSURE.PUT {q} {m} PRIORITY 5"
RESERVE = "PRESSURE.RESERVE {q}"
WORK = "watch {q}; reserve"


@dataclass(frozen=True)
class Event:
    """An event. `act` brings it about, at once or after `due` seconds.

    The commands of `create` and `prepare` are sent over RESP. The client that brings the event about speaks
    the protocol `by`, and sends the commands of `before` and `act`. With `races`, a waiter that comes before
    `act` gets the message at once. With `alone`, another job in the queue would change what the event does.
    """

    name: str
    act: str
    by: str = RESP
    create: str = LIST
    prepare: str = ""
    before: str = ""
    due: float = 0.0
    wanted: str = MESSAGE
    of_group: bool = False
    races: bool = False
    alone: bool = False

    @property
    def creates(self) -> bool:
        """Whether the queue does not exist before the event."""
        return ("GROUP CREATE {x} g" if self.of_group else "{q}") not in self.create
