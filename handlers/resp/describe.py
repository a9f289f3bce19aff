"""Descriptions of commands, from the table: COMMAND INFO, COMMAND DOCS, docs/reference/commands.md."""

from __future__ import annotations

from handlers.resp.client import Spec
from handlers.resp.replies import SetReply
from handlers.resp.syntax import Argument
from handlers.resp.table import COMMANDS
from pressure_server.auth.users import RIGHTS

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


def command_info(spec: Spec) -> list[object]:
    """Return an entry of COMMAND INFO, with the ten fields of Redis 7."""
    first, last, step = spec.keys
    categories = [f"@{'keyspace' if spec.group == 'generic' else spec.group}"]
    categories += ["@write"] if "write" in spec.flags else ["@read"] if "readonly" in spec.flags else []
    categories.append("@fast" if "fast" in spec.flags else "@slow")
    subcommands = [command_info(sub) for sub in spec.subcommands.values()]
    return [
        spec.name.encode(),
        spec.arity,
        SetReply(spec.flags),
        first,
        last,
        step,
        SetReply(categories),
        [],
        [],
        subcommands,
    ]


def command_docs(spec: Spec) -> dict[bytes, object]:
    """Return an entry of COMMAND DOCS."""
    docs: dict[bytes, object] = {b"summary": spec.summary.encode(), b"group": spec.group.encode()}
    if spec.subcommands:
        docs[b"subcommands"] = {sub.name.encode(): command_docs(sub) for sub in spec.subcommands.values()}
    elif spec.arguments:
        docs[b"arguments"] = [_argument_docs(argument) for argument in spec.arguments]
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
    lines: list[str] = []
    for group, title in _TITLES.items():
        lines += [f"### {title}", "", "| command | what it does | needs |", "|---|---|---|"]
        for spec in COMMANDS.values():
            shown = [spec] if not spec.subcommands else list(spec.subcommands.values())
            lines += [
                f"| `{one.syntax.replace('|', chr(92) + '|')}` | {one.summary} | {_needs_of(one)} |"
                for one in shown
                if one.group == group
            ]
        lines.append("")
    return "\n".join(lines)


def _needs_of(spec: Spec) -> str:
    """Return the rights that the command needs, in the order of RIGHTS."""
    return ", ".join(right for right in RIGHTS if right in spec.needs)
