"""Each mutant is a change of the source as it is now."""

import pytest

from tests.mutants.__main__ import all_mutants
from tests.support.paths import ROOT

MUTANTS = all_mutants()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_the_source(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.text_of(ROOT) != (ROOT / mutant.file).read_text()
