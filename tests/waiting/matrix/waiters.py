"""The commands that wait. A new one is one line. events.py explains most words in braces; the others are:

| word | meaning |
|---|---|
| {a}, {b} | other queues without messages; only {a} exists |
| {t}, {ms} | the timeout in seconds, and in milliseconds |
"""

from dataclasses import dataclass

from tests.waiting.matrix.wires import BEANSTALK, MEMCACHED, NATIVE, RESP


@dataclass(frozen=True)
class Waiter:
    """A command that waits; `before` and `prepare` are sent earlier, `prepare` over RESP.

    With `puts`, it waits for room. With `existing`, it does not wait for the queue to be created. `forever`
    is the timeout of a wait that does not end, "" if it has none. `unit` is the shortest timeout.
    """

    name: str
    wait: str
    by: str = RESP
    before: str = ""
    prepare: str = ""
    puts: bool = False
    existing: bool = False
    forever: str = "0"
    unit: float = 0.001

    @property
    def has_timeout(self) -> bool:
        """Whether its time may be up."""
        return "{t}" in self.wait or "{ms}" in self.wait


_ONE = "watch {q}; ignore default"
_THREE = "watch {a}; watch {q}; watch {b}; ignore default"

CONSUMERS = (
    Waiter("BLPOP", "BLPOP {q} {t}"),
    Waiter("BRPOP", "BRPOP {q} {t}"),
    Waiter("BLMPOP", "BLMPOP {t} 1 {q} LEFT"),
    Waiter("BLMOVE", "BLMOVE {q} {d} LEFT RIGHT {t}"),
    Waiter("BRPOPLPUSH", "BRPOPLPUSH {q} {d} {t}"),
    Waiter("GET", "PRESSURE.GET {q} TIMEOUT {t}", existing=True),
    Waiter("RESERVE", "PRESSURE.RESERVE {q} TIMEOUT {t}"),
    Waiter("RESERVE COUNT", "PRESSURE.RESERVE {q} TIMEOUT {t} COUNT 3"),
    Waiter("READ", "PRESSURE.READ {x} GROUP g reader TIMEOUT {t}", existing=True),
    Waiter("BLPOP of 3", "BLPOP {a} {q} {b} {t}"),
    Waiter("BLMPOP of 3", "BLMPOP {t} 3 {a} {q} {b} LEFT COUNT 2"),
    Waiter("RESERVE of 3", "PRESSURE.RESERVE {a} {q} {b} TIMEOUT {t}"),
    Waiter("get/t", "get {q}/t={ms}", MEMCACHED, forever="100"),
    Waiter("get/open/t", "get {q}/open/t={ms}", MEMCACHED, forever="100"),
    Waiter("get/peek/t", "get {q}/peek/t={ms}", MEMCACHED, forever="100"),
    Waiter("reserve", "reserve", BEANSTALK, _ONE),
    Waiter("reserve of 3", "reserve", BEANSTALK, _THREE),
    Waiter("reserve-with-timeout", "reserve-with-timeout {t}", BEANSTALK, _ONE, forever="100", unit=1.0),
    Waiter(
        "reserve-with-timeout of 3", "reserve-with-timeout {t}", BEANSTALK, _THREE, forever="100", unit=1.0
    ),
    Waiter("native get", "GET {q} {t}", NATIVE, "OPEN {q}", existing=True, forever="10"),
)

_SOURCE = "LPUSH {y} {m}"
PRODUCERS = (
    Waiter("SADD", "SADD {q} {m}", puts=True),
    Waiter("LPUSH", "LPUSH {q} {m}", puts=True),
    Waiter("LPUSH with TXN", "LPUSH {q} {m}", before="PRESSURE.TXN {m}", puts=True),
    Waiter("PUT", "PRESSURE.PUT {q} {m}", puts=True),
    Waiter("PUT TIMEOUT", "PRESSURE.PUT {q} {m} TIMEOUT {t}", puts=True),
    Waiter("PUT PRIORITY", "PRESSURE.PUT {q} {m} TIMEOUT {t} PRIORITY 5", puts=True),
    Waiter("LMOVE", "LMOVE {y} {q} LEFT RIGHT", prepare=_SOURCE, puts=True),
    Waiter("SMOVE", "SMOVE {y} {q} {m}", prepare=_SOURCE, puts=True),
    Waiter("BLMOVE into", "BLMOVE {y} {q} LEFT RIGHT {t}", prepare=_SOURCE, puts=True),
    Waiter("native put", "PUT {q} {m} 10", NATIVE, "OPEN {q}", puts=True),
)
