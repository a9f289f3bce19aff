"""Queue names, in memory: which names are refused, and how errors show them."""

from __future__ import annotations

import pytest

from handlers.memcached.replies import client_error
from handlers.resp.replies import error
from pressure_server.errors import QueueNameError
from pressure_server.queues.names import base_key, is_queue_name

# Each refused name, and how the error shows it.
REFUSED = {
    b"q:bound": b"q:bound",
    b"q:stats:produced_bytes": b"q:stats:produced_bytes",
    b"q:ext:members": b"q:ext:members",
    b"x:ext": b"x:ext",
    b"a\r\nb:bound": b"a\\r\\nb:bound",
    b"\xff:bound": b"\\xff:bound",
    b"a" * (1 << 20) + b":bound": b"a" * 128 + "…".encode(),
}


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name[:20]))
def test_a_key_of_another_queue_is_refused_as_a_name_in_one_short_line(name: bytes) -> None:
    assert not is_queue_name(name)
    with pytest.raises(QueueNameError) as refused:
        base_key(b"__pressure__", name)
    line = error(refused.value)
    assert line.startswith(b"-ERR '" + REFUSED[name] + b"' cannot be a queue's name: ")
    assert line.count(b"\r\n") == client_error(str(refused.value)).count(b"\r\n") == 1


@pytest.mark.parametrize("name", [b"", bytes(range(256)), b"n" * (1 << 20), b"bound", b"q:bound:x"])
def test_any_other_name_is_allowed(name: bytes) -> None:
    assert base_key(b"__pressure__", name) == b"__pressure__:" + name
