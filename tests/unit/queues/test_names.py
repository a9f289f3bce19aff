"""Queue names, in memory: which names are refused, and how errors show them; which keys belong to a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.memcached.replies import client_error
from handlers.resp.replies import error
from pressure_server.errors import QueueNameError
from pressure_server.queues.names import (
    BOUND,
    CLOSED,
    DELAYED,
    DUE,
    DUE_QUEUES,
    EXTENSION_SUFFIXES,
    GARBAGE,
    PROTOCOL_SUFFIXES,
    QUEUES,
    READY,
    base_key,
    is_queue_name,
    keys_pattern,
    queue_name,
    records_key,
    split_key,
)
from pressure_server.text import Glob

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


NAMES = st.binary(max_size=12).filter(is_queue_name)
PREFIXES = st.sampled_from([b"p", b"__pressure__", b"a:b", b"*[x]?", b"{tag}\\", b""])


@given(PREFIXES, NAMES, st.sampled_from([BOUND, CLOSED, READY, DUE, DELAYED]))
def test_a_watched_key_is_split_into_name_and_suffix(prefix: bytes, name: bytes, suffix: bytes) -> None:
    assert split_key(prefix, base_key(prefix, name) + suffix) == (name, suffix)
    assert split_key(prefix, base_key(prefix, name)) == (name, b"")


@given(PREFIXES, NAMES)
def test_a_queue_is_known_by_the_key_that_shows_its_existence(prefix: bytes, name: bytes) -> None:
    key = base_key(prefix, name) + BOUND
    assert queue_name(prefix, key) == name
    assert Glob(keys_pattern(prefix, BOUND)).matches(key)
    assert not Glob(keys_pattern(prefix, BOUND)).matches(b"x" + key)
    assert not Glob(keys_pattern(prefix, BOUND)).matches(key + b"x")


@pytest.mark.parametrize("suffix", [*PROTOCOL_SUFFIXES, *EXTENSION_SUFFIXES])
def test_a_key_of_a_queue_is_not_that_of_a_queue_with_a_longer_name(suffix: bytes) -> None:
    assert queue_name(b"p", base_key(b"p", b"q") + suffix + BOUND) is None


def test_a_pattern_takes_the_prefix_as_it_is() -> None:
    assert keys_pattern(b"a*b", b":x") == b"a\\*b:*:x"
    found = Glob(keys_pattern(b"a*b", b":x"))
    assert found.matches(b"a*b:q:x")
    assert not found.matches(b"aab:q:x")


def test_keys_of_servers_are_those_of_no_queue() -> None:
    keys = [records_key(b"p", b"me"), b"p" + QUEUES, b"p" + DUE_QUEUES, b"p" + GARBAGE]
    assert keys == [b"p!calls:me", b"p!queues", b"p!due", b"p!garbage"]
    assert not any(key.startswith(base_key(b"p", b"")) for key in keys)
