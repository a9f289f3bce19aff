"""Attacks that only beanstalk's protocol allows.

test_hostile_input.py has those on all protocols, unit/handlers/beanstalk/test_parser.py refused puts.
"""

from collections.abc import Iterator

import pytest

from tests.support.beanstalkd import running_beanstalkd
from tests.support.crowd import served
from tests.support.hostile import Victim, bounded_peak
from tests.support.measures import MB
from tests.support.programs import TIMEOUT, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, Wire

BAD, UNKNOWN, NOT_FOUND = b"BAD_FORMAT\r\n", b"UNKNOWN_COMMAND\r\n", b"NOT_FOUND\r\n"
HUGE = (b"4294967296", b"18446744073709551616", b"9" * 100, b"-1", b"x")
# By name: requests, and their replies. test_protocol.py has more limits.
CASES = {
    **{
        f"{command} {number[:20].decode()}": (command.encode() % number + b"\r\n", BAD)
        for number in HUGE
        for command in ("release 1 %b 0", "release 1 0 %b", "bury 1 %b", "pause-tube default %b")
    },
    **{
        f"{command} of 2^64 - 1": (command.encode() + b" 18446744073709551615\r\n", NOT_FOUND)
        for command in ("delete", "peek", "touch", "kick-job", "stats-job", "reserve-job")
    },
    "release and bury with 2^32 - 1": (
        b"release 18446744073709551615 4294967295 4294967295\r\nbury 18446744073709551615 4294967295\r\n",
        NOT_FOUND * 2,
    ),
    "kick 2^32 - 1": (b"kick 4294967295\r\n", b"KICKED 0\r\n"),
    "a job of one byte more than allowed": (
        b"put 0 0 1 65536\r\n" + b"delete 1\r\n".ljust(65536) + b"\r\nlist-tube-used\r\n",
        b"JOB_TOO_BIG\r\nUSING default\r\n",
    ),
    "a line of 224 bytes": (b"x" * 222 + b"\r\n", UNKNOWN),
    "a line of 1 MB": (b"watch " + b"t" * MB + b"\r\nignore none\r\n", BAD + b"WATCHING 1\r\n"),
    "a tube of control characters": (b"watch a\x01\x7f\r\nuse \0\r\n", BAD * 2),
    "10 000 empty lines": (b"\r\n" * 10_000, UNKNOWN * 10_000),
    "zeros": (bytes(100) + b"\r\n", BAD),
    "line feeds alone": (b"list-tube-used\n" * 10 + b"\r\n", BAD),
    "RESP": (b"*3\r\n$4\r\nSADD\r\n$4\r\nevil\r\n$1\r\nx\r\n", UNKNOWN * 7),
    "memcached": (b"set evil 0 0 1\r\nx\r\n", UNKNOWN * 2),
    "the last tube": (b"ignore default\r\nignore none\r\n", b"NOT_IGNORED\r\nWATCHING 1\r\n"),
}


@pytest.fixture(params=["strict", pytest.param("beanstalkd", marks=pytest.mark.clients)])
def limited(request: pytest.FixtureRequest, backend: Valkey, start_server: StartServer) -> Iterator[Wire]:
    """A connection to a listener with beanstalkd's limits, and one to beanstalkd."""
    if request.param == "strict":
        yield Wire(BEANSTALK, start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0"))
    else:
        with running_beanstalkd() as port:
            yield Wire(BEANSTALK, port)


def test_hostile_requests_get_beanstalkd_s_replies_and_the_connection_stays_open(limited: Wire) -> None:
    for name, (requests, replies) in CASES.items():
        with limited.sending(requests):
            assert limited.exactly(len(replies)) == replies, name
        assert limited(b"list-tube-used\r\n").startswith(b"USING "), name


def test_a_line_of_225_bytes_is_refused_and_the_next_one_is_done(victim: Victim) -> None:
    """beanstalkd may skip the next line as well."""
    hostile = victim.attack(BEANSTALK)
    hostile.send(b"x" * 223 + b"\r\nlist-tube-used\r\n")
    assert hostile.exactly(len(BAD)) == BAD
    assert hostile.line() == b"USING default\r\n"


def test_a_refused_job_of_a_gigabyte_takes_no_memory(victim: Victim) -> None:
    hostile = victim.attack(BEANSTALK)
    with bounded_peak(victim.server, 16 * MB), served(*victim.bystanders()):
        hostile.send(b"put 0 0 1 %d\r\n" % (1 << 30) + b"delete 1\r\n" * 3_000_000)
        assert victim.observer.ping()
    assert not hostile.has_reply()


@pytest.mark.slow
def test_a_client_that_watches_30_000_tubes_does_not_delay_others(victim: Victim) -> None:
    count = 30_000
    with bounded_peak(victim.server, 64 * MB):
        greedy = victim.attack(BEANSTALK)
        greedy.socket.settimeout(3 * TIMEOUT)
        with greedy.sending(b"".join(b"watch tube-%06d\r\n" % number for number in range(count))):
            assert greedy.replies(count)[-1] == b"WATCHING %d" % (count + 1)
        with served(*victim.bystanders()) as latency:
            assert greedy(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT"
        assert latency.worst < 2
        with Wire(BEANSTALK, victim.server) as producer:
            producer.put(b"tube-%06d" % (count // 2), b"m")
        with served(*victim.bystanders()) as latency:
            assert greedy(b"reserve-with-timeout 0\r\n") == b"RESERVED 1\r\nm"
        assert latency.worst < 2


@pytest.mark.slow
def test_watched_tubes_count_as_the_client_s_memory(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--max-buffered-bytes", "1mb", *LISTEN)
    with Wire(BEANSTALK, server) as greedy:
        greedy.send(b"".join(b"watch " + b"%0200d" % number + b"\r\n" for number in range(10_000)))
        assert greedy.rest().count(b"WATCHING") < 5000
    assert "disconnected a client whose buffers held" in server.log


@pytest.mark.slow
def test_thousands_of_reserved_jobs_slow_nothing_down_and_return_when_their_client_vanishes(
    victim: Victim,
) -> None:
    """Each reserve looks for the reservation that ends first."""
    count = 20_000
    victim.observer.rpush("q", *range(count))
    greedy = victim.attack(BEANSTALK)
    assert greedy(BEANSTALK.get(b"q")) == b"RESERVED 1\r\n0"
    with greedy.sending(b"reserve-with-timeout 0\r\n" * (count - 1)):
        assert greedy.replies(count - 1)[-1] == b"RESERVED %d\r\n%d" % (len(str(count - 1)), count - 1)
    with served(*victim.bystanders()) as latency, greedy.sending(b"reserve-with-timeout 0\r\n" * count):
        assert greedy.replies(count) == [b"TIMED_OUT"] * count
    assert latency.worst < 2
    assert victim.observer.llen("q") == 0
    greedy.reset()
    wait_for(lambda: victim.observer.llen("q") == count, "all jobs to be back")
    assert victim.observer.lrange("q", 0, -1) == [b"%d" % number for number in range(count)]


def test_a_paused_tube_and_a_huge_delay_hold_back_no_other_tube(victim: Victim) -> None:
    hostile = victim.attack(BEANSTALK)
    assert hostile(b"put 4294967295 4294967295 4294967295 1\r\nx\r\n") == b"INSERTED"
    assert hostile(b"pause-tube default 4294967295\r\n") == b"PAUSED"
    assert hostile(b"put 0 0 4294967295 1\r\ny\r\n") == b"INSERTED"
    assert hostile(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT"
    hostile.put(b"q", b"m")
    assert hostile(BEANSTALK.get(b"q")) == b"RESERVED 1\r\nm"


def test_a_job_is_found_after_its_id_has_moved_to_another_tube(victim: Victim) -> None:
    """The server remembers which tube has an id. A backend that has lost its data gives ids again."""
    with Wire(BEANSTALK, victim.server) as wire, victim.backend.client() as direct:
        for command, reply in {
            b"peek %b": b"FOUND 1\r\nm", b"kick-job %b": b"NOT_FOUND", b"reserve-job %b": b"RESERVED 1\r\nm",
            b"delete %b": b"DELETED",
        }.items():  # fmt: skip
            wire.put(b"old", b"m")
            assert wire(b"peek %b\r\n" % wire.job) == b"FOUND 1\r\nm"
            direct.flushall()
            job = wire.job
            wire.put(b"new", b"m")
            assert wire.job == job
            assert wire(command % job + b"\r\n") == reply
            direct.flushall()
