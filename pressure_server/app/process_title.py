"""The process title: hide passwords of the command line from the process list."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from setproctitle import setproctitle

_HIDDEN = "***"
_SECRET_OPTION = "--password"  # noqa: S105 -- the option's name
# The user and password of a URL. Greedy, because a password may contain an unescaped slash or @.
_LOGIN_OF_URL = re.compile(r"://.*@")


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the command line with the passwords in options and URLs replaced by ***."""
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
    """Set the process title to the command line without its secrets, if it has any."""
    shown = without_secrets(sys.orig_argv)
    if shown != sys.orig_argv:
        setproctitle(" ".join(shown))
