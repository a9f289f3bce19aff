"""Clients that leave: no message is lost, for each command that takes, each way to leave and each moment.

A client reads its message in a complete reply, or the server puts the message back in its place.
tests/support/leaving.py runs the cells. PRESSURE_LEAVING=full runs all of them instead of a sample.
"""

import os
from collections.abc import Iterator

import pytest

from tests.support.leaving import LARGE, Group, Moment, Place, Taker, Tally, Way, fits
from tests.support.waiters import packed

FULL = os.environ.get("PRESSURE_LEAVING") == "full"

TAKERS = (
    Taker("SPOP {q}"),
    Taker("SPOP {q} 3", takes=3),
    Taker("LPOP {q}"),
    Taker("RPOP {q} 2", takes=2),
    Taker("LMPOP 1 {q} LEFT"),
    Taker("LMPOP 2 {q} {r} LEFT COUNT 2", takes=2),
    Taker("BLPOP {q} {t}", waits=True),
    Taker("BLPOP {q} {r} {t}", waits=True),
    Taker("BLPOP {z} {q} {t}", waits=True),
    Taker("BRPOP {q} {t}", waits=True),
    Taker("BLMPOP {t} 1 {q} LEFT", waits=True),
    Taker("BLMPOP {t} 2 {q} {r} RIGHT COUNT 3", takes=3, waits=True),
    Taker("PRESSURE.GET {q}", waits=True),
    Taker("PRESSURE.GET {q} TIMEOUT {t}", waits=True),
    Taker("PRESSURE.GET {q} NOWAIT"),
    Taker("LMOVE {q} {m} LEFT RIGHT", moves=True),
    Taker("RPOPLPUSH {q} {m}", moves=True),
    Taker("BLMOVE {q} {m} LEFT RIGHT {t}", moves=True, waits=True),
    Taker("BRPOPLPUSH {q} {m} {t}", moves=True, waits=True),
    Taker("SMOVE {q} {m} {own}", moves=True),
    Taker("MULTI; SPOP {q}; EXEC"),
    Taker("MULTI; BLPOP {q} {r} {t}; EXEC"),
    Taker("MULTI; LMPOP 2 {q} {r} LEFT COUNT 2; SPOP {q}; EXEC", takes=3),
    Taker("SPOP {q}", takes=5, times=5),
    Taker("SPOP {q}", takes=20, times=20),
    Taker("SPOP {q}", takes=100, times=100),
    Taker("BLPOP {q} {t}", takes=3, times=3, waits=True),
    Taker("SPOP {q}; SMEMBERS {z}"),
    Taker("SPOP {q}" + "; PING" * 50),
    Taker("SPOP {q}; SCARD {q}", takes=8, times=8),
    Taker("get {q}", memcached=True),
    Taker("gets {q}", memcached=True),
    Taker("get {q} {r}", memcached=True),
    Taker("get {z} {q}", memcached=True),
    Taker("get {q}/t={t}", memcached=True, waits=True),
    Taker("get {q}/open", memcached=True, opens=True),
    Taker("get {q}/open/t={t}", memcached=True, opens=True, waits=True),
    Taker("get {q}", memcached=True, takes=8, times=8),
)

# Data for RESP, and for memcached's protocol.
_BROKEN = (b"*x\r\n", b"\x80" + bytes(23))
_LONG_LINE = (b"PING " + b"x" * 70_000, b"get " + b"x" * 70_000)
_MORE = (_BROKEN[0] + b"x" * 1_000_000, _BROKEN[1] + b"x" * 1_000_000)
_SENT_ON = (packed("ECHO", "x" * 100_000) * 5, b"")

WAYS = (
    Way("stays", "", reads=True, quits=True),
    Way("closes", "close"),
    Way("resets", "reset"),
    Way("is killed", "kill", reads=True, resp_only=True),
    Way("sends on and is killed", "kill", reads=True, resp_only=True, data=_SENT_ON),
    Way("breaks the protocol", "", reads=True, data=_BROKEN),
    Way("breaks the protocol and sends on", "", reads=True, data=_MORE),
    Way("sends too long a line", "", reads=True, data=_LONG_LINE),
    Way("half-closes", "half_close", reads=True),
    Way("times out", "let_time_out", reads=True, quits=True, times_out=True),
    Way("is idle", "be_idle", reads=True, idles=True),
)

_IN_FLIGHT = "put stop_backend send seen leave seen continue_backend"
MOMENTS = (
    Moment("waiting", "create send waiting leave seen put", waits=True),
    Moment("waiting for a queue", "send waiting leave seen put", waits=True),
    Moment("when the message comes", "create send waiting stop_server leave put continue_server", waits=True),
    Moment("in flight", _IN_FLIGHT),
    Moment(
        "when the reply comes",
        "put stop_backend send seen stop_server leave continue_backend continue_server",
    ),
    Moment("at once", "put stop_server send leave continue_server"),
    Moment("before the message comes", "stop_server send leave continue_server seen put", waits=True),
    Moment("soon", "put send stop_server_soon leave continue_server", may_lose=True, one_by_one=True),
    Moment("unread", "put send answered leave", size=LARGE, one_by_one=True),
    Moment(
        "after a command that waits", "create send waiting leave seen put", ("BLPOP {g} {t}", "get {g}/t={t}")
    ),
    Moment("after a command in flight", _IN_FLIGHT, ("SPOP {g}", "get {g}")),
    Moment("after a command that runs alone", _IN_FLIGHT, ("LMPOP 1 {g} LEFT", "get {g} {z}")),
)

TRANSPORTS = ("tcp", "tls", "unix")

# Cells that lost nearly all of their messages (the table in issue 11).
_AT_ONCE = ("LMPOP 1 {q} LEFT", "BLMPOP {t} 1 {q} LEFT", "memcached get {q}/t={t}", "memcached get {z} {q}")
_STALLED = (
    *_AT_ONCE,
    "BLPOP {q} {r} {t}",
    "SPOP {q}; SMEMBERS {z}",
    "SPOP {q}" + "; PING" * 50,
    "(SPOP {q}; SCARD {q})x8",
    "(SPOP {q})x5",
    "(SPOP {q})x20",
    "memcached (get {q})x8",
)
KNOWN = (
    *((taker, "closes", "in flight", "tcp") for taker in _STALLED),
    *((taker, "closes", "at once", "tcp") for taker in _AT_ONCE),
    *(
        ("BLPOP {q} {r} {t}", "closes", when, "tcp")
        for when in ("waiting for a queue", "before the message comes")
    ),
    *(("BLPOP {z} {q} {t}", way, "soon", "tcp") for way in ("closes", "resets", "is killed")),
    # Found by the matrix. Messages were put back out of order:
    ("memcached get {q} {r}", "closes", "in flight", "tcp"),
    # A reset destroyed replies that were on their way:
    ("(SPOP {q})x100", "breaks the protocol and sends on", "unread", "tcp"),
    ("(SPOP {q})x100", "sends on and is killed", "unread", "tcp"),
    # Over TLS, the server did not know which bytes the socket had accepted, and doubled messages:
    ("(SPOP {q})x100", "is killed", "unread", "tls"),
    ("(SPOP {q})x100", "half-closes", "unread", "tls 1.2"),
)


def _cells() -> Iterator[tuple[str, Way, Moment, list[Taker], int]]:
    """Yield the arguments of the groups: transport, way, moment, takers, clients of each cell."""
    for transport_number, transport in enumerate(TRANSPORTS):
        for way_number, way in enumerate(WAYS):
            for moment_number, moment in enumerate(MOMENTS):
                takers = [taker for taker in TAKERS if fits(taker, way, moment)]
                number = way_number + moment_number
                if FULL:
                    # Fewer clients if all must connect within the idle timeout, or if messages are large.
                    count = 2 if way.idles else 4 if moment.size == LARGE else 10
                    yield transport, way, moment, takers, count
                elif number % (2 * len(TRANSPORTS)) == 2 * transport_number and not way.idles:
                    # Half of the pairs of a way and a moment, each over one transport, with some takers.
                    step = max(1, len(takers) // 4)
                    yield transport, way, moment, takers[number % step :: step], 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    opened = Place(tmp_path_factory.mktemp("leaving"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def total() -> Iterator[Tally]:
    tally = Tally()
    yield tally
    print(f"\ntotal: {tally}")


def _run(group: Group, total: Tally) -> None:
    tallies = group.run()
    failed = {
        str(taker): str(tally)
        for taker, tally in tallies.items()
        if not tally.is_clean(group.may_lose(taker, tally["clients"]))
    }
    summed = Tally()
    for tally in tallies.values():
        summed += tally
    total += summed
    print(summed)
    assert not failed


@pytest.mark.parametrize(
    ("transport", "way", "moment", "takers", "count"),
    [
        pytest.param(*cells, id=f"{cells[2].name}, {cells[1].name}, {cells[0]}")
        for cells in _cells()
        if cells[3]
    ],
)
def test_a_client_that_leaves_loses_and_doubles_no_message(
    place: Place, total: Tally, transport: str, way: Way, moment: Moment, takers: list[Taker], count: int
) -> None:
    _run(Group(place, transport, way, moment, takers, count), total)


@pytest.mark.parametrize(
    ("taker", "way", "moment", "transport"),
    KNOWN,
    ids=[", ".join(names).replace("; PING" * 50, "; 50 PING") for names in KNOWN],
)
def test_cells_that_failed_before_lose_and_double_no_message(
    place: Place, total: Tally, taker: str, way: str, moment: str, transport: str
) -> None:
    (takers,) = [[found] for found in TAKERS if str(found) == taker]
    (chosen_way,) = [found for found in WAYS if found.name == way]
    (chosen_moment,) = [found for found in MOMENTS if found.name == moment]
    rounds, count = 1, 20
    if chosen_moment.one_by_one:
        # Each client has its own queue.
        rounds, count, takers = (1, 1, takers * 4) if chosen_moment.size == LARGE else (5, 1, takers * 20)
    for _ in range(rounds):
        _run(Group(place, transport, chosen_way, chosen_moment, takers, count), total)


def test_the_servers_log_no_error(place: Place) -> None:
    for server in (place.server, place.other, place.impatient):
        assert "Traceback" not in server.log
        assert "ERROR" not in server.log
