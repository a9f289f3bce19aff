"""The events that put a message into the queue, at once or with a delay. A new one is one line."""

from tests.waiting.matrix.events import JOBS, LOG, PUT_JOB, RESERVE, SECOND, SHORT, WORK, Event
from tests.waiting.matrix.wires import BACKEND, BEANSTALK, MEMCACHED, NATIVE

_LATER = "PRESSURE.PUT {q} {m} DELAY {s}"
_FILL, _FILL_LOG = "LPUSH {x} {m}", "LPUSH {x} {m}"
_NATIVE_PUT = (
    "RPOP {k}:producer_free; SET {k}:producer native; RPOP {k}:not_full; LPUSH {k} {m}; "
    "LPUSH {k}:not_full 0; LTRIM {k}:not_full 0 0; INCR {k}:stats:produced_messages; "
    "INCRBY {k}:stats:produced_bytes 8; LPUSH {k}:producer_free 0"
)

PUTS = (
    Event("SADD", "SADD {q} {m}"),
    Event("LPUSH", "LPUSH {q} {m}"),
    Event("LPUSH of three", "LPUSH {q} {m} {m} {m}"),
    Event("PUT", "PRESSURE.PUT {q} {m}"),
    Event("PUT OVERWRITE", "PRESSURE.PUT {q} {m} OVERWRITE", create="PRESSURE.CREATE {q} BOUND 5"),
    Event("LPUSH to jobs", "LPUSH {q} {m}", create=JOBS),
    Event("PUT PRIORITY", PUT_JOB, create=JOBS),
    Event("PUT PRIORITY makes jobs", PUT_JOB),
    Event("LPUSH to lifo", "LPUSH {q} {m}", create="PRESSURE.CREATE {q} TYPE LIFO"),
    Event("LPUSH to random", "LPUSH {q} {m}", create="PRESSURE.CREATE {q} TYPE RANDOM"),
    Event("LPUSH to a log", "LPUSH {q} {m}", create="PRESSURE.CREATE {q} TYPE LOG"),
    Event("EXEC of LPUSH", "MULTI; LPUSH {q} {m}; EXEC"),
    Event("EXEC of a job", f"MULTI; {PUT_JOB}; EXEC", create=JOBS),
    Event("SADD creates", "SADD {q} {m}", create=""),
    Event("EXEC creates", "MULTI; LPUSH {q} {m}; EXEC", create=""),
    Event("set", "set {q} 0 0 {m}", by=MEMCACHED),
    Event("set to jobs", "set {q} 0 0 {m}", by=MEMCACHED, create=JOBS),
    Event("set creates", "set {q} 0 0 {m}", by=MEMCACHED, create=""),
    Event("add", "add {q} 0 0 {m}", by=MEMCACHED),
    Event("put", "put 0 0 60 {m}", by=BEANSTALK, before="use {q}", create=JOBS),
    Event("put makes jobs", "put 0 0 60 {m}", by=BEANSTALK, before="use {q}"),
    Event("put creates", "put 0 0 60 {m}", by=BEANSTALK, before="use {q}", create=""),
    Event("native put", "PUT {q} {m} 10", by=NATIVE, before="OPEN {q}"),
    Event("native put to jobs", "PUT {q} {m} 10", by=NATIVE, before="OPEN {q}", create=JOBS),
    Event("put of the specification", _NATIVE_PUT, by=BACKEND),
    Event("put of the specification to jobs", _NATIVE_PUT, by=BACKEND, create=JOBS),
    Event("LMOVE", "LMOVE {x} {q} LEFT RIGHT", prepare=_FILL),
    Event("LMOVE to jobs", "LMOVE {x} {q} LEFT RIGHT", prepare=_FILL, create=JOBS),
    Event("SMOVE", "SMOVE {x} {q} {m}", prepare=_FILL),
    Event("BLMOVE", "BLMOVE {x} {q} LEFT RIGHT 0", prepare=_FILL),
    Event("EXEC of LMOVE", "MULTI; LMOVE {x} {q} LEFT RIGHT; EXEC", prepare=_FILL),
    Event("SUNIONSTORE", "SUNIONSTORE {q} {x}", prepare=_FILL),
    # beanstalk clients go on waiting.
    Event("DEL, then put", "DEL {q}; LPUSH {q} {m}", create=JOBS),
)


def _released(name: str, act: str, create: str, prepare: str = PUT_JOB) -> Event:
    """Return a release with a delay."""
    return Event(name, act, create=create, prepare=prepare, before=RESERVE, due=SHORT)


_RELEASE = "PRESSURE.RELEASE {q} {id} DELAY {s}"

DELAYS = (
    Event("PUT DELAY", _LATER, create=JOBS, due=SHORT),
    Event("PUT DELAY makes jobs", _LATER, due=SHORT),
    Event("EXEC of PUT DELAY", f"MULTI; {_LATER}; EXEC", create=JOBS, due=SHORT),
    Event("put with delay", "put 0 1 60 {m}", by=BEANSTALK, before="use {q}", create=JOBS, due=SECOND),
    Event("put with delay creates", "put 0 1 60 {m}", by=BEANSTALK, before="use {q}", create="", due=SECOND),
    _released("RELEASE DELAY", _RELEASE, JOBS),
    _released("RELEASE DELAY makes jobs", _RELEASE, "PRESSURE.CREATE {q}", "LPUSH {q} {m}"),
    _released("EXEC of RELEASE DELAY", f"MULTI; {_RELEASE}; EXEC", JOBS),
    Event("release with delay", "release {id} 0 1", BEANSTALK, JOBS, PUT_JOB, before=WORK, due=SECOND),
)


def _of_group(name: str, act: str, prepare: str = _FILL_LOG, before: str = "", **more: bool | float) -> Event:
    """Return an event that makes a message of a log available to a group."""
    return Event(name, act, create=LOG, prepare=prepare, before=before, of_group=True, **more)  # type: ignore[arg-type]


_SECOND_GROUP = "PRESSURE.GROUP CREATE {x} h; LPUSH {x} {m}; BLPOP {q} 1"
_BURIED = "LPUSH {x} {m}; PRESSURE.RESERVE {q}; PRESSURE.BURY {q} {id}"

GROUPS = (
    _of_group("LPUSH to the log", "LPUSH {x} {m}", prepare=""),
    _of_group("EXEC of LPUSH to the log", "MULTI; LPUSH {x} {m}; EXEC", prepare=""),
    _of_group("LMOVE to the log", "LMOVE {y} {x} LEFT RIGHT", prepare="LPUSH {y} {m}"),
    Event("set to the log", "set {x} 0 0 {m}", by=MEMCACHED, create=LOG, of_group=True),
    Event("native put to the log", "PUT {x} {m} 10", NATIVE, before="OPEN {x}", create=LOG, of_group=True),
    Event(
        "put of the specification to the log",
        _NATIVE_PUT.replace("{k}", "{kx}"),
        by=BACKEND,
        create=LOG,
        of_group=True,
    ),
    Event(
        "GROUP CREATE",
        "PRESSURE.GROUP CREATE {x} g",
        create="PRESSURE.CREATE {x} TYPE LOG",
        prepare=_FILL_LOG,
        of_group=True,
    ),
    _of_group("GROUP SEEK", "PRESSURE.GROUP SEEK {x} g FROM HEAD", _SECOND_GROUP, alone=True),
    _of_group(
        "GROUP SEEK in EXEC", "MULTI; PRESSURE.GROUP SEEK {x} g FROM 0; EXEC", _SECOND_GROUP, alone=True
    ),
    _of_group("RELEASE in the group", "PRESSURE.RELEASE {q} {id}", before=RESERVE),
    _of_group("RELEASE DELAY in the group", _RELEASE, before=RESERVE, due=SHORT),
    _of_group("TTR of READ ends", "PRESSURE.READ {x} GROUP g c TTR {s}", due=SHORT, races=True),
    _of_group("hang-up in the group", "(close)", before=RESERVE),
    _of_group("KICK in the group", "PRESSURE.KICK {q}", _BURIED),
)
