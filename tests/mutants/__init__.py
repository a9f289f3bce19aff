"""Mutants: faults of the server and its library that the tests must find. `python -m tests.mutants` plays them."""
