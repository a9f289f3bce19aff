"""The process list: there our command line stands without its secrets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from setproctitle import setproctitle

_HIDDEN = "***"
_SECRET_OPTION = "--password"  # noqa: S105 -- the option's name
# What stands before the host of a URL; mistyped, a password may have a slash.
_LOGIN_OF_URL = re.compile(r"://.*@")


def without_secrets(words: Iterable[str]) -> list[str]:
    """A command line with passwords hidden: those of options, and those of URLs."""
    shown: list[str] = []
    for word in words:
        if shown and shown[-1] == _SECRET_OPTION:
            shown.append(_HIDDEN)
        elif word.startswith(f"{_SECRET_OPTION}="):
            shown.append(f"{_SECRET_OPTION}={_HIDDEN}")
        else:
            shown.append(_LOGIN_OF_URL.sub(f"://{_HIDDEN}@", word))
    return shown


def hide_secrets() -> None:
    """Show the command line without its secrets from now on; as it is where there are none."""
    shown = without_secrets(sys.orig_argv)
    if shown != sys.orig_argv:
        setproctitle(" ".join(shown))
