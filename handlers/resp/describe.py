"""Descriptions of commands, from the table: COMMAND INFO, COMMAND DOCS, docs/reference/commands.md."""

from __future__ import annotations

from handlers.resp.replies import SetReply
from handlers.resp.syntax import Argument
from handlers.resp.table import COMMANDS, Command
from pressure_server.net.command_table import markdown

_TITLES = {
    "set": "A queue as a set",
    "list": "A queue as a list",
    "pressure": "The pressure protocol's operations",
    "jobs": "Jobs",
    "logs": "Logs",
    "generic": "Queues as keys",
    "transactions": "Transactions",
    "connection": "The connection",
    "server": "The server",
}


def command_info(entry: Command) -> list[object]:
    """Return an entry of COMMAND INFO, with the ten fields of Redis 7."""
    first, last, step = entry.keys
    categories = [f"@{'keyspace' if entry.group == 'generic' else entry.group}"]
    categories += ["@write"] if "write" in entry.flags else ["@read"] if "readonly" in entry.flags else []
    categories.append("@fast" if "fast" in entry.flags else "@slow")
    subcommands = [command_info(sub) for sub in entry.subcommands.values()]
    return [
        entry.name.encode(),
        entry.arity,
        SetReply(entry.flags),
        first,
        last,
        step,
        SetReply(categories),
        [],
        [],
        subcommands,
    ]


def command_docs(entry: Command) -> dict[bytes, object]:
    """Return an entry of COMMAND DOCS."""
    docs: dict[bytes, object] = {b"summary": entry.summary.encode(), b"group": entry.group.encode()}
    if entry.subcommands:
        docs[b"subcommands"] = {sub.name.encode(): command_docs(sub) for sub in entry.subcommands.values()}
    elif entry.arguments:
        docs[b"arguments"] = [_argument_docs(argument) for argument in entry.arguments]
    return docs


def _argument_docs(argument: Argument) -> dict[bytes, object]:
    name = argument.name or argument.token.lower()
    docs: dict[bytes, object] = {b"name": name.encode(), b"type": argument.type.encode()}
    if argument.type == "key":
        docs[b"key_spec_index"] = 0
    if argument.token:
        docs[b"token"] = argument.token.encode()
    flags = [flag for flag in ("optional", "multiple") if getattr(argument, flag)]
    if flags:
        docs[b"flags"] = SetReply(flags)
    return docs


def commands_markdown() -> str:
    """Return the tables of docs/reference/commands.md."""
    shown = [one for entry in COMMANDS.values() for one in entry.subcommands.values() or [entry]]
    lines: list[str] = []
    for group, title in _TITLES.items():
        lines += markdown(title, [entry for entry in shown if entry.group == group])
    return "\n".join(lines)
