"""Mutants: faults of the server and its library that tests must find: `python -m tests.mutants`."""
