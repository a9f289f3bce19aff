"""Each mutant is a change of the source as it is now, and each machine runs tests that exist."""

import pytest

from tests.mutants.__main__ import all_mutants
from tests.mutants.machines import MACHINES
from tests.support.paths import ROOT

MUTANTS = all_mutants()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_the_source(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.text_of(ROOT) != (ROOT / mutant.file).read_text()


def test_the_machines_run_tests_that_exist() -> None:
    words = [word for machine in MACHINES.values() for word in machine.command if word.startswith("tests/")]
    assert words
    assert all((ROOT / word).exists() for word in words)
