"""Plans: what a command on one queue always does, decided when the command table is made.

A plan executes one command, or at once several in a row that differ in their third words only. It raises
CommandError for wrong arguments.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from handlers.resp import table
from handlers.resp.commands.encoders import one_message
from handlers.resp.parser import Repeated, Words
from handlers.resp.session import Caller, RespSession
from pressure_server.errors import CommandError, PressureError, QueueDoesNotExistError
from pressure_server.net.pipeline import TooEarly
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Encode, Verb
from pressure_server.queues.operations.options import DEFAULT, Options
from pressure_server.queues.operations.outcomes import first_word
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.words import count_from_zero

# Messages of a command that are put in one step; more jobs would take the backend tens of milliseconds.
_MOST_AT_ONCE: Final = 2000


class Ask:
    """An operation of any verb, with the arguments that follow the queue. `encode` makes the reply."""

    NEEDS: Final = "read"
    FLAGS: Final = "readonly fast"

    def __init__(self, verb: Verb, encode: Encode) -> None:
        self.verb = verb
        self.encode = encode

    def execute(self, client: Caller, words: Words) -> None:
        """Execute a command."""
        client.submit(self.verb, words[1], words[2:], len(words) - 2 or 1, self.encode)

    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """Execute several commands."""
        client.submit(self.verb, commands.words[1], commands.thirds, 1, self.encode, commands=commands.count)


class Put:
    """A put of messages, with the transaction id that the client may have given for it."""

    NEEDS: Final = "put"
    FLAGS: Final = "write denyoom fast"

    def __init__(self, encode: Encode, options: Options = DEFAULT) -> None:
        self.encode = encode
        self.options = options

    def execute(self, client: Caller, words: Words) -> Coroutine[Any, Any, int] | None:
        """Execute a command."""
        messages = words[2:]
        if client.transaction_id is not None:
            self._put_once(client, client.transaction_id, words[1], messages)
        elif len(messages) > _MOST_AT_ONCE and isinstance(client, RespSession):
            return _put_in_portions(client, words[1], messages, self.options)
        else:
            client.submit(verbs.PUT, words[1], messages, len(messages), self.encode, options=self.options)
        return None

    def _put_once(self, client: Caller, transaction: bytes, name: bytes, messages: list[bytes]) -> None:
        session = client.session
        session.transaction_id = None
        messages = [first_word(session.database.policy, transaction), *messages]
        options = replace(self.options, once=True)
        try:
            client.submit(verbs.PUT, name, messages, len(messages), self.encode, options=options)
        except TooEarly:
            session.transaction_id = transaction  # the command will be executed again
            raise

    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """Execute several commands."""
        if client.transaction_id is not None:
            client.execute_instead(commands.requests())
            return
        name, messages, count = commands.words[1], commands.thirds, commands.count
        client.submit(verbs.PUT, name, messages, 1, self.encode, commands=count, options=self.options)


class Take:
    """A take of one message, or of up to the count that is given. `encode_several` makes the reply then.

    `excess` makes the error for more arguments.
    """

    NEEDS: Final = "get"
    FLAGS: Final = "write fast"

    def __init__(self, encode_several: Encode, excess: Callable[[Words], CommandError]) -> None:
        self.encode_several = encode_several
        self.excess = excess

    def execute(self, client: Caller, words: Words) -> None:
        """Execute a command."""
        if len(words) == 2:
            client.submit(verbs.GET, words[1], [], 1, one_message)
        elif len(words) == 3:
            client.submit(verbs.GET, words[1], [], count_from_zero(words[2]), self.encode_several)
        else:
            raise self.excess(words)

    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """Execute several commands."""
        if commands.thirds:
            client.execute_instead(commands.requests())
        else:
            client.submit(verbs.GET, commands.words[1], [], 1, one_message, commands=commands.count)


def planned(
    plan: Ask | Put | Take, *syntaxes: str, summary: str, group: str, needs: str = "", flags: str = ""
) -> None:
    """Enter commands with a plan into the table: see table.command. A plan has the usual ones."""
    table.command(
        *syntaxes,
        group=group,
        needs=needs or plan.NEEDS,
        flags=flags or plan.FLAGS,
        summary=summary,
        repeated=plan.execute_repeated,
    )(plan.execute)


async def _put_in_portions(client: RespSession, name: bytes, messages: list[bytes], options: Options) -> int:
    """Put very many messages; return the queue's length or, with `unique`, how many were new.

    If the queue has a limit, they are put in one step: whether there is room for all may matter.
    """
    database = client.database
    try:
        about: QueueInfo = (await database.run(verbs.INFO, name))[0]
        has_limit = bool(about.bound or about.max_bytes)
    except QueueDoesNotExistError:
        if options.must_exist:
            return 0
        has_limit = any(database.policy.limits_of_new(name))
    result, portion = 0, len(messages) if has_limit else _MOST_AT_ONCE
    for first in range(0, len(messages), portion):
        some = messages[first : first + portion]
        try:
            (found,) = await database.run(verbs.PUT, name, some, len(some), client=client, options=options)
            if isinstance(found, PressureError):
                raise found
        except PressureError as error:
            if first:
                raise error.after(first) from None
            raise
        result = result + found if options.unique else found
    return result
