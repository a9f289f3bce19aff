"""The events that end the wait of a consumer with an error. A new one is one line."""

from tests.waiting.matrix.events import CLOSE, CLOSED, JOBS, LIST, LOG, NO_QUEUE, RESERVE, SECOND, WORK, Event
from tests.waiting.matrix.wires import BACKEND, BEANSTALK, MEMCACHED, NATIVE, RESP

_CLOSE = "PRESSURE.CLOSE {q}"
_LAST_JOB = f"PRESSURE.PUT {{q}} x PRIORITY 5; {_CLOSE}"
_LAST_MESSAGE = f"LPUSH {{q}} x; {_CLOSE}"
_LAST_DELAYED = f"PRESSURE.PUT {{q}} x DELAY 100; {_CLOSE}"
_LAST_OF_LOG = "LPUSH {x} x; PRESSURE.CLOSE {x}"
_DIES = "PRESSURE.CREATE {q} MAX-DELIVERIES 1"
_CLOSED_LOG = "PRESSURE.CREATE {x} TYPE LOG; PRESSURE.CLOSE {x}"


def _closed(
    name: str,
    act: str,
    by: str = RESP,
    create: str = JOBS,
    prepare: str = _LAST_JOB,
    before: str = RESERVE,
    due: float = 0.0,
    of_group: bool = False,
) -> Event:
    """Return an event after which the queue is closed and has no jobs."""
    return Event(name, act, by, create, prepare, before, due, CLOSED, of_group)


CLOSINGS = (
    _closed("CLOSE", _CLOSE, RESP, LIST, "", ""),
    _closed("CLOSE of jobs", _CLOSE, RESP, JOBS, "", ""),
    _closed("CLOSE of the log", "PRESSURE.CLOSE {x}", RESP, LOG, "", "", of_group=True),
    _closed("closed, GROUP CREATE", "PRESSURE.GROUP CREATE {x} g", RESP, _CLOSED_LOG, "", "", of_group=True),
    _closed("native close", "CLOSE {q}", NATIVE, LIST, "", "OPEN {q}"),
    _closed("close of the specification", "LPUSH {k}:closed 0 0", BACKEND, LIST, "", ""),
    _closed("specified close of the log", "LPUSH {kx}:closed 0 0", BACKEND, LOG, "", "", of_group=True),
    _closed("closed, ACK", "PRESSURE.ACK {q} {id}"),
    _closed("closed, BURY", "PRESSURE.BURY {q} {id}"),
    _closed("closed, delete", "delete {id}", BEANSTALK, before=WORK),
    _closed("closed, bury", "bury {id} 0", BEANSTALK, before=WORK),
    _closed("closed, PURGE RESERVED", "PRESSURE.PURGE {q} RESERVED"),
    _closed("closed, dead by RELEASE", "PRESSURE.RELEASE {q} {id}", create=_DIES),
    _closed("closed, dead by a hang-up", CLOSE, create=_DIES),
    _closed(
        "closed, dead by its TTR",
        "PRESSURE.TOUCH {q} {id}",
        RESP,
        _DIES,
        before=f"{RESERVE} TTR {{s}}",
        due=SECOND,
    ),
    _closed("closed, ACK of a message", "PRESSURE.ACK {q} {id}", RESP, LIST, _LAST_MESSAGE),
    _closed("closed, get/close", "get {q}/close", MEMCACHED, LIST, _LAST_MESSAGE, "get {q}/open"),
    _closed("closed, ACK of a delayed job", "PRESSURE.ACK {q} {id}", prepare=_LAST_DELAYED, before=""),
    _closed("closed, PURGE of a delayed job", "PRESSURE.PURGE {q}", prepare=_LAST_DELAYED, before=""),
    _closed("closed, ACK in the group", "PRESSURE.ACK {q} {id}", RESP, LOG, _LAST_OF_LOG, of_group=True),
)

_LATER = "PRESSURE.PUT {q} {m} DELAY 100"

DELETIONS = (
    Event("DEL", "DEL {q}", wanted=NO_QUEUE),
    Event("DEL of jobs", "DEL {q}", create=JOBS, wanted=NO_QUEUE),
    Event("DEL of a delayed job", "DEL {q}", create=JOBS, prepare=_LATER, wanted=NO_QUEUE),
    Event("DELETE", "PRESSURE.DELETE {q}", wanted=NO_QUEUE),
    Event("delete of the queue", "delete {q}", MEMCACHED, wanted=NO_QUEUE),
    Event("native delete", "DELETE {q}", NATIVE, before="OPEN {q}", wanted=NO_QUEUE),
    Event("GROUP DELETE", "PRESSURE.GROUP DELETE {x} g", create=LOG, wanted=NO_QUEUE, of_group=True),
    Event("DEL of the log", "DEL {x}", create=LOG, wanted=NO_QUEUE, of_group=True),
)
