"""Replies over RESP and predictions by the reference, in a form in which they can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis

from tests.support.reference.queue import RefusedError


def code_or_reply(reply: Any) -> Any:
    """Return the code of an error; other replies as they are."""
    return str(reply).split(" ", 1)[0] if isinstance(reply, hiredis.ReplyError) else reply


def predicted(operation: Callable[[], Any]) -> Any:
    """Do an operation of the reference. Return its result, or the code with which it is refused."""
    try:
        return operation()
    except RefusedError as refusal:
        return str(refusal)
