"""The options of the commands, and their values from the environment and the configuration file.

Each field of Settings is an option, a variable PRESSURE_… and a key of the TOML file. Parsing, `--help` and
docs/reference/options.md are generated from them.
"""

import difflib
import os
import re
from dataclasses import fields
from pathlib import Path

import click

from pressure_server.app.option_types import FILE, VARIABLE_PREFIX, Option, help_texts
from pressure_server.app.queue_sections import QUEUES, line_of, read_config, read_templates
from pressure_server.app.settings import Settings
from pressure_server.app.store import Store

# The options of commands that look at a store of queues.
STORE_OPTIONS = ("config", *(one.name for one in fields(Store) if one.metadata))
# Variables that Kubernetes and Docker links set for a service whose name begins with `pressure`.
_LINK_VARIABLE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?|NAME|ENV_\w+)")
_CONFIG = "pressure_server.config"
# By the type of an option's default: the TOML types that it accepts besides strings.
_TOML_TYPES: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


def _config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Check the environment, and read the configuration file: before the other options have values.

    The values of the TOML file become defaults, so that flags and variables take precedence. Raise
    SettingsError or click.UsageError if the file cannot be read, or a key or value is invalid.
    """
    _check_environment()
    if path is None:
        return
    ctx.meta[_CONFIG] = path
    found, text = read_config(path)
    if found.pop(QUEUES, None) is not None:
        read_templates(path)
    options = {str(option.name).replace("_", "-"): option for option in _OPTIONS if option.expose_value}
    ctx.default_map = {}
    for key, value in found.items():
        where = f"{path}, line {line_of(key, text)}"
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


def _check_environment() -> None:
    """Raise click.UsageError if a variable PRESSURE_… belongs to no option."""
    known = [str(option.envvar).removeprefix(VARIABLE_PREFIX) for option in _OPTIONS]
    known.append("COMPILE")  # of an installation: setup.py
    for name in sorted(os.environ):
        suffix = name.removeprefix(VARIABLE_PREFIX)
        if suffix != name and suffix not in known and not _LINK_VARIABLE.fullmatch(suffix):
            likely = difflib.get_close_matches(suffix, known, 1)
            hint = "see pressure-server serve --help"
            if likely:
                hint = f"did you mean {VARIABLE_PREFIX}{likely[0]}?"
            raise click.UsageError(f"unknown variable {name} in the environment: {hint}")


_HELP = help_texts(Store, Settings)
_OPTIONS = [
    Option(
        "config",
        "A TOML file with values for these options. Its keys are the option names without the leading "
        "dashes, such as max-clients = 500.",
        group="Listeners and backend",
        type=FILE,
        callback=_config,
        is_eager=True,
        expose_value=False,
    ),
    *(Option(one.name, _HELP.get(one.name, ""), **one.metadata) for one in fields(Settings) if one.metadata),
]
# By the group in which help and documents list them.
GROUPS: dict[str, list[Option]] = {}
for _one in _OPTIONS:
    _one.group = _one.group or list(GROUPS)[-1]
    GROUPS.setdefault(_one.group, []).append(_one)


def config_path() -> Path | None:
    """Return the path of the configuration file of the present command."""
    found: Path | None = click.get_current_context().meta.get(_CONFIG)
    return found


def shared_options(*names: str) -> list[click.Parameter]:
    """Return the options of these names, in Python's spelling (`data_dir`); all options if none is named.

    The --config file may nevertheless contain every option, so that commands can share one file.
    """
    return [one for one in _OPTIONS if not names or one.name in names]
