"""The command table: what a user may do, and what of it is decided once; tables of the docs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.auth.users import RIGHTS, User
from pressure_server.net.command_statistics import statistics_of
from pressure_server.net.command_table import Refusal, TableEntry, markdown, parse_rights

NEEDS = st.sampled_from(["nothing", *RIGHTS, "put get", "read administer"])
QUEUES = st.none() | st.lists(st.sampled_from([b"a1", b"b1"]), max_size=2)


def entry_that_needs(needs: str) -> TableEntry:
    return TableEntry(
        name="x",
        syntax="X",
        summary="",
        function=lambda: None,
        needs=parse_rights(needs, "x"),
        least=1,
        most=3,
        statistics=statistics_of("test", "x"),
    )


@given(
    NEEDS, st.frozensets(st.sampled_from(RIGHTS)), st.lists(st.sampled_from(["*", "a*"]), max_size=2), QUEUES
)
def test_a_command_is_refused_for_its_rights_or_its_queues(
    needs: str, rights: frozenset[str], patterns: list[str], queues: list[bytes] | None
) -> None:
    entry, user = entry_that_needs(needs), User("ada", queues=tuple(patterns), rights=rights)
    has_rights = needs == "nothing" or set(needs.split()) <= rights
    expected = None
    if not has_rights:
        expected = Refusal.COMMAND
    elif needs != "nothing" and "*" not in patterns:
        if queues is None:
            expected = Refusal.COMMAND if "administer" in needs else None
        elif not all("a*" in patterns and queue.startswith(b"a") for queue in queues):
            expected = Refusal.QUEUE
    assert entry.refusal(user, None if queues is None else lambda: queues) is expected
    assert (entry in user.allowed) == (has_rights and (needs == "nothing" or "*" in patterns))


def test_what_one_user_may_do_is_not_allowed_to_another() -> None:
    entry, ada, bob = entry_that_needs("put"), User("ada"), User("bob", rights=frozenset())
    assert entry.refusal(ada, None) is None
    assert entry not in bob.allowed
    assert entry.refusal(bob, None) is Refusal.COMMAND
    assert entry not in bob.allowed


@pytest.mark.parametrize("needs", ["", "fly", "put fly"])
def test_a_command_that_needs_no_such_right_is_refused(needs: str) -> None:
    with pytest.raises(ValueError, match="X cannot need"):
        parse_rights(needs, "X")


def test_a_request_has_as_many_words_as_its_command_takes() -> None:
    assert [entry_that_needs("put").accepts(words) for words in range(5)] == [False, True, True, True, False]


def test_the_tables_of_the_docs_have_a_line_for_each_command() -> None:
    lines = markdown("Title", [entry_that_needs("put get"), entry_that_needs("nothing")])
    assert lines[0] == "### Title"
    assert lines[-3:] == ["| `X` |  | put, get |", "| `X` |  |  |", ""]
