"""Replies of the library, as a type."""

from typing import Any

import pytest

from pressure_server.queues.operations.block_reply import (
    NO_NEWS,
    Done,
    Due,
    News,
    Refused,
    Unfinished,
    accepts,
    read_reply,
)


@pytest.mark.parametrize(
    ("reply", "runs", "meaning"),
    [
        ([0, 7], 1, Done([7], NO_NEWS)),
        ([-1, 7], 1, Done([7], NO_NEWS)),
        ([-2, 7, []], 2, Done([7, []], NO_NEWS)),
        ([0], 1, Unfinished([], 0, NO_NEWS)),
        ([-1], 1, Unfinished([], 0, NO_NEWS)),
        ([0, 7], 2, Unfinished([7], 0, NO_NEWS)),
        ([3, 7], 1, Unfinished([7], 3, NO_NEWS)),
        ([[0, 0, b"due 0 5"]], 1, Unfinished([], 0, News(due=Due(0.0, b"5")))),
        ([[1, 0, b"others"], []], 1, Unfinished([[]], 1, News(left_for_others=True))),
        ([b"refused", b"p:q", b"DUE"], 1, Refused(b"p:q", "DUE")),
    ],
)
def test_a_reply_has_one_meaning(reply: list[Any], runs: int, meaning: object) -> None:
    found = read_reply(reply, runs)
    assert type(found) is type(meaning)
    assert found == meaning


@pytest.mark.parametrize(
    ("words", "news"),
    [
        ([0, b"due -1 "], News(due=Due())),
        ([0, b"due 1500 7"], News(due=Due(1.5, b"7"))),
        ([0, b"due -1 7"], News(due=Due(None, b"7"))),
        ([0, b"room 250"], News(room_after=0.25)),
        ([0, b"source 6"], News(log_suffix=6)),
        ([0, b"producer", 0, b"consumer"], News(held=(b"producer", b"consumer"))),
        ([2, [b"m"], 0, b"others"], News(later=((2, [b"m"]),), left_for_others=True)),
    ],
)
def test_what_a_reply_says_beside_the_results(words: list[Any], news: News) -> None:
    found = News.of(words)
    assert found == news


def test_only_a_refusal_because_of_due_jobs_must_be_repeated() -> None:
    assert Refused(b"p:q", "DUE").must_be_repeated
    assert not Refused(b"p:q", "CHANGED").must_be_repeated


@pytest.mark.parametrize(
    ("result", "is_accepted"),
    [(0, True), (5, True), ([1], True), ([0], True), ([-1], False), ([b"part", 0, 0, []], False)],
)
def test_whether_a_put_was_accepted(result: Any, is_accepted: bool) -> None:
    assert accepts(result) is is_accepted
