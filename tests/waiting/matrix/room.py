"""The events that end the wait of a put: each way in which a full queue gets room. A new one is one line.

events.py explains the words in braces; {q} is the full queue. A log's group is {q}+g.
"""

from dataclasses import dataclass
from itertools import product

from tests.waiting.matrix.events import CLOSED, DONE, NO_QUEUE, SECOND, SHORT, Event
from tests.waiting.matrix.wires import BACKEND, BEANSTALK, MEMCACHED, NATIVE, RESP

LIST, JOBS, LIFO, RANDOM, LOG, GROUPS = "list", "jobs", "lifo", "random", "log", "log with a group"
BOUND, BYTES = "bound", "bytes"
_LISTS, _OF_JOBS, _SIMPLE = (LIST, LOG), (JOBS, LIFO, RANDOM), (LIST, JOBS, LIFO, RANDOM, LOG)
_LIMITS = {BOUND: "BOUND 1", BYTES: "MAX-BYTES 1"}
_TYPES = {
    LIST: "",
    JOBS: "TYPE JOBS",
    LIFO: "TYPE LIFO",
    RANDOM: "TYPE RANDOM",
    LOG: "TYPE LOG",
    GROUPS: "TYPE LOG",
}


@dataclass(frozen=True)
class Way:
    """A way in which the queues of these types and limits get room."""

    act: str
    by: str = RESP
    types: tuple[str, ...] = _SIMPLE
    limits: tuple[str, ...] = (BOUND, BYTES)
    before: str = ""
    wanted: str = DONE
    due: float = 0.0
    fill: str = ""
    name: str = ""
    races: bool = False

    def event(self, kind: str, limit: str) -> Event:
        """Return the event for one type and limit."""
        create = f"PRESSURE.CREATE {{q}} {_TYPES[kind]} {_LIMITS[limit]}"
        if kind == GROUPS:
            create += "; PRESSURE.GROUP CREATE {q} g"
        fill = self.fill or ("PRESSURE.PUT {q} x PRIORITY 5" if kind in _OF_JOBS else "LPUSH {q} x")
        return Event(
            f"{kind} full by {limit}: {self.name or self.act}", self.act, by=self.by, create=create,
            prepare=fill, before=self.before, due=self.due, wanted=self.wanted, races=self.races,
        )  # fmt: skip


_NATIVE_GET = (
    "RPOP {k}:consumer_free; SET {k}:consumer native; RPOP {k}; LPUSH {k}:not_full 0; "
    "LTRIM {k}:not_full 0 0; INCR {k}:stats:consumed_messages; INCRBY {k}:stats:consumed_bytes 1; "
    "LPUSH {k}:consumer_free 0"
)
_READ = "PRESSURE.READ {q} GROUP g c"
# Another group than the slowest one has passed the message.
_PASSED = "LPUSH {q} x; PRESSURE.GROUP CREATE {q} h; BLPOP {q}+h 1"
_LAST_DELIVERY = "PRESSURE.ALTER {q}+g MAX-DELIVERIES 1; LPUSH {q} x"

# The limits for which a reserved or buried job does not count.
_RESERVED = (BOUND, BYTES)

WAYS = (
    Way("SPOP {q}"),
    Way("LPOP {q}"),
    Way("BLPOP {q} 0"),
    Way("LMPOP 1 {q} LEFT"),
    Way("PRESSURE.GET {q}"),
    Way("LMOVE {q} {d} LEFT RIGHT"),
    Way("SMOVE {q} {d} x", types=(LIST, JOBS)),
    Way("MULTI; LPOP {q}; EXEC"),
    Way("get {q}", by=MEMCACHED),
    Way("get {q}/open", by=MEMCACHED, types=(LIST, *_OF_JOBS), limits=_RESERVED),
    Way("GET {q} 10", by=NATIVE, before="OPEN {q}"),
    Way(_NATIVE_GET, by=BACKEND, types=_LISTS, limits=(BOUND,), name="get of the specification"),
    Way("PRESSURE.RESERVE {q}", types=(LIST, *_OF_JOBS), limits=_RESERVED),
    Way("PRESSURE.RESERVE {q}; PRESSURE.BURY {q} {id}", types=_OF_JOBS, limits=_RESERVED),
    Way("reserve", by=BEANSTALK, before="watch {q}", types=(LIST, *_OF_JOBS), limits=_RESERVED),
    Way("reserve-job {id}", by=BEANSTALK, types=_OF_JOBS, limits=_RESERVED),
    Way("reserve; bury {id} 0", by=BEANSTALK, before="watch {q}", types=_OF_JOBS, limits=_RESERVED),
    Way("SREM {q} x", types=(LIST, *_OF_JOBS)),
    Way("LREM {q} 1 x", types=(LIST, *_OF_JOBS)),
    Way("LTRIM {q} 1 0"),
    Way("PRESSURE.ACK {q} {id}", types=_OF_JOBS),
    Way("delete {id}", by=BEANSTALK, types=_OF_JOBS),
    Way("PRESSURE.PURGE {q}"),
    Way("flush {q}", by=MEMCACHED),
    Way("PRESSURE.ALTER {q} BOUND 2", limits=(BOUND,)),
    Way("PRESSURE.ALTER {q} BOUND 0", limits=(BOUND,)),
    Way("PRESSURE.ALTER {q} MAX-BYTES 0", limits=(BYTES,)),
    Way("PRESSURE.ALTER {q} MAX-BYTES 1000", limits=(BYTES,)),
    Way("DEL {q}", wanted=NO_QUEUE),
    Way("PRESSURE.CLOSE {q}", wanted=CLOSED),
    Way("PRESSURE.ACK {q}+g {id} TOKEN c", types=(GROUPS,), before=_READ),
    Way("PRESSURE.BURY {q}+g {id} TOKEN c", types=(GROUPS,), before=_READ),
    Way("delete {id}", by=BEANSTALK, types=(GROUPS,), before="watch {q}+g; reserve"),
    Way("bury {id} 0", by=BEANSTALK, types=(GROUPS,), before="watch {q}+g; reserve"),
    Way("PRESSURE.GROUP SEEK {q} g FROM TAIL", types=(GROUPS,)),
    Way("PRESSURE.PURGE {q}+g", types=(GROUPS,)),
    Way("flush {q}+g", by=MEMCACHED, types=(GROUPS,)),
    Way("BLPOP {q}+g 0", types=(GROUPS,)),
    Way("SPOP {q}+g", types=(GROUPS,)),
    Way("MULTI; LPOP {q}+g; EXEC", types=(GROUPS,)),
    Way("get {q}+g", by=MEMCACHED, types=(GROUPS,)),
    Way("GET {q}+g 10", by=NATIVE, before="OPEN {q}+g", types=(GROUPS,)),
    Way("PRESSURE.GROUP DELETE {q} g; SPOP {q}", types=(GROUPS,)),
    Way("PRESSURE.GROUP DELETE {q} g", types=(GROUPS,), fill=_PASSED),
    Way("PRESSURE.DELETE {q}+g", types=(GROUPS,), fill=_PASSED),
    Way("DEL {q}+g", types=(GROUPS,), fill=_PASSED),
    Way("delete {q}+g", by=MEMCACHED, types=(GROUPS,), fill=_PASSED),
    Way("DELETE {q}+g", by=NATIVE, before="OPEN {q}+g", types=(GROUPS,), fill=_PASSED),
    Way(f"{_READ} TTR {{s}}", types=(GROUPS,), fill=_LAST_DELIVERY, due=SHORT, name="last delivery ends"),
    Way("PRESSURE.ALTER {q} OVERFLOW OVERWRITE"),
    Way("set {q} 0 1 x", by=MEMCACHED, fill="PRESSURE.EXISTS {q}", due=SECOND, races=True),
    Way("DEL {q}", types=(GROUPS,), wanted=NO_QUEUE),
    Way("PRESSURE.CLOSE {q}", types=(GROUPS,), wanted=CLOSED),
)

ROOM_EVENTS = tuple(way.event(kind, limit) for way in WAYS for kind, limit in product(way.types, way.limits))
