"""A plugin of pytest: hypothesis does not shrink what it finds. That a mutant is found is enough."""

from hypothesis.internal.conjecture.engine import ConjectureRunner

ConjectureRunner.shrink_interesting_test_cases = lambda self: None  # type: ignore[method-assign]
