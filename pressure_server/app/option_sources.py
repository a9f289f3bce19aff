"""Sources of option values besides the command line: the configuration file and the environment."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from pressure_server.app.option_types import VARIABLE_PREFIX, Option
from pressure_server.net.listener import SettingsError
from pressure_server.text import reason_of

# Variables that Kubernetes and Docker links set for a service whose name begins with `pressure`.
_LINK_VARIABLE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?|NAME|ENV_\w+)")
# By the type of an option's default: the TOML types that it accepts besides strings.
_TOML_TYPES: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


def read_config(ctx: click.Context, path: Path, all_options: Sequence[Option]) -> None:
    """Use the values of the TOML file as defaults, so that flags and variables take precedence.

    Raise click.UsageError if the file cannot be read, or a key or value is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else error
        raise click.UsageError(f"{path} cannot be read: {why}") from error
    options = {str(option.name).replace("_", "-"): option for option in all_options if option.expose_value}
    ctx.default_map = {}
    for key, value in found.items():
        where = f"{path}, line {_line_of(key, text)}"
        option = options.get(key.replace("_", "-"))
        if option is None:
            likely = difflib.get_close_matches(key, options, 1)
            hint = f": did you mean {likely[0]}?" if likely else ""
            raise click.UsageError(f"{where}: unknown option {key}{hint}")
        kinds = (str, *_TOML_TYPES.get(type(option.default), ()))
        several = value if option.multiple and isinstance(value, list) else [value]
        if not several or any(type(one) not in kinds for one in several):
            # Do not show the value: the URL of a backend may contain a password.
            raise click.UsageError(f"{where}: invalid value for {key}")
        try:
            option.type_cast_value(ctx, several if option.multiple else value)
        except click.BadParameter as error:
            raise click.UsageError(f"{where}: invalid value for {key}: {error.message}") from error
        ctx.default_map[str(option.name)] = several if option.multiple else value


def _line_of(key: str, text: str) -> int:
    """Return the number of the line that sets the key; 1 if it is not found."""
    found = re.search(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1


def check_environment(names: Iterable[str], all_options: Iterable[Option]) -> None:
    """Raise click.UsageError if a variable PRESSURE_… belongs to no option."""
    known = [str(option.envvar).removeprefix(VARIABLE_PREFIX) for option in all_options]
    for name in sorted(names):
        suffix = name.removeprefix(VARIABLE_PREFIX)
        if suffix != name and suffix not in known and not _LINK_VARIABLE.fullmatch(suffix):
            likely = difflib.get_close_matches(suffix, known, 1)
            hint = (
                f"did you mean {VARIABLE_PREFIX}{likely[0]}?"
                if likely
                else "see pressure-server serve --help"
            )
            raise click.UsageError(f"unknown variable {name} in the environment: {hint}")


def backend_from_redis_variables(environment: Mapping[str, str]) -> str | None:
    """Return the URL of the backend that the variables of pressure 0.15 (Message Brokers) select.

    Any of REDIS_SERVER, REDIS_PORT and REDIS_DB selects Redis; the others have defaults. Return None if none
    of them is set. Raise SettingsError if a number is invalid.
    """
    names = ("REDIS_SERVER", "REDIS_PORT", "REDIS_DB")
    if not any(environment.get(name) for name in names):
        return None
    server = environment.get("REDIS_SERVER") or "127.0.0.1"
    numbers = {}
    for name, default, largest in (("REDIS_PORT", "6379", 65535), ("REDIS_DB", "0", 9999)):
        text = environment.get(name) or default
        if not text.isascii() or not text.isdigit() or int(text) > largest:
            raise SettingsError(f"{name}='{text}' must be a number from 0 to {largest}")
        numbers[name] = int(text)
    host = f"[{server}]" if ":" in server else server
    return f"redis://{host}:{numbers['REDIS_PORT']}/{numbers['REDIS_DB']}"
