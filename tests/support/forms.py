"""Forms: verbs with their options, for models and tests that compare them."""

from dataclasses import replace
from typing import NamedTuple

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Verb
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, WAITS, OnFull, Options


class Form(NamedTuple):
    """What an operation does, and how."""

    verb: Verb
    options: Options = DEFAULT

    def __str__(self) -> str:
        """Its name in the script."""
        return (self.verb.name + self.options.words).decode()


_MARKED = Options(has_flags=True, on_full=OnFull.FAIL)

PUT = Form(verbs.PUT)
ADD = Form(verbs.PUT, UNIQUE)
PUT_MARKED = Form(verbs.PUT, _MARKED)
ADD_MARKED = Form(verbs.PUT, replace(_MARKED, unique=True))
GET = Form(verbs.GET)
GET_MARKED = Form(verbs.GET, Options(has_flags=True))
TAKE_MARKED = Form(verbs.GET, Options(has_flags=True, waits=True))
TAKE_EXISTING = Form(verbs.GET, Options(must_exist=True, waits=True))
TAKE_OPENED = Form(verbs.RESERVE, WAITS)
REMOVE = Form(verbs.REMOVE)
REMOVE_COPIES = Form(verbs.REMOVE_COPIES)
TRIM = Form(verbs.TRIM)
CONTAINS = Form(verbs.CONTAINS)
LENGTH = Form(verbs.LENGTH)
RANGE = Form(verbs.RANGE)
INFO = Form(verbs.INFO)
EXISTS = Form(verbs.EXISTS)
PEEK = Form(verbs.PEEK)
CREATE = Form(verbs.CREATE)
ALTER = Form(verbs.ALTER)
CLOSE = Form(verbs.CLOSE)
DELETE = Form(verbs.DELETE)
PURGE = Form(verbs.PURGE)
FINISH_DELETE = Form(verbs.FINISH_DELETE)
