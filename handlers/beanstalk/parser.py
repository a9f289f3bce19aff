"""The parser of the beanstalk protocol: bytes to requests. Pure.

A request is a line of at most 224 bytes with its end; after the line of a put follow the message and CRLF.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from handlers.beanstalk.replies import BAD_FORMAT, EXPECTED_CRLF, JOB_TOO_BIG

MAX_LINE = 224
_CRLF = b"\r\n"
_MAX_UINT32 = (1 << 32) - 1
_PUT = re.compile(rb"put +(\d{1,20}) +(\d{1,20}) +(\d{1,20}) +(\d{1,20})\r\n")


class Request(NamedTuple):
    """A command's line, without its end."""

    line: bytes


class Put(NamedTuple):
    """A put: priority, delay and time to run (both in seconds), and the message."""

    priority: int
    delay: int
    ttr: int
    message: bytes


class Refused(NamedTuple):
    """A request that was refused, with its reply."""

    reply: bytes


Parsed = Request | Put | Refused


class RequestParser:
    """Parses the bytes of one client."""

    def __init__(self, max_job_size: int) -> None:
        """A message may have up to `max_job_size` bytes."""
        self._max_job_size = max_job_size
        self._buffer = b""
        # Bytes of a message that is too big, which are left out.
        self._to_skip = 0
        self._skips_line = False

    @property
    def unparsed(self) -> int:
        """The number of bytes in memory."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Parsed]:
        """Return the requests that are complete with these bytes."""
        data = self._buffer + data if self._buffer else data
        requests: list[Parsed] = []
        at, end = 0, len(data)
        while at < end:
            if self._to_skip:
                skipped = min(self._to_skip, end - at)
                at += skipped
                self._to_skip -= skipped
                if not self._to_skip:
                    requests.append(Refused(JOB_TOO_BIG))
                continue
            put = None if self._skips_line else _PUT.match(data, at, at + MAX_LINE)
            if put is not None:
                size = int(put[4])
                if size > self._max_job_size and size <= _MAX_UINT32 and _is_put(put):
                    self._to_skip = size + 2
                    at = put.end()
                    continue
                if _is_put(put) and size <= self._max_job_size:
                    first, last = put.end(), put.end() + size
                    if end < last + 2:
                        break
                    if data[last : last + 2] == _CRLF:
                        requests.append(Put(int(put[1]), int(put[2]), int(put[3]), data[first:last]))
                    else:
                        requests.append(Refused(EXPECTED_CRLF))
                    at = last + 2
                    continue
            line_end = data.find(_CRLF, at, None if self._skips_line else at + MAX_LINE)
            if line_end < 0:
                if not self._skips_line and end - at < MAX_LINE:
                    break
                if self._skips_line:
                    at = end - data.endswith(b"\r")  # a CR may be the first half of the line's end
                    break
                self._skips_line = True
                continue
            if self._skips_line:
                requests.append(Refused(BAD_FORMAT))
                self._skips_line = False
            else:
                requests.append(Request(data[at:line_end]))
            at = line_end + 2
        self._buffer = data[at:]
        return requests


def _is_put(put: re.Match[bytes]) -> bool:
    """Return whether the numbers of a put are in range; 32 bits each."""
    # Numbers of less than ten digits are in range: this takes a third of the time.
    return put.end() - put.start() < 20 or all(int(number) <= _MAX_UINT32 for number in put.groups())
