"""Meta commands: flags, and the lines of their replies."""

import pytest

from handlers.memcached.meta import Meta
from handlers.memcached.replies import ClientError


def meta(*flags: bytes, key: bytes = b"key") -> Meta:
    return Meta(key, list(flags))


@pytest.mark.parametrize(
    ("flag", "token"),
    [
        (b"v", b""),
        (b"T0", b"0"),
        (b"T30", b"+30"),
        (b"T-1", b"1"),
        (b"N2592001", b"2592001"),
        (b"F0007", b"7"),
        (b"C18446744073709551615", b"18446744073709551615"),
        (b"MS", b"S"),
        (b"O" + b"x" * 31, b"x" * 31),
        (b"O", b""),
    ],
)
def test_a_token_becomes_what_scripts_take(flag: bytes, token: bytes) -> None:
    assert meta(flag) == {chr(flag[0]): token}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([b"?"], "invalid flag"),
        ([b"\xff"], "invalid flag"),
        ([b"S100"], "invalid flag"),
        ([b"v", b"k", b"v"], "duplicate flag"),
        ([b"Tx"], "bad token in command line format"),
        ([b"C"], "bad token in command line format"),
        ([b"F4294967296"], "bad command line format"),
        ([b"D-1"], "invalid numeric delta value"),
        ([b"J18446744073709551616"], "invalid numeric initial value"),
        ([b"M"], "incorrect length for M token"),
        ([b"O" + b"x" * 32], "opaque token too long"),
    ],
)
def test_a_wrong_flag_is_refused(flags: list[bytes], text: str) -> None:
    with pytest.raises(ClientError, match=f"^{text}$"):
        meta(*flags)


def test_a_flag_that_the_command_does_not_support_is_refused() -> None:
    assert "v" in Meta(b"key", [b"v"], "TI", "reason")
    with pytest.raises(ClientError, match="invalid flag: T is not supported, because reason"):
        Meta(b"key", [b"v", b"T30"], "TI", "reason")


@pytest.mark.parametrize("key", [b"k" * 251, b"a b", b"\0"])
def test_a_key_is_checked_unless_it_came_in_base64(key: bytes) -> None:
    with pytest.raises(ClientError):
        meta(key=key)
    assert meta(b"b", key=key).key == key


def test_a_reply_has_what_was_asked_for_in_the_order_of_the_flags() -> None:
    facts = {"c": b"7", "f": b"0", "s": b"3", "t": b"-1"}
    assert meta(b"s", b"v", b"Oab", b"k", b"c").item(b"abc", 3, facts) == b"VA 3 s3 Oab kkey c7\r\nabc\r\n"
    assert meta(b"t", b"f", b"q").item(b"abc", 3, facts, b"XW") == b"HD t-1 f0 X W\r\n"
    assert meta(b"k", b"b", b"O1", key=b"\xff ").item(b"", 0, facts) == b"HD k/yA= b O1\r\n"


def test_quiet_commands_have_no_reply_to_the_usual_outcome() -> None:
    assert meta(b"k", b"v", b"Oab").miss() == b"EN kkey Oab\r\n"
    assert meta(b"k", b"q").miss() == b""
    for line, reply in ((b"STORED", b""), (b"DELETED", b""), (b"EXISTS", b"EX c0 kkey\r\n")):
        assert meta(b"q", b"c", b"k").outcome(line, {"c": b"0"}) == reply
    assert meta(b"q").outcome(b"SERVER_ERROR x", {}) == b"SERVER_ERROR x\r\n"
