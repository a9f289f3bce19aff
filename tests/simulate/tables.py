"""The commands of the programs: tables with weights, by protocol and flavour, and random arguments.

A command that begins with `?` is about jobs that exist when it is sent; see resolve.py.
"""

import random
from collections.abc import Callable
from typing import Any

from tests.simulate.world import SHORT, Words

_MESSAGES = [b"m%d" % number for number in range(7)]
# Messages that only memcached clients put. Each always has the same flags.
_FLAGGED = [b"f%d" % number for number in range(3)]
# Messages of jobs and logs: only a few, so that they repeat, and one with bytes of all kinds.
FEW = [b"", b"a", b"bb", b"c c", b"\xff\r\n\x00"]
_LONG = 100  # seconds: no time to run and no delay ends by itself
_PRIORITIES = (0, 1, 1023, 1024, 1024, 4294967295)
GROUPS, CONSUMERS, TRANSACTIONS = ("g", "i+j"), ("ann", "bob"), ("t1", "t2", "t3")


class Chance(random.Random):
    """Random choices of arguments."""

    queues: tuple[str, ...] = ("a", "b", "c")
    messages: list[bytes] = _MESSAGES

    @property
    def queue(self) -> str:
        """A queue; most happens in the first ones."""
        return self.choice(self.queues)

    @property
    def job_queue(self) -> str:
        """The same for what makes a queue one of jobs: the others stay lists for some time."""
        return self.choice((*self.queues, *[self.queues[0]] * 3))

    @property
    def group(self) -> str:
        """The queue of a group of a log."""
        return f"{self.queue}+{self.choice(GROUPS)}"

    def some(self, most: int = 3) -> list[str]:
        """Return some queues, in any order."""
        names = sorted(set(self.queues))
        return self.sample(names, self.randint(1, min(most, len(names))))

    @property
    def message(self) -> bytes:
        return self.choice(self.messages)

    def several(self, most: int = 4) -> list[bytes]:
        """Return some messages; one may come twice."""
        return [self.message for _ in range(self.randint(1, most))]

    @property
    def timeout(self) -> float:
        """0 for no timeout, or a short one."""
        return self.choice((0, 0, 0, SHORT))

    def rarely(self, *words: Any) -> Words:
        """Return these words, or none."""
        return words if self.random() < 0.3 else ()


Make = Callable[[Chance], Words]
Table = list[tuple[int, Make]]


def _pop(c: Chance) -> Words:
    name = c.choice(("SPOP", "LPOP", "RPOP"))
    return (name, c.queue) if c.random() < 0.6 else (name, c.queue, c.randint(1, 4))


def _mpop(c: Chance) -> Words:
    queues = c.some()
    count = () if c.random() < 0.5 else ("COUNT", c.randint(1, 4))
    return ("LMPOP", len(queues), *queues, c.choice(("LEFT", "RIGHT")), *count)


def _create(c: Chance) -> Words:
    bound = c.choice((0, 1, 2, 2, 3, 5))
    more = c.rarely("TYPE", "JOBS") if c.random() < 0.5 else ()
    return (
        "PRESSURE.CREATE",
        c.queue,
        "BOUND",
        bound,
        "OVERFLOW",
        c.choice(("BLOCK", "BLOCK", "ERROR")),
        *more,
    )


def _create_with_dead_letters(c: Chance) -> Words:
    name, dead_letters = c.sample(c.queues, 2)
    return ("PRESSURE.CREATE", name, "MAX-DELIVERIES", c.randint(1, 2), "DEAD-LETTER", dead_letters)


def some_bound(c: Chance) -> Words:
    limit = c.rarely("MAX-BYTES", c.randint(1, 8))
    if c.random() < 0.4:
        return ("BOUND", c.randint(1, 3), "OVERFLOW", "OVERWRITE", *limit)
    return ("BOUND", c.choice((0, 2, 6)), *limit)


def some_bound_of_log(c: Chance) -> Words:
    overflow = c.choice(("BLOCK", "BLOCK", "ERROR", "OVERWRITE"))
    return ("BOUND", c.choice((1, 2, 3) if overflow == "OVERWRITE" else (0, 1, 2, 3)), "OVERFLOW", overflow)


def _ends(c: Chance) -> Words:
    return c.choice(("LEFT", "RIGHT")), c.choice(("LEFT", "RIGHT"))


def _flagged(c: Chance) -> Words:
    if c.random() < 0.5:
        return (0, c.message)
    number = c.randrange(len(_FLAGGED))
    return (number + 5, _FLAGGED[number])


# Commands with their weights: of Redis clients, those that do not wait for messages and those that do;
# of memcached clients; of native clients.
RESP: Table = [
    (10, lambda c: ("SADD", c.queue, *c.several())),
    (5, lambda c: (c.choice(("LPUSH", "RPUSH")), c.queue, *c.several(3))),
    (8, _pop),
    (2, lambda c: ("SCARD", c.queue)),
    (1, lambda c: ("LLEN", c.queue)),
    (3, lambda c: ("SISMEMBER", c.queue, c.message)),
    (3, lambda c: ("SREM", c.queue, *dict.fromkeys(c.several()))),
    (1, lambda c: ("LREM", c.queue, c.randint(-2, 2), c.message)),
    (1, lambda c: ("LTRIM", c.queue, 0, -c.randint(2, 4))),
    (2, lambda c: ("SMEMBERS", c.queue)),
    (2, lambda c: ("LRANGE", c.queue, c.randint(-4, 4), c.randint(-4, 4))),
    (1, lambda c: ("LINDEX", c.queue, c.randint(-4, 4))),
    (3, lambda c: ("SMOVE", c.queue, c.queue, c.message)),
    (1, lambda c: (c.choice(("SINTER", "SUNION", "SDIFF")), *c.some())),
    (4, _mpop),
    (4, lambda c: ("LMOVE", c.queue, c.queue, *_ends(c))),
    (1, lambda c: ("RPOPLPUSH", c.queue, c.queue)),
    (2, lambda c: ("DEL", *c.some(2))),
    (1, lambda c: ("EXISTS", *c.some())),
    (5, _create),
    (3, lambda c: ("PRESSURE.ALTER", c.queue, "BOUND", c.choice((0, 1, 2, 4)))),
    (1, lambda c: ("PRESSURE.EXISTS", c.queue)),
    (1, lambda c: ("PRESSURE.LENGTH", c.queue)),
    (1, lambda c: ("PRESSURE.CLOSED", c.queue)),
    (2, lambda c: ("PRESSURE.CLOSE", c.queue)),
    (1, lambda c: ("PRESSURE.DELETE", c.queue)),
    (2, lambda c: (c.choice(("PUT", "PUT NX", "PUT NOWAIT", "PUT OVERFILL")), c.queue, c.message)),
    (1, lambda c: ("PUT TIMEOUT", c.queue, c.message, c.timeout)),
    (1, lambda c: ("GET NOWAIT", c.queue)),
]
# Queues of the type lifo, queues that overwrite, and puts with a timeout. The reference does not know the ids
# of jobs of a lifo, so no command may tell them.
KINDS: Table = [
    (2, lambda c: ("PRESSURE.CREATE", c.queue, "TYPE", "LIFO", *c.rarely("BOUND", c.randint(1, 4)))),
    (2, lambda c: ("PRESSURE.CREATE", c.queue, "BOUND", c.randint(1, 3), "OVERFLOW", "OVERWRITE")),
    (2, lambda c: ("PUT TIMEOUT", c.queue, c.message, 0)),
]
WAITING: Table = [
    (6, lambda c: (c.choice(("BLPOP", "BRPOP")), c.queue, c.timeout)),
    (5, lambda c: (c.choice(("BLPOP", "BRPOP")), *c.some(), c.timeout)),
    (5, lambda c: ("BLMPOP", c.timeout, *_mpop(c)[1:])),
    (5, lambda c: ("BLMOVE", c.queue, c.queue, *_ends(c), c.timeout)),
    (1, lambda c: ("BRPOPLPUSH", c.queue, c.queue, c.timeout)),
    (2, lambda c: ("GET", c.queue)),
    (1, lambda c: ("GET TIMEOUT", c.queue, c.timeout)),
]
# Jobs of clients that wait for each other: short times end within their step.
JOBS_THAT_WAIT: Table = [
    (
        4,
        lambda c: (
            "PUT JOB",
            c.queue,
            c.message,
            "PRIORITY",
            c.choice(_PRIORITIES),
            *c.rarely("DELAY", SHORT),
        ),
    ),
    (6, lambda c: ("PRESSURE.RESERVE", c.queue, *c.rarely("TTR", SHORT), "TIMEOUT", c.timeout)),
    (3, lambda c: ("?end", c.randrange(9), c.choice(("ACK", "ACK", "RELEASE", "BURY")), True, "", None, 0)),
    (1, lambda c: ("?end", c.randrange(9), "RELEASE", True, "", 1, SHORT)),
    (1, lambda c: ("PRESSURE.KICK", c.queue, c.randint(0, 2))),
    (2, lambda c: ("PRESSURE.CREATE", c.queue, "IN-FLIGHT", c.randint(1, 2))),
    (2, _create_with_dead_letters),
]
_OF_ONE_JOB = ("delete job", "kick-job", "reserve-job", "stats-job")
BEANSTALK_THAT_WAITS: Table = [
    (6, lambda c: ("?put", c.queue, c.message, c.choice(_PRIORITIES), 0, _LONG)),
    (4, lambda c: ("?wait", c.queue)),
    (4, lambda c: ("?wait", *c.some())),
    (2, lambda c: ("?reserve", c.queue)),
    (
        5,
        lambda c: (
            "?end",
            c.randrange(9),
            c.choice(("ACK", "RELEASE", "RELEASE", "BURY", "BURY", "TOUCH")),
            True,
            "",
            c.choice((None, *_PRIORITIES)),
            0,
        ),
    ),
    (3, lambda c: ("?change", c.randrange(9), c.choice(_OF_ONE_JOB))),
    (5, lambda c: ("?used", "kick", c.queue, c.choice((0, 1, 2, 100)))),
    (1, lambda c: ("?used", "pause-tube", c.queue, c.choice((0, 0, 1000)))),
    (1, lambda c: ("?used", "peek", c.queue, c.choice(("ready", "delayed", "buried")))),
]
MEMCACHED: Table = [
    (8, lambda c: ("set", c.queue, *_flagged(c))),
    (4, lambda c: ("add", c.queue, *_flagged(c))),
    (8, lambda c: ("get", *c.some())),
    (2, lambda c: ("get peek", c.queue)),
    (4, lambda c: ("get t", c.queue, SHORT)),
    (4, lambda c: ("get t", c.queue, 0)),
    (1, lambda c: ("scard", c.queue)),
    (1, lambda c: ("sismember", c.queue, c.message)),
    (1, lambda c: ("delete", c.queue)),
    (1, lambda c: ("flush", c.queue)),
]
NATIVE: Table = [
    (2, lambda c: ("native create", c.queue, c.choice((0, 1, 2, 3)))),
    (6, lambda c: ("native put", c.queue, c.message)),
    (6, lambda c: ("native get", c.queue)),
    (1, lambda c: ("native length", c.queue)),
    (1, lambda c: ("native delete", c.queue)),
]
SETTINGS: list[Words] = [
    (), ("TYPE", "JOBS"), ("TYPE", "FIFO"), ("BOUND", 2), ("BOUND", 3, "TYPE", "JOBS"),
    ("UNIQUE", "QUEUED"), ("UNIQUE", "UNFINISHED"), ("BOUND", 2, "UNIQUE", "QUEUED"),
    *[("MAX-DELIVERIES", 2), ("MAX-DELIVERIES", 1, "DEAD-LETTER", "d")] * 2,
    ("BOUND", 3, "MAX-DELIVERIES", 1, "DEAD-LETTER", "d"),
    ("UNIQUE", "QUEUED", "MAX-DELIVERIES", 1, "DEAD-LETTER", "d"),
    ("ACK", "NEXT", "MAX-DELIVERIES", 1, "DEAD-LETTER", "d"),
    ("IN-FLIGHT", 2), ("IN-FLIGHT", 1), ("RETRY-DELAY", 100_000_000),
    ("RETRY-DELAY", 100_000_000, "IN-FLIGHT", 1, "ACK", "NEXT"),
    ("RATE", "3/100000000"), ("RATE", "5/100000000", "IN-FLIGHT", 2, "ACK", "NEXT"),
    ("ACK", "NEXT"), ("BOUND", 3, "ACK", "NEXT"), ("ACK", "NEXT", "TYPE", "JOBS"),
    ("ACK", "NEXT", "MAX-DELIVERIES", 2),
]  # fmt: skip


def _token(c: Chance, word: str) -> Words:
    """Most reservations belong to their connection."""
    token = c.choice(("", "", "", "one", "two"))
    return (word, token) if token else ()


def _delay(c: Chance) -> int:
    """Delays differ, so that their order does not depend on the clock."""
    return c.randrange(_LONG, 10**9) if c.random() < 0.3 else 0


def job_options(c: Chance) -> Words:
    words = c.rarely("PRIORITY", c.choice(_PRIORITIES)) + c.rarely("DELAY", c.randrange(_LONG, 10**9))
    words += c.rarely("TTR", c.choice((0, _LONG)))
    words += c.choice(((), (), (), ("UNIQUE",), ("UNIQUE-BY", b"x"), ("UNIQUE-BY", b"a")))
    return words or ("PRIORITY", 1024)


def _end(c: Chance) -> Words:
    event = c.choice(("ACK", "RELEASE", "RELEASE", "BURY", "BURY", "TOUCH"))
    priority = c.choice((None, *_PRIORITIES))
    return ("?end", c.randrange(13), event, c.random() < 0.75, c.choice(("", "", "one")), priority, _delay(c))


STRICT_RESP: Table = [
    (8, lambda c: ("PUT JOB", c.job_queue, c.message, *job_options(c))),
    (4, lambda c: ("SADD", c.queue, *c.several())),
    (4, lambda c: (c.choice(("LPUSH", "RPUSH")), c.queue, *c.several())),
    (2, lambda c: (c.choice(("PUT", "PUT NX")), c.queue, c.message)),
    (6, _pop),
    (2, lambda c: ("GET NOWAIT", c.queue)),
    (3, lambda c: ("SREM", c.queue, *dict.fromkeys(c.several(2)))),
    (2, lambda c: ("LMOVE", *c.choice(("qr", "rq", "qd", "qq")), "LEFT", "RIGHT")),
    (2, lambda c: ("SMOVE", *c.choice(("qr", "rq", "qd", "qq")), c.message)),
    (
        10,
        lambda c: (
            "PRESSURE.RESERVE", c.queue, *c.rarely("COUNT", c.randint(1, 3)),
            *c.rarely("TTR", c.choice((0, _LONG))), *_token(c, "DETACHED"),
        ),
    ),
    (4, lambda c: ("RESERVE BEST", 2, *c.choice(("qr", "rq", "qd")), *_token(c, "DETACHED"))),
    (12, _end),
    (2, lambda c: ("?ack", c.randrange(13), *_token(c, "TOKEN"))),
    (2, lambda c: ("PRESSURE.ACK", c.queue)),
    (1, lambda c: ("PRESSURE.ALTER", c.queue, "ACK", c.choice(("NEXT", "FINAL")))),
    (4, lambda c: ("PRESSURE.KICK", c.queue, c.randint(0, 3))),
    (1, lambda c: ("PRESSURE.PAUSE", c.job_queue, c.choice((0, 0, 1000)))),
    (2, lambda c: ("PRESSURE.REDRIVE", "d", *c.rarely("TO", c.queue), *c.rarely("COUNT", c.randint(1, 3)))),
    (1, lambda c: ("PRESSURE.CREATE", c.queue)),
    (1, lambda c: ("PRESSURE.CLOSE", c.queue)),
    (1, lambda c: ("DEL", c.queue)),
    (1, lambda c: ("LRANGE", c.queue, c.randint(-4, 4), c.randint(-4, 4))),
    (1, lambda c: ("SMEMBERS", c.queue)),
    (2, lambda c: ("SISMEMBER", c.queue, c.message)),
    (2, lambda c: ("SCARD", c.queue)),
    (2, lambda c: ("PRESSURE.INFO", c.queue)),
    (4, lambda c: ("?about", c.randrange(13))),
    (2, lambda c: ("PRESSURE.PEEK", c.queue, c.choice(("READY", "DELAYED", "BURIED")))),
]  # fmt: skip
# Commands of pipelines and transactions on one queue after another.
TOGETHER: Table = [
    (2, lambda c: ("SADD", c.queue, *c.several())),
    (2, lambda c: (c.choice(("LPUSH", "RPUSH")), c.queue, *c.several())),
    (2, _pop),
    (1, lambda c: ("SREM", c.queue, c.message)),
    (1, lambda c: ("SCARD", c.queue)),
    (1, lambda c: ("SMEMBERS", c.queue)),
    (1, lambda c: ("PRESSURE.KICK", c.queue, 1)),
]
STRICT_MEMCACHED: Table = [
    (2, lambda c: ("set", c.queue, 0, c.message)),
    (4, lambda c: ("get", c.queue)),
    (1, lambda c: ("flush", c.queue)),
    (1, lambda c: ("scard", c.queue)),
]
BEANSTALK: Table = [
    (8, lambda c: ("?put", c.job_queue, c.message, c.choice(_PRIORITIES), _delay(c), _LONG)),
    (8, lambda c: ("?reserve", c.queue)),
    (4, lambda c: ("?reserve", *c.choice(("qr", "rq", "qd")))),
    (8, _end),
    (6, lambda c: ("?change", c.randrange(13), c.choice(_OF_ONE_JOB))),
    (5, lambda c: ("?used", "kick", c.queue, c.choice((0, 1, 2, 100)))),
    (1, lambda c: ("?used", "pause-tube", c.job_queue, c.choice((0, 0, 1000)))),
    (3, lambda c: ("?used", "peek", c.queue, c.choice(("ready", "delayed", "buried")))),
]
LOGS: Table = [
    (4, lambda c: ("PUT OFFSET", c.queue, c.message)),
    (3, lambda c: ("RPUSH", c.queue, *c.several())),
    (3, lambda c: ("SADD", c.queue, *c.several())),
    (2, lambda c: ("PUT ONCE", c.queue, c.message, c.choice(TRANSACTIONS))),
    (2, lambda c: ("?once", c.queue, c.choice(TRANSACTIONS), *c.several())),
    (1, lambda c: ("PRESSURE.OUTCOME", c.queue, c.choice((*TRANSACTIONS, "never")))),
    (2, lambda c: ("SPOP", c.queue, c.randint(1, 3))),
    (2, lambda c: ("PRESSURE.AT", c.queue, c.randint(0, 12), "COUNT", c.randint(1, 6))),
    (2, lambda c: ("GROUP CREATE", c.queue, c.choice(GROUPS), c.choice(("head", "tail", "0", "3", "99")))),
    (2, lambda c: ("GROUP SEEK", c.queue, c.choice(GROUPS), c.choice(("head", "tail", "2", "5")))),
    (1, lambda c: ("GROUP DELETE", c.queue, c.choice(GROUPS))),
    (8, lambda c: ("READ", c.queue, c.choice(GROUPS), c.choice(CONSUMERS), c.randint(1, 8))),
    (2, lambda c: ("?pop", c.choice(GROUPS), c.randint(1, 3))),
    (
        8,
        lambda c: (
            "?end",
            c.randrange(9),
            c.choice(("ACK", "ACK", "RELEASE", "BURY")),
            c.random() < 0.75,
            "",
            None,
            0,
        ),
    ),
    (
        5,
        lambda c: ("?range", c.randrange(9), c.randrange(9), c.choice(CONSUMERS), c.choice(("ACK", "TOUCH"))),
    ),
    (2, lambda c: ("?claim", c.choice(GROUPS), c.choice(CONSUMERS))),
    (2, lambda c: ("?kick", c.choice(GROUPS), c.randint(1, 2))),
    (1, lambda c: ("?purge", c.choice(GROUPS))),
]
# Logs and groups, of clients that wait for each other.
READERS: Table = [
    (
        7,
        lambda c: (
            "READ TIMEOUT",
            c.queue,
            c.choice(GROUPS),
            c.choice(CONSUMERS),
            c.randint(1, 4),
            c.timeout,
        ),
    ),
    (3, lambda c: ("BLPOP", c.group, c.timeout)),
    (1, lambda c: ("BLPOP", *(f"{c.queue}+{group}" for group in GROUPS), c.timeout)),
    (1, lambda c: ("SPOP", c.group, c.randint(1, 3))),
    (5, lambda c: ("SADD", c.queue, *c.several())),
    (5, lambda c: (c.choice(("LPUSH", "RPUSH")), c.queue, *c.several(3))),
    (2, lambda c: (c.choice(("PUT", "PUT NX", "PUT NOWAIT")), c.queue, c.message)),
    (1, lambda c: ("PUT TIMEOUT", c.queue, c.message, c.timeout)),
    (3, lambda c: ("GROUP CREATE", c.queue, c.choice(GROUPS), c.choice(("head", "tail")))),
    (1, lambda c: ("GROUP SEEK", c.queue, c.choice(GROUPS), c.choice(("head", "tail")))),
    (1, lambda c: ("GROUP DELETE", c.queue, c.choice(GROUPS))),
    (8, lambda c: ("?end", c.randrange(9), c.choice(("ACK", "ACK", "RELEASE", "BURY")), True, "", None, 0)),
    (1, lambda c: ("?kick", c.choice(GROUPS), c.randint(1, 2))),
    (1, lambda c: ("?purge", c.choice(GROUPS))),
    (1, lambda c: ("PRESSURE.ALTER", c.queue, "BOUND", c.choice((0, 1, 2, 4)))),
    (1, lambda c: ("PRESSURE.CREATE", c.queue, "TYPE", "LOG", *some_bound_of_log(c))),
    (1, lambda c: (c.choice(("PRESSURE.CLOSE", "DEL")), c.queue)),
]
# Queues that keep what is popped until the client's next pop.
POPS: Table = [
    (6, _pop),
    (6, lambda c: (c.choice(("BLPOP", "BRPOP")), c.queue, c.timeout)),
    (3, lambda c: ("BLPOP", *c.some(), c.timeout)),
    (2, _mpop),
    (3, lambda c: ("BLMPOP", c.timeout, *_mpop(c)[1:])),
    (6, lambda c: ("SADD", c.queue, *c.several())),
    (5, lambda c: (c.choice(("LPUSH", "RPUSH")), c.queue, *c.several(3))),
    (2, lambda c: ("PUT TIMEOUT", c.queue, c.message, c.timeout)),
    (3, lambda c: ("PRESSURE.ACK", c.queue)),
    (1, lambda c: ("SCARD", c.queue)),
    (1, lambda c: ("LRANGE", c.queue, 0, -1)),
    (1, lambda c: ("SREM", c.queue, c.message)),
    (1, lambda c: ("PRESSURE.ALTER", c.queue, "BOUND", c.choice((0, 1, 2, 4)))),
    (1, lambda c: ("PRESSURE.CLOSE", c.queue)),
]
POPS_OF_MEMCACHED: Table = [
    (3, lambda c: ("set", c.queue, 0, c.message)),
    (3, lambda c: ("get", c.queue)),
    (4, lambda c: ("get t", c.queue, c.timeout)),
    (1, lambda c: ("flush", c.queue)),
]
# Settings beside ACK NEXT.
KEPT: list[Words] = [
    (), (), ("BOUND", 2), ("BOUND", 3, "OVERFLOW", "ERROR"), ("TYPE", "JOBS"), ("IN-FLIGHT", 2),
    ("MAX-DELIVERIES", 2), ("MAX-DELIVERIES", 1, "DEAD-LETTER", "d"),
]  # fmt: skip
READERS_OF_MEMCACHED: Table = [
    (1, lambda c: ("get", c.group)),
    (2, lambda c: ("get t", c.group, c.timeout)),
]
LISTS: Table = [
    (6, lambda c: ("SADD", c.queue, *c.several(6))),
    (4, lambda c: (c.choice(("LPUSH", "RPUSH")), c.queue, *c.several(6))),
    (5, _pop),
    (4, lambda c: ("SREM", c.queue, *dict.fromkeys(c.several(3)))),
    (6, lambda c: ("SMISMEMBER", c.queue, *FEW)),
    (2, lambda c: ("LRANGE", c.queue, c.randint(-3, 3), c.randint(-3, 3))),
    (1, lambda c: ("SCARD", c.queue)),
    (1, lambda c: ("GET NOWAIT", c.queue)),
    (1, lambda c: ("LMOVE", c.queue, c.queue, "LEFT", "RIGHT")),
    (1, lambda c: ("PRESSURE.ALTER", c.queue, "BOUND", c.choice((0, 1, 2, 3, 6)))),
    (1, lambda c: ("PRESSURE.CREATE", c.queue, *some_bound(c))),
    (1, lambda c: ("PRESSURE.INFO", c.queue)),
    (1, lambda c: (c.choice(("PRESSURE.CLOSE", "DEL")), c.queue)),
]
_FLAGS = (0, 1, 7, 2**32 - 1)
# Messages of every length whose marks are stored differently.
MARKED = [b"", b"1", b"a\r\n\0 b", b"x" * 64, b"y" * 65, b"5 5 5"]
MARKS_OF_RESP: Table = [
    (3, lambda c: (c.choice(("SADD", "RPUSH")), c.queue, *c.several())),
    (3, _pop),
    (2, lambda c: ("SREM", c.queue, *dict.fromkeys(c.several(3)))),
    (2, lambda c: ("LREM", c.queue, c.randint(-2, 2), c.message)),
    (1, lambda c: ("LTRIM", c.queue, 0, -c.randint(2, 4))),
]
MARKS_OF_MEMCACHED: Table = [
    (6, lambda c: (c.choice(("set", "set", "set expired", "add")), c.queue, c.choice(_FLAGS), c.message)),
    (4, lambda c: (c.choice(("get", "get peek")), c.queue)),
    (6, lambda c: (c.choice(("get open", "get close", "get abort")), c.queue)),
    (1, lambda c: ("flush", c.queue)),
]
MARKS_OF_NATIVE: Table = [
    (1, lambda c: ("native put", c.queue, c.message)),
    (1, lambda c: ("native get", c.queue)),
]
# Native clients that are stopped between two steps: the queue, what they do, and for how many steps.
_KINDS = ("put", "put", "put_non_blocking", "get", "get_non_blocking", "get_non_blocking", "close")
# Two clients may have the same name; a name may contain spaces.
_NATIVE_NAMES = ("native-1", "native-2", "host 3 0 us")
STEPPED: Table = [
    (2, lambda c: ("native begin", c.queue, c.choice(_KINDS), c.message, c.randint(1, 12))),
    (1, lambda c: ("native step", c.randrange(3), c.randint(1, 12))),
    (1, lambda c: ("native finish",)),
    (2, lambda c: ("time ends", c.randrange(13))),
]
STEPPED_LIVES: Table = [
    (
        4,
        lambda c: (
            "native begin", c.queue, c.choice((*_KINDS, "create", "delete")), c.message, c.randint(1, 12),
            c.choice(_NATIVE_NAMES),
        ),
    ),
    # Whole operations, unless another native client holds the role.
    (
        4,
        lambda c: (
            "native begin", c.queue, c.choice(("put_non_blocking", "put_non_blocking", "get_non_blocking")),
            c.message, 20, c.choice(_NATIVE_NAMES),
        ),
    ),
    (2, lambda c: ("native step", c.randrange(4), c.randint(1, 6))),
    (2, lambda c: ("native finish",)),
    (1, lambda c: ("native clean up", c.queue)),
]  # fmt: skip
STEPPED_PRODUCER: Table = [
    (1, lambda c: ("native begin", c.queue, "put_non_blocking", c.message, c.randint(3, 12))),
    (2, lambda c: ("native step", 0, c.randint(3, 12))),
]
