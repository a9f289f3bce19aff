"""What documents say of the options: the tables of the reference, and the sample configuration file."""

import json
import textwrap
from pathlib import Path

import click

from pressure_server.app.option_types import Option
from pressure_server.app.options import GROUPS

_HEADER = """\
# Configuration of pressure-server: pressure-server serve --config FILE
#
# Remove the # before a key to set it. The values here are the defaults; a key with a value in <> has none.
# Variables of the environment take precedence over this file, and flags over both.
# Times are in seconds or have a unit: "250ms", "5s", "10m", "1h", "1d".
# Sizes are in bytes or have a unit: "64mb" is 64 MiB, "64m" is 64 000 000 bytes.
#
# `make docs` writes this file.
"""
_SECTIONS = """\

# Queues by name {line}

# Settings of queues whose names match a pattern, for queues that puts create: the options of
# PRESSURE.CREATE, in lower case. The first section that matches counts. Sections follow all other
# options. docs/guides/queue-settings.md describes them.
#[queues."mails:*"]
#    bound = 10000
#    overflow = "error"
#    max-deliveries = 5
#    dead-letter = "failed"
"""
_WIDTH = 100


def options_markdown() -> str:
    """Return the tables of docs/reference/options.md."""
    lines: list[str] = []
    for group, options in GROUPS.items():
        lines += [f"## {group}", "", "| option | variable | default | |", "|---|---|---|---|"]
        for option in options:
            flags = "/".join([*option.opts, *option.secondary_opts])
            lines.append(f"| `{flags}` | `{option.envvar}` | {_default_of(option)} | {option.help} |")
        lines.append("")
    return "\n".join(lines)


def _default_of(option: Option) -> str:
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    if isinstance(option.default, tuple):
        return f"`{' '.join(option.default)}`"
    has_none = option.default is None or not isinstance(option.default, str | int | Path)
    return "" if has_none else f"`{option.default}`"


def sample_config() -> str:
    """Return a TOML file that describes every option, and has its default as a comment."""
    parts = [_HEADER]
    for group, options in GROUPS.items():
        parts.append(f"\n# {group} {'-' * (_WIDTH - len(group) - 3)}\n")
        parts += [_entry(option) for option in options if option.expose_value]
    parts.append(_SECTIONS.format(line="-" * (_WIDTH - len("# Queues by name "))))
    return "\n".join(parts)


def _entry(option: Option) -> str:
    lines = textwrap.wrap(option.help or "", _WIDTH - 2, break_on_hyphens=False)
    if isinstance(option.type, click.Choice):
        lines.append(f"One of: {', '.join(option.type.choices)}.")
    lines.append(f"Variable: {option.envvar}")
    key = str(option.name).replace("_", "-")
    return "".join(f"# {line}\n" for line in lines) + f"#{key} = {_value(option)}\n"


def _value(option: Option) -> str:
    """Return the default as TOML, or the kind of the value in <>."""
    default = option.show_default if isinstance(option.show_default, str) else option.default
    match default:
        case bool():
            return "true" if default else "false"
        case int():
            return str(default)
        case str() | Path():
            # JSON's numbers and strings are TOML as well.
            text = str(default)
            return text if text.isdigit() else json.dumps(text, ensure_ascii=False)
        case tuple() if default:
            return json.dumps(list(default), ensure_ascii=False)
    return f'"<{option.make_metavar(click.Context(click.Command("serve")))}>"'
