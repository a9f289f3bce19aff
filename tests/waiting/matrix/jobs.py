"""The events that make a job available which was reserved, buried, delayed or paused."""

from tests.waiting.matrix.events import CLOSE, JOBS, LIST, PUT_JOB, RESERVE, RESET, SECOND, SHORT, WORK, Event
from tests.waiting.matrix.stand import UNIX
from tests.waiting.matrix.wires import BEANSTALK, MEMCACHED, RESP

_FILL = "LPUSH {q} {m}"


def _reserved(name: str, act: str, by: str = RESP, before: str = RESERVE) -> Event:
    """Return an event that gives up a reserved job."""
    return Event(name, act, by, JOBS, PUT_JOB, before)


def _taken(name: str, act: str, by: str = RESP, before: str = RESERVE) -> Event:
    """Return an event that gives up a reserved message of a list."""
    return Event(name, act, by, LIST, _FILL, before)


RELEASES = (
    _reserved("RELEASE", "PRESSURE.RELEASE {q} {id}"),
    _reserved("EXEC of RELEASE", "MULTI; PRESSURE.RELEASE {q} {id}; EXEC"),
    _reserved("hang-up", CLOSE),
    _reserved("reset", RESET),
    _reserved("QUIT", "QUIT"),
    _reserved("release", "release {id} 0 0", BEANSTALK, WORK),
    _reserved("hang-up of a worker", CLOSE, BEANSTALK, WORK),
    _reserved("quit of a worker", "quit", BEANSTALK, WORK),
    _reserved("get/abort of a job", "get {q}/abort", MEMCACHED, "get {q}/open"),
    _taken("RELEASE to a list", "PRESSURE.RELEASE {q} {id}"),
    _taken("hang-up, list", CLOSE),
    _taken("QUIT, list", "QUIT"),
    _taken("get/abort", "get {q}/abort", MEMCACHED, "get {q}/open"),
    _taken("hang-up with an open read", CLOSE, MEMCACHED, "get {q}/open"),
    _taken("quit with an open read", "quit", MEMCACHED, "get {q}/open"),
    Event("unread reply", CLOSE, UNIX, LIST, "LPUSH {q} {m} {large}", "LPOP {q} 2"),
    Event("unread reply of jobs", CLOSE, UNIX, JOBS, f"{PUT_JOB}; LPUSH {{q}} {{large}}", "LPOP {q} 2"),
)

_RESERVE_TTR = "PRESSURE.RESERVE {q} TTR {s}"
_BRIEF = "PRESSURE.PUT {q} {m} TTR {s}"
_BRIEF_BURIED = f"{_BRIEF}; PRESSURE.RESERVE {{q}}; PRESSURE.BURY {{q}} {{id}}"
_BY_ID = "reserve-job {id}"

TIMES_TO_RUN = (
    Event("RESERVE TTR ends", _RESERVE_TTR, RESP, JOBS, PUT_JOB, due=SHORT, races=True),
    Event("RESERVE TTR ends, list", _RESERVE_TTR, RESP, LIST, _FILL, due=SHORT, races=True),
    Event("DETACHED TTR ends", f"{_RESERVE_TTR} DETACHED t", RESP, JOBS, PUT_JOB, due=SHORT, races=True),
    Event("TTR ends after TOUCH", "PRESSURE.TOUCH {q} {id}", RESP, JOBS, PUT_JOB, _RESERVE_TTR, SECOND),
    Event("TTR of reserve ends", "reserve", BEANSTALK, JOBS, _BRIEF, "watch {q}", SECOND, races=True),
    Event("TTR of reserve-job ends, buried", _BY_ID, BEANSTALK, JOBS, _BRIEF_BURIED, due=SHORT),
    Event("TTR of reserve-job ends, delayed", _BY_ID, BEANSTALK, JOBS, f"{_BRIEF} DELAY 100", due=SHORT),
    Event("TTR of reserve-job ends, list", _BY_ID, BEANSTALK, LIST, _BRIEF_BURIED, due=SHORT),
)

_BURIED = f"{PUT_JOB}; PRESSURE.RESERVE {{q}}; PRESSURE.BURY {{q}} {{id}}"
_LATER = "PRESSURE.PUT {q} {m} DELAY 100"

KICKS = (
    Event("KICK, buried", "PRESSURE.KICK {q}", RESP, JOBS, _BURIED),
    Event("KICK, delayed", "PRESSURE.KICK {q}", RESP, JOBS, _LATER, alone=True),
    Event("kick, buried", "kick 10", BEANSTALK, JOBS, _BURIED, "use {q}"),
    Event("kick, delayed", "kick 10", BEANSTALK, JOBS, _LATER, "use {q}", alone=True),
    Event("kick-job, buried", "kick-job {id}", BEANSTALK, JOBS, _BURIED),
    Event("kick-job, delayed", "kick-job {id}", BEANSTALK, JOBS, _LATER),
)

_PAUSE = "PRESSURE.PAUSE {q} {s}"
_PAUSED = f"PRESSURE.PAUSE {{q}} 100; {PUT_JOB}"

PAUSES = (
    Event("pause of an empty queue ends", f"{_PAUSE}; {PUT_JOB}", RESP, JOBS, due=SHORT),
    Event("pause with a job ends", _PAUSE, RESP, JOBS, PUT_JOB, due=SHORT, races=True),
    Event("shorter pause ends", _PAUSE, RESP, JOBS, _PAUSED, due=SHORT),
    Event("pause-tube ends", "pause-tube {q} 1", BEANSTALK, JOBS, _PAUSED, due=SECOND),
    Event("PAUSE 0", "PRESSURE.PAUSE {q} 0", RESP, JOBS, _PAUSED),
    Event("pause-tube 0", "pause-tube {q} 0", BEANSTALK, JOBS, _PAUSED),
)

_LAST = "PRESSURE.CREATE {x} MAX-DELIVERIES 1 DEAD-LETTER {q}; PRESSURE.CREATE {q}"
_WORK, _WORK_OF_CLIENT, _WORK_OF_WORKER = "LPUSH {x} {m}", "PRESSURE.RESERVE {x}", "watch {x}; reserve"
_BRIEF_WORK = "PRESSURE.PUT {x} {m} TTR {s}"

DEAD_LETTERS = (
    Event("last RELEASE", "PRESSURE.RELEASE {x} {id}", RESP, _LAST, _WORK, _WORK_OF_CLIENT),
    Event("last release", "release {id} 0 0", BEANSTALK, _LAST, _WORK, _WORK_OF_WORKER),
    Event("last hang-up", CLOSE, RESP, _LAST, _WORK, _WORK_OF_CLIENT),
    Event("last QUIT", "QUIT", RESP, _LAST, _WORK, _WORK_OF_CLIENT),
    Event("last RESERVE TTR ends", "PRESSURE.RESERVE {x} TTR {s}", RESP, _LAST, _WORK, due=SHORT),
    Event("last TTR of reserve ends", "reserve", BEANSTALK, _LAST, _BRIEF_WORK, "watch {x}", SECOND),
)
