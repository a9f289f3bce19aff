"""The sections `[queues."PATTERN"]` of the configuration file: settings of queues by name."""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

import click

from pressure_server.app.option_types import Seconds
from pressure_server.errors import CommandError, PatternError, QueueNameError
from pressure_server.net.listener import SettingsError
from pressure_server.queues.operations.queue_options import CREATE_OPTIONS, creation_of
from pressure_server.queues.templates import QueueTemplate
from pressure_server.text import Glob, reason_of

# The key of the configuration file that has the sections.
QUEUES = "queues"
# Options that are times: they may have a unit, as the server's options have.
_TIMES = (b"TTL", b"ACK-TTR", b"RETRY-DELAY", b"RETRY-DELAY-MAX")


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Return the values of a TOML file, and its text. Raise SettingsError."""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else error
        raise SettingsError(f"{path} cannot be read: {why}") from error


def line_of(key: str, text: str, start: int = 0) -> int:
    """Return the number of the line that sets the key, after the position `start`; 1 if it is not found."""
    found = re.compile(rf"^\s*[\"']?{re.escape(key)}[\"']?\s*=", re.MULTILINE).search(text, start)
    return text.count("\n", 0, found.end()) + 1 if found else 1


def read_templates(path: Path, default_bound: int = 0) -> tuple[QueueTemplate, ...]:
    """Return the templates of a configuration file, in its order.

    `default_bound` is for sections without a bound. Raise SettingsError for all that PRESSURE.CREATE refuses.
    """
    found, text = read_config(path)
    sections = found.get(QUEUES, {})
    if not isinstance(sections, dict) or any(type(values) is not dict for values in sections.values()):
        raise SettingsError(f'{path}: {QUEUES} has sections only: [{QUEUES}."PATTERN"]')
    templates: list[QueueTemplate] = []
    for pattern, values in sections.items():
        header = rf"^\s*\[\s*queues\s*\.\s*[\"']?{re.escape(pattern)}[\"']?\s*\]"
        at = re.search(header, text, re.MULTILINE)
        start = at.end() if at else 0
        where = f'{path}, line {len(text[:start].splitlines()) or 1}, [queues."{pattern}"]'
        options: dict[bytes, Any] = {}
        for key, value in values.items():
            of_key = f'{path}, line {line_of(key, text, start)}, [queues."{pattern}"]'
            options |= _option(key, value, of_key)
        templates.append(_template(pattern, options, default_bound, where))
        _check_dead_letter(templates, where)
    return tuple(templates)


def _option(key: str, value: object, where: str) -> dict[bytes, Any]:
    """Return an option of PRESSURE.CREATE and its parsed value. Raise SettingsError."""
    options = {name.decode().lower(): (name, parse) for name, parse in CREATE_OPTIONS.items() if parse}
    name, parse = options.get(key.lower().replace("_", "-"), (b"", None))
    if parse is None:
        likely = difflib.get_close_matches(key, options, 1, cutoff=0.75)
        known = f"the options are {', '.join(options)}; options of the server precede the sections"
        hint = f"did you mean {likely[0]}?" if likely else known
        raise SettingsError(f"{where}: unknown option {key}: {hint}")
    try:
        if type(value) not in (str, int, float):
            raise CommandError("ERR write a number, or a text in quotes")
        if name in _TIMES:
            value = Seconds().convert(value, None, None)
        return {name: parse(str(value).encode())}
    except click.BadParameter as error:
        raise SettingsError(f"{where}: invalid value for {key}: write a time such as 300 or 5m") from error
    except CommandError as error:
        raise SettingsError(f"{where}: invalid value for {key}: {_text_of(error)}") from error


def _template(pattern: str, options: dict[bytes, Any], default_bound: int, where: str) -> QueueTemplate:
    try:
        creation = creation_of({b"BOUND": default_bound, **options})
        creation.arguments(b"")
        return QueueTemplate(pattern, Glob(pattern.encode()), options, creation)
    except (CommandError, QueueNameError, PatternError) as error:
        raise SettingsError(f"{where}: {_text_of(error)}") from error


def _check_dead_letter(templates: list[QueueTemplate], where: str) -> None:
    """Raise SettingsError if the last template would give its own DEAD-LETTER queue a DEAD-LETTER queue."""
    name = templates[-1].creation.dead_letter
    if name is not None and next((one for one in templates if one.glob.matches(name)), None) is templates[-1]:
        raise SettingsError(
            f"{where}: a queue cannot be its own DEAD-LETTER queue: write a section "
            f'[queues."{name.decode()}"] before this one'
        )


def _text_of(error: Exception) -> str:
    return str(error).removeprefix("ERR ").removeprefix("syntax error: ")
