"""The commands, in modules by subject. Importing a module enters its commands into the table."""

from importlib import import_module

_GROUPS = (
    "sets", "lists", "algebra", "pressure", "logs", "jobs", "transactions", "keys", "connection", "server",
)  # fmt: skip


def load() -> None:
    """Enter all commands into the table."""
    for group in _GROUPS:
        import_module(f"{__name__}.{group}")
