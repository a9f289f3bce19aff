"""Tables of options: what clients may give, and which error is raised otherwise."""

import pytest

from handlers.resp.options import OptionTable, Parsers
from pressure_server.errors import CommandError
from pressure_server.words import one_of, positive_count

PARSERS: Parsers = {
    b"COUNT": positive_count,
    b"NX": None,
    b"IF NOT EXISTS": None,
    b"OVERFLOW": one_of(BLOCK=1, ERROR=2),
}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", {}),
        ("nx count 3", {b"NX": True, b"COUNT": 3}),
        ("if NOT exists Overflow error", {b"IF NOT EXISTS": True, b"OVERFLOW": 2}),
    ],
)
def test_options_have_values(line: str, found: dict[bytes, object]) -> None:
    assert OptionTable(PARSERS).values(line.encode().split()) == found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("XX", "'XX' is none of the options "),
        ("3", "'3' is none of the options "),
        ("COUNT", "COUNT needs a value after it"),
        ("NX NX", "NX is given twice"),
        ("COUNT 1 COUNT 1", "COUNT is given twice"),
        ("IF EXISTS", "write IF NOT EXISTS"),
        ("IF NOT", "write IF NOT EXISTS"),
        ("OVERFLOW x", "'x' is none of "),
    ],
)
def test_other_options_are_syntax_errors_with_the_reason(line: str, why: str) -> None:
    with pytest.raises(CommandError, match=f"^ERR syntax error: {why}"):
        OptionTable(PARSERS).values(line.encode().split())


def test_a_syntax_error_of_a_command_of_redis_has_redis_s_text() -> None:
    with pytest.raises(CommandError, match=r"^ERR syntax error$"):
        OptionTable(PARSERS, of_redis=True).values([b"COUNT"])


def test_the_last_value_counts_where_redis_lets_it() -> None:
    assert OptionTable(PARSERS, last_counts=True).values(b"COUNT 1 COUNT 2".split()) == {b"COUNT": 2}


@pytest.mark.parametrize(
    ("line", "names", "found"),
    [
        ("a b", [b"a", b"b"], {}),
        ("a b count 2 NX", [b"a", b"b"], {b"COUNT": 2, b"NX": True}),
        ("count COUNT 2", [b"count"], {b"COUNT": 2}),
    ],
)
def test_options_follow_at_least_one_name(line: str, names: list[bytes], found: dict[bytes, object]) -> None:
    assert OptionTable(PARSERS).after_names(line.encode().split()) == (names, found)
