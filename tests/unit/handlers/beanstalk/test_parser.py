"""The parser of beanstalk's protocol: puts in a row, refused puts and lines, and their limits.

../test_parsers.py tests what the parsers of all protocols share.
"""

import pytest

from handlers.beanstalk.parser import MAX_LINE, Puts, Request, RequestParser
from handlers.beanstalk.replies import BAD_FORMAT, EXPECTED_CRLF, JOB_TOO_BIG, UNKNOWN_COMMAND
from pressure_server.net.line_parser import Refused
from pressure_server.queues.operations.jobs import job_to_put

MOST = 10


def fed(*pieces: bytes, most: int = MOST) -> list[Puts | Request | Refused]:
    parser = RequestParser(most)
    return [request for piece in pieces for request in parser.feed(piece)]


def test_puts_in_a_row_are_one_request_of_at_most_128() -> None:
    requests = fed(b"put 1 2 3 1\r\nx\r\n" * 130 + b"reserve\r\n" + b"put 1 2 3 1\r\nx\r\n")
    assert [type(request) for request in requests] == [Puts, Puts, Request, Puts]
    assert [one.count for one in requests if isinstance(one, Puts)] == [128, 2, 1]
    assert requests[0] == Puts([job_to_put(b"x", 1, 2, 3)] * 128)


def test_a_job_has_at_least_one_second() -> None:
    assert fed(b"put 0 0 0 1\r\nx\r\n") == [Puts([job_to_put(b"x", 0, 0, 1)])]


EVIL = b"delete 1\r\nuse x\r\n"


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"put x 0 1 %d", BAD_FORMAT),
        (b"put -1 0 1 %d", BAD_FORMAT),
        (b"put 4294967296 0 1 %d", BAD_FORMAT),
        (b"put 0 1.5 1 %d", BAD_FORMAT),
        (b"put 0 0 1 %d 7", BAD_FORMAT),
        (b"put 0 0 1 %d ", BAD_FORMAT),
        (b"put \0 0 1 %d", BAD_FORMAT),
        (b"PUT 0 0 1 %d", UNKNOWN_COMMAND),
    ],
)
def test_the_message_of_a_put_that_is_not_well_formed_is_skipped(line: bytes, reply: bytes) -> None:
    stream = line % len(EVIL) + b"\r\n" + EVIL + b"\r\nreserve\r\n"
    for at in range(len(stream)):
        assert fed(stream[:at], stream[at:]) == [Refused(reply), Request(b"reserve")]


@pytest.mark.parametrize(
    "line",
    [
        b"put 0 0 1",
        b"put 0 0 1 x",
        b"put 0 0 1 -1",
        b"put 0 0 1 4294967296",
        b"put  ",
        b"put " + b"0" * MAX_LINE + b" 0 1 1",
    ],
)
def test_a_put_without_a_valid_size_ends_the_connection(line: bytes) -> None:
    """Its message must not be read as commands."""
    stream = line + b"\r\n" + EVIL
    assert fed(b"reserve\r\n" + stream) == [Request(b"reserve"), Refused(BAD_FORMAT, closes=True)]
    assert fed(line[:10], line[10:] + b"\r\n") == [Refused(BAD_FORMAT, closes=True)]


@pytest.mark.parametrize("at", range(8, 28))
def test_the_message_of_a_put_that_is_too_big_is_skipped(at: int) -> None:
    stream = b"put 0 0 1 11\r\ndelete 1\r\nx\r\nreserve\r\n"
    refused, rest = fed(stream[:at], stream[at:])
    assert (refused, rest) == (Refused(JOB_TOO_BIG), Request(b"reserve"))


def test_a_message_that_is_longer_than_announced_ends_the_connection() -> None:
    assert fed(b"put 0 0 1 1\r\nx\r!delete 1\r\n") == [Refused(EXPECTED_CRLF, closes=True)]
    requests = fed(b"put 1 2 3 1\r\nx\r\nput 0 0 1 1\r\nxyzreserve\r\n")
    assert requests == [Puts([job_to_put(b"x", 1, 2, 3)]), Refused(EXPECTED_CRLF, closes=True)]


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_a_line_that_is_too_long_is_refused_once_and_skipped_to_its_end(end: bytes) -> None:
    longest = b"x" * (MAX_LINE - 2)
    assert fed(longest + b"\r\n") == [Request(longest)]
    pieces = (b"x" * 5000, b"y" * 500, end, b"\n" if end == b"\r" else b"", b"reserve\r\n")
    assert fed(*pieces) == [Refused(BAD_FORMAT), Request(b"reserve")]


def test_a_message_is_parsed_when_all_of_it_has_come() -> None:
    parser = RequestParser(1000)
    assert parser.feed(b"put 0 0 1 500\r\n") == []
    assert parser.exceeds_login_limits
    for _ in range(5):
        assert parser.feed(b"m" * 100) == []
    assert parser.unparsed == 515
    assert parser.feed(b"\r\n") == [Puts([job_to_put(b"m" * 500, 0, 0, 1)])]
    assert parser.unparsed == 0
    assert not parser.exceeds_login_limits
