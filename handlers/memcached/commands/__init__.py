"""The commands, a module for each group. Importing a module enters its commands into the table."""

from importlib import import_module

_GROUPS = ("items", "queues", "values", "server")


def load() -> None:
    """Enter all commands into the table."""
    for group in _GROUPS:
        import_module(f"{__name__}.{group}")
