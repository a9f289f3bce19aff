"""The replies of RESP: their forms in RESP2 and RESP3, and errors, which are one line."""

import re
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.resp.parser import Words
from handlers.resp.replies import (
    NullArray,
    SetReply,
    Text,
    encode,
    error,
    unknown_command,
    unknown_subcommand,
)
from pressure_server.errors import CommandError

REPLIES: list[tuple[Any, bytes, bytes]] = [
    (None, b"$-1\r\n", b"_\r\n"),
    (NullArray(), b"*-1\r\n", b"_\r\n"),
    (5, b":5\r\n", b":5\r\n"),
    (-(2**63), b":-9223372036854775808\r\n", b":-9223372036854775808\r\n"),
    (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
    (b"a\r\nb", b"$4\r\na\r\nb\r\n", b"$4\r\na\r\nb\r\n"),
    ("OK", b"+OK\r\n", b"+OK\r\n"),
    (Text(b"abc"), b"$3\r\nabc\r\n", b"=7\r\ntxt:abc\r\n"),
    ([1, b"a", [None]], b"*3\r\n:1\r\n$1\r\na\r\n*1\r\n$-1\r\n", b"*3\r\n:1\r\n$1\r\na\r\n*1\r\n_\r\n"),
    ((1,), b"*1\r\n:1\r\n", b"*1\r\n:1\r\n"),
    (SetReply([b"a"]), b"*1\r\n$1\r\na\r\n", b"~1\r\n$1\r\na\r\n"),
    ({b"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
    (CommandError("ERR no"), b"-ERR no\r\n", b"-ERR no\r\n"),
    ([CommandError("ERR no")], b"*1\r\n-ERR no\r\n", b"*1\r\n-ERR no\r\n"),
]


@pytest.mark.parametrize(("value", "resp2", "resp3"), REPLIES)
def test_a_reply_has_a_form_in_resp2_and_in_resp3(value: Any, resp2: bytes, resp3: bytes) -> None:
    assert encode(value, 2) == resp2
    assert encode(value, 3) == resp3


def test_a_value_that_cannot_be_a_reply_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no reply for object"):
        encode(object(), 2)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20), st.just("OK")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.binary(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


def as_read(value: Any, protocol: int) -> Any:
    """Return the value that a client reads: simple strings are bytes, and RESP2 has no maps."""
    if value == "OK":
        return b"OK"
    if isinstance(value, list):
        return [as_read(item, protocol) for item in value]
    if isinstance(value, dict) and protocol == 2:
        return [as_read(item, protocol) for pair in value.items() for item in pair]
    if isinstance(value, dict):
        return {key: as_read(item, protocol) for key, item in value.items()}
    return value


@settings(deadline=None)
@given(VALUES, st.sampled_from([2, 3]))
def test_hiredis_reads_the_value_that_was_encoded(value: Any, protocol: int) -> None:
    reader = hiredis.Reader()
    reader.feed(encode(value, protocol))
    assert reader.gets() == as_read(value, protocol)
    assert reader.gets() is False


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_an_error_is_one_line_for_any_command(command: Words) -> None:
    for refusal in (unknown_command(command), unknown_subcommand([b"CLIENT", *command])):
        line = error(refusal)
        assert line.startswith(b"-ERR unknown")
        assert line.endswith(b"\r\n")
        assert not re.search(rb"[\r\n]", line[:-2])


def test_an_error_shows_at_most_128_bytes_of_names_and_of_arguments() -> None:
    line = error(unknown_command([b"x" * 10**6, b"y" * 10**6, b"z" * 10**6]))
    shown = b"'%b' " % (b"y" * 128)
    assert line == b"-ERR unknown command '%b', with args beginning with: %b\r\n" % (b"x" * 128, shown)
