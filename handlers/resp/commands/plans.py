"""Plans: what a command on one queue always does, decided when the command table is made.

A plan executes one command, or at once several in a row that differ in their third words only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import count_from_zero
from handlers.resp.commands.encoders import one_message
from handlers.resp.commands.putting import submit_put
from handlers.resp.parser import Repeated, Words
from handlers.resp.replies import CommandError
from handlers.resp.session import Caller, RespSession
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Encode, Verb
from pressure_server.queues.operations.options import DEFAULT, Options


class Plan(ABC):
    """What a command does. Errors of the arguments are raised as CommandError."""

    @abstractmethod
    def execute(self, client: Caller, words: Words) -> Coroutine[Any, Any, int] | None:
        """Execute a command."""

    @abstractmethod
    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """Execute several commands."""


@dataclass(frozen=True, slots=True)
class Ask(Plan):
    """An operation of any verb, with the arguments that follow the queue. `encode` makes the reply."""

    verb: Verb
    encode: Encode

    def execute(self, client: Caller, words: Words) -> None:
        """See Plan."""
        client.submit(self.verb, words[1], words[2:], len(words) - 2 or 1, self.encode)

    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """See Plan."""
        client.submit(self.verb, commands.words[1], commands.thirds, 1, self.encode, commands=commands.count)


@dataclass(frozen=True, slots=True)
class Put(Plan):
    """A put of messages, with the transaction id that the client may have given for it."""

    encode: Encode
    options: Options = DEFAULT

    def execute(self, client: Caller, words: Words) -> Coroutine[Any, Any, int] | None:
        """See Plan."""
        return submit_put(client, words[1], words[2:], self.encode, self.options)

    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """See Plan."""
        if client.transaction_id is not None:
            client.execute_instead(commands.commands())
            return
        name, messages, count = commands.words[1], commands.thirds, commands.count
        client.submit(verbs.PUT, name, messages, 1, self.encode, commands=count, options=self.options)


@dataclass(frozen=True, slots=True)
class Take(Plan):
    """A take of one message, or of up to the count that is given. `encode_several` makes the reply then.

    `excess` makes the error for more arguments.
    """

    encode_several: Encode
    excess: Callable[[Words], CommandError]

    def execute(self, client: Caller, words: Words) -> None:
        """See Plan."""
        if len(words) == 2:
            client.submit(verbs.GET, words[1], [], 1, one_message)
        elif len(words) == 3:
            client.submit(verbs.GET, words[1], [], count_from_zero(words[2]), self.encode_several)
        else:
            raise self.excess(words)

    def execute_repeated(self, client: RespSession, commands: Repeated) -> None:
        """See Plan."""
        if commands.thirds:
            client.execute_instead(commands.commands())
        else:
            client.submit(verbs.GET, commands.words[1], [], 1, one_message, commands=commands.count)


def planned(plan: Plan, syntax: str, summary: str, *, group: str, needs: str, flags: str) -> None:
    """Enter a command with a plan into the table: see table.command."""
    table.command(syntax, summary, group=group, needs=needs, flags=flags, repeated=plan.execute_repeated)(
        plan.execute
    )
