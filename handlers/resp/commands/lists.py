"""Commands on a queue as a list. The list is first in, first out, whichever end a command names.

A push adds the newest message, a pop takes the oldest one, and positions count from the oldest.
"""

from __future__ import annotations

from handlers.resp.arguments import count_from_zero, position_of
from handlers.resp.client import Caller, RespClient
from handlers.resp.commands.encoders import integers, message_lists, one_message
from handlers.resp.commands.putting import submit_put
from handlers.resp.commands.reading import long_reply, messages_between
from handlers.resp.errors import wrong_arity
from handlers.resp.parser import Command, Repeated
from handlers.resp.table import command
from pressure_server.queues.operations import verbs


def _push_repeated(client: RespClient, commands: Repeated) -> None:
    if client.transaction_id is not None:
        client.execute_instead(commands.commands())
        return
    client.submit(verbs.PUT, commands.words[1], commands.thirds, 1, integers, commands=commands.count)


def _pop_repeated(client: RespClient, commands: Repeated) -> None:
    if commands.thirds:
        client.execute_instead(commands.commands())
    else:
        client.submit(verbs.GET, commands.words[1], [], 1, one_message, commands=commands.count)


def _push(client: Caller, words: Command) -> None:
    submit_put(client, words[1], words[2:], integers)


def _pop(client: Caller, words: Command) -> None:
    if len(words) == 2:
        client.submit(verbs.GET, words[1], [], 1, one_message)
    elif len(words) == 3:
        client.submit(verbs.GET, words[1], [], count_from_zero(words[2]), message_lists)
    else:
        raise wrong_arity(words[0].lower().decode())


for _name in ("LPUSH", "RPUSH"):
    command(
        f"{_name} key element [element ...]",
        "Puts messages, even if they are queued already, and returns the queue's length. Creates the queue.",
        group="list",
        needs="put",
        flags="write denyoom fast",
        repeated=_push_repeated,
    )(_push)

for _name in ("LPOP", "RPOP"):
    command(
        f"{_name} key [count]",
        "Takes the oldest message, or up to count messages; nil if there is none.",
        group="list",
        needs="get",
        flags="write fast",
        repeated=_pop_repeated,
    )(_pop)


@command("LLEN key", "Returns the number of messages.", group="list", needs="read", flags="readonly fast")
def llen(client: Caller, words: Command) -> None:
    """Reply with the queue's length (pressure 0.15, Length)."""
    client.submit(verbs.LENGTH, words[1], [], 1, integers)


@command(
    "LRANGE key start stop",
    "Returns the messages from position start to stop, oldest first. They stay queued.",
    group="list",
    needs="read",
    flags="readonly",
)
async def lrange(client: Caller, words: Command) -> object:
    """Reply as Redis does. Position 0 is the oldest message."""
    first, last = position_of(words[2]), position_of(words[3])
    return await long_reply(b"*", await messages_between(client, words[1], first, last))


@command(
    "LINDEX key index",
    "Returns the message at a position. It stays queued.",
    group="list",
    needs="read",
    flags="readonly",
)
async def lindex(client: Caller, words: Command) -> object:
    """Reply as Redis does. Position 0 is the oldest message."""
    position = position_of(words[2])
    found = await messages_between(client, words[1], position, position)
    return found[0] if found else None
