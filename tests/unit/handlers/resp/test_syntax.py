"""Syntax lines of commands: their arguments, arity, keys and types."""

import pytest

from handlers.resp.syntax import Argument, arity_of, keys_of, parse_syntax

SYNTAX: list[tuple[str, tuple[Argument, ...], int, tuple[int, int, int]]] = [
    ("", (), 1, (0, 0, 0)),
    ("key", (Argument("key"),), 2, (1, 1, 1)),
    ("key [count]", (Argument("key"), Argument("count", optional=True)), -2, (1, 1, 1)),
    ("key member [member ...]", (Argument("key"), Argument("member", multiple=True)), -3, (1, 1, 1)),
    ("key [key ...]", (Argument("key", multiple=True),), -2, (1, -1, 1)),
    ("source destination", (Argument("source"), Argument("destination")), 3, (1, 2, 1)),
    (
        "cursor [MATCH pattern] [COUNT count]",
        (
            Argument("cursor"),
            Argument("pattern", "MATCH", optional=True),
            Argument("count", "COUNT", optional=True),
        ),
        -2,
        (0, 0, 0),
    ),
    ("[ASYNC]", (Argument("", "ASYNC", optional=True),), -1, (0, 0, 0)),
    ("KEEP THIS key", (Argument("", "KEEP"), Argument("key", "THIS")), 4, (2, 2, 1)),
]


@pytest.mark.parametrize(("line", "arguments", "arity", "keys"), SYNTAX, ids=[case[0] for case in SYNTAX])
def test_a_syntax_line_gives_arguments_arity_and_keys(
    line: str, arguments: tuple[Argument, ...], arity: int, keys: tuple[int, int, int]
) -> None:
    assert parse_syntax(line) == arguments
    assert arity_of(arguments, 1) == arity
    assert keys_of(arguments, 1) == keys


@pytest.mark.parametrize(
    ("name", "kind"), [("key", "key"), ("count", "integer"), ("pattern", "pattern"), ("member", "string")]
)
def test_arguments_have_the_types_of_redis(name: str, kind: str) -> None:
    assert Argument(name).type == kind
    assert Argument("", "ASYNC").type == "pure-token"
