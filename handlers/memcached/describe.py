"""The tables of commands in docs/reference/memcached.md, generated from the command table."""

from __future__ import annotations

from handlers.memcached.client import KV, QUEUE
from handlers.memcached.table import COMMANDS
from pressure_server.auth.users import RIGHTS

_TITLES = {QUEUE: "Queues (`mode=queue`)", KV: "Keys and values (`mode=kv`)"}


def commands_markdown() -> str:
    """Return a Markdown table of commands for each mode."""
    lines: list[str] = []
    for mode, title in _TITLES.items():
        lines += [f"### {title}", "", "| command | what it does | needs |", "|---|---|---|"]
        for spec in COMMANDS[mode].values():
            needs = ", ".join(right for right in RIGHTS if right in spec.needs)
            lines.append(f"| `{spec.syntax}` | {spec.summary} | {needs} |")
        lines.append("")
    return "\n".join(lines)
