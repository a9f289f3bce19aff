"""The parser of the beanstalk protocol: bytes to requests. Pure.

A request is a line of at most 224 bytes with its end; after the line of a put follow the message and CRLF.
Unlike beanstalkd, the parser never reads the message of a refused put as commands: it skips the message, or
ends the connection if the size is unknown or wrong.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from handlers.beanstalk.replies import BAD_FORMAT, EXPECTED_CRLF, JOB_TOO_BIG, UNKNOWN_COMMAND
from pressure_server.compiled import mypyc_attr
from pressure_server.net.line_parser import LineParser, Refused
from pressure_server.queues.operations.jobs import job_to_put

MAX_LINE = 224
_CRLF = b"\r\n"
# Puts in one request: limits apply between two requests.
_MAX_ROW = 128
# A time to run of 0 is one second.
_LEAST_TTR = 1
_NO_PUT = (0, 0, 0, 0)
_MAX_UINT32 = (1 << 32) - 1
_PUT_WORD = b"put "
_SIZE_WORD = 4
_PUT = re.compile(rb"put +(\d{1,20}) +(\d{1,20}) +(\d{1,20}) +(\d{1,20})\r\n")


class Request(NamedTuple):
    """A command's line, without its end."""

    line: bytes


@dataclass
class Puts:
    """Puts in a row: the jobs, each with its priority, delay and time to run (jobs.job_to_put)."""

    jobs: list[bytes]

    @property
    def count(self) -> int:
        """How many puts they are."""
        return len(self.jobs)


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestParser(LineParser):
    """Parses the bytes of one client."""

    __slots__ = ("_is_too_big", "_max_job_size", "_skips_line")
    MAX_LOGIN_BYTES = MAX_LINE

    def __init__(self, max_job_size: int) -> None:
        """A message may have up to `max_job_size` bytes."""
        super().__init__()
        self._max_job_size = max_job_size
        self._is_too_big = False  # the refused message, which gets its reply when it has been skipped
        self._skips_line = False

    def _read(self, data: bytes, requests: list[Any]) -> int:
        """See LineParser."""
        at, end = 0, len(data)
        jobs: list[bytes] | None = None  # of the last request, if that is Puts
        while at < end:
            if self._skip:
                skipped = min(self._skip, end - at)
                at += skipped
                self._skip -= skipped
                if self._is_too_big and not self._skip:
                    self._is_too_big = False
                    requests.append(Refused(JOB_TOO_BIG))
                continue
            put = None if self._skips_line else _PUT.match(data, at, at + MAX_LINE)
            priority, delay, ttr, size = _NO_PUT if put is None else map(int, put.groups())
            if put is not None and (priority | delay | ttr | size) <= _MAX_UINT32:  # all of them
                first = put.end()
                last = first + size
                if size > self._max_job_size:
                    self._skip, self._is_too_big = size + 2, True
                    at = first
                    jobs = None
                    continue
                if end < last + 2:
                    self._awaited = last + 2 - at
                    return at
                if data[last : last + 2] != _CRLF:
                    # The message is longer than announced: how much of it follows is unknown.
                    requests.append(Refused(EXPECTED_CRLF, closes=True))
                    return end
                if jobs is None or len(jobs) == _MAX_ROW:
                    jobs = []
                    requests.append(Puts(jobs))
                jobs.append(job_to_put(data[first:last], priority, delay, ttr or _LEAST_TTR))
                at = last + 2
                continue
            jobs = None
            line_end = data.find(_CRLF, at, None if self._skips_line else at + MAX_LINE)
            if line_end < 0 and end - at < MAX_LINE and not self._skips_line:
                self._longest = MAX_LINE - 1
                return at
            if not self._skips_line and data[at : at + len(_PUT_WORD)].lower() == _PUT_WORD:
                refused = self._refuse_put(data[at:line_end] if line_end >= 0 else b"")
                requests.append(refused)
                if refused.closes:
                    return end
                at = line_end + 2
            elif line_end >= 0:
                requests.append(Refused(BAD_FORMAT) if self._skips_line else Request(data[at:line_end]))
                self._skips_line = False
                at = line_end + 2
            elif self._skips_line:
                return end - data.endswith(b"\r")  # a CR may be the first half of the line's end
            else:
                self._skips_line = True
        return end

    def _refuse_put(self, line: bytes) -> Refused:
        """Refuse the line of a put, and skip its message if the line tells the size."""
        words = line.split()
        size = words[_SIZE_WORD] if len(words) > _SIZE_WORD else b""
        if not re.fullmatch(rb"\d{1,20}", size) or int(size) > _MAX_UINT32:
            return Refused(BAD_FORMAT, closes=True)
        self._skip = int(size) + 2
        return Refused(BAD_FORMAT if line.startswith(_PUT_WORD) else UNKNOWN_COMMAND)
