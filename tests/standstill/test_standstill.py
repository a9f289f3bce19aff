"""The program knows all commands, and each of its requests gets a reply. It measures nothing here."""

from collections.abc import Iterator

import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS
from tests.standstill.cases import KINDS, SMALL, STREAMS, cases
from tests.standstill.stage import Stage, staged


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), SMALL) as made:
        yield made


def test_there_are_cases_for_each_command_and_each_kind_of_queue() -> None:
    commands.load()
    known = {entry.name for one in COMMANDS.values() for entry in one.subcommands.values() or [one]}
    made = list(cases(SMALL))
    assert {case.command.name for case in made} == known - STREAMS
    assert {case.kind for case in made if case.command.name == "srem"} == {*KINDS, "fat"}
    srem = [case.words() for case in made if str(case) == "SREM fifo many distinct"]
    assert [len(words) for words in srem] == [SMALL.words - 14]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_request_gets_a_reply(stage: Stage, kind: str) -> None:
    played = 0
    for case in cases(SMALL, (kind,)):
        if case.kind not in ("", "fat") or kind == "fifo":
            stage.prepare(case)
            outcome = stage.play(case)
            assert outcome.reply not in ("closed", "no reply"), case
            assert "internal error" not in outcome.reply, case
            played += 1
    assert played > 100
    assert "Traceback" not in stage.server.log
