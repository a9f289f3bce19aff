"""Types of options and of their values: integers, times, sizes and levels of durability."""

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import click
from click.types import OptionHelpExtra

from pressure_server.backend.durability import Level

VARIABLE_PREFIX = "PRESSURE_"
FILE = click.Path(path_type=Path)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Integer(click.IntRange):
    """An integer."""

    name = "integer"  # errors of IntRange would say "integer range"


class Seconds(click.FloatRange):
    """A time: a number of seconds, or a number with a unit, such as 250ms, 5s, 10m, 1h or 1d."""

    name = "time"

    def __init__(self, least: float = 0, most: float = 2**31) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time in seconds. Reject nan, which passes every range check."""
        found = re.fullmatch(r"(\d+\.?\d*)(ms|[smhd])", value.strip()) if isinstance(value, str) else None
        if found:
            value = float(found[1]) * _SECONDS[found[2]]
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail("nan is not a time.", param, ctx)
        return seconds


class DurabilityType(click.ParamType[Level]):
    """A level of durability."""

    name = "durability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Level:
        """Return the level that the text names: none, replica, replica:N or fsync."""
        if isinstance(value, Level):
            return value
        try:
            return Level.parse(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class Bytes(Integer):
    """A size: a number of bytes, or a number with a unit as in Redis (1k is 1000, 1kb is 1024)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the size in bytes."""
        found = re.fullmatch(r"(\d+)([kmg])(b?)", value.strip().lower()) if isinstance(value, str) else None
        if found:
            number, unit, is_binary = found.groups()
            value = int(number) * (1024 if is_binary else 1000) ** (1 + "kmg".index(unit))
        return int(super().convert(value, param, ctx))


class Option(click.Option):
    """An option that is also a variable PRESSURE_…, under the heading `group` of the help."""

    def __init__(self, name: str, help: str, group: str = "", **attributes: Any) -> None:  # noqa: A002 -- click's
        """`group` is empty if the option belongs to the group of the option before it."""
        self.group = group
        flag, is_switch = name.replace("_", "-"), isinstance(attributes.get("default"), bool)
        super().__init__(
            [f"--{flag}/--no-{flag}" if is_switch else f"--{flag}"],
            help=help,
            envvar=VARIABLE_PREFIX + name.upper(),
            show_envvar=True,
            **{"show_default": True, **attributes},
        )

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return the default without click's parentheses, and the least value of a time with its unit."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        if isinstance(self.type, Seconds):
            del extra["range"]
            if self.type.min and self.type.min > 0:
                extra["range"] = f"at least {self.type.min:g}s"
        return extra


class GroupedCommand(click.Command):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        for group, options in groupby(self.get_params(ctx), lambda option: getattr(option, "group", "")):
            records = [record for option in options if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(group or "Options"):
                    formatter.write_dl(records)


def setting(**attributes: Any) -> Any:
    """Return a field of a dataclass that is also an option of this name: see Option.

    The text after the field, which Python ignores, is the help: see help_texts.
    """
    return field(metadata=attributes)


def time_setting(default: float | None, least: float = 0, most: float = 2**31, **attributes: Any) -> Any:
    """Return a setting that is a time in seconds. If `default` is None, the help tells the default."""
    # In the largest unit of which it is a multiple.
    unit = next((unit for unit in ("h", "m", "s") if default and default % _SECONDS[unit] == 0), "ms")
    shown = f"{default / _SECONDS[unit]:g}{unit}" if default else default is not None and "0"
    return setting(default=default, show_default=shown, type=Seconds(least, most), **attributes)


def help_texts(*settings: type) -> dict[str, str]:
    """Return the text after each field of these dataclasses, by the name of the field.

    Without the source, as in an installation of byte code alone, there are none.
    """
    found: dict[str, str] = {}
    for module in dict.fromkeys(one.__module__ for one in settings):
        try:
            source = inspect.getsource(sys.modules[module])
        except OSError:
            continue
        for node in ast.parse(source).body:
            for one, following in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
                match one, following:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    return found


def checked(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that gives an option the value that `parse` makes of it, or raises ValueError for."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from error

    return callback
