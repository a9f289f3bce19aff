"""Logs: messages by their offsets, and groups of consumers."""

from dataclasses import replace
from functools import partial
from typing import Any

from handlers.resp import table
from handlers.resp.arguments import offset_of, token_of
from handlers.resp.commands import encoders
from handlers.resp.options import OptionTable
from handlers.resp.parser import Repeated, Words
from handlers.resp.replies import OK, error
from handlers.resp.session import Caller, RespSession
from pressure_server.errors import (
    CommandError,
    GroupDoesNotExistError,
    PressureError,
    QueueAlreadyExistsError,
    QueueDoesNotExistError,
)
from pressure_server.queues.database import UP_TO_COUNT
from pressure_server.queues.operations import groups, verbs
from pressure_server.queues.operations.jobs import claim, detached
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.wait import Wait
from pressure_server.queues.transaction import Transaction
from pressure_server.text import printable
from pressure_server.words import positive_count, seconds_of, syntax_error, timeout_of

command = partial(table.command, group="logs")
container = partial(table.container, group="logs")

_MAX_READ = 1000
_AT = OptionTable({b"COUNT": positive_count})
_READ = OptionTable({b"COUNT": positive_count, b"TIMEOUT": timeout_of, b"TTR": seconds_of})


def _at_repeated(client: RespSession, commands: Repeated) -> None:
    try:
        offsets = [b"%d" % offset_of(word) for word in commands.thirds]
    except CommandError:
        client.execute_instead(commands.requests())
        return
    client.submit(verbs.AT, commands.words[1], offsets, 1, _found, commands=commands.count)


@command("PRESSURE.AT key offset [COUNT count]", needs="read", flags="readonly", repeated=_at_repeated)
def at(client: Caller, words: Words) -> None:
    """Returns the message with that offset in a log; nil if it is gone, -AHEAD if it is yet to come. With
    COUNT, a list of the messages from there on: up to 1000, or 1 MiB.
    """
    options = _AT.values(words[3:])
    offset = b"%d" % offset_of(words[2])
    if options:
        client.submit(verbs.FROM, words[1], [offset, b"%d" % options[b"COUNT"]], 1, _found)
    else:
        client.submit(verbs.AT, words[1], [offset], 1, _found)


def _found(operation: Operation) -> bytes:
    """Return the message, or the list of messages, of each command, with nil for those that are gone."""
    if operation.error is not None:
        return error(operation.error) * len(operation.sizes)
    return b"".join(
        error(found) if isinstance(found, PressureError) else encoders.value(operation, found)
        for found in operation.results
    )


container("PRESSURE.GROUP", "Groups of consumers, each of which reads all messages of a log.")


def _start_of(word: bytes) -> bytes:
    """Return where a group starts: HEAD, TAIL, or an offset."""
    return word.lower() if word.lower() in (groups.HEAD, groups.TAIL) else b"%d" % offset_of(word)


_GROUP_CREATE = OptionTable({b"FROM": _start_of})


async def _do(
    client: Caller, action: bytes, log: bytes, group: bytes = b"", start: bytes = groups.HEAD
) -> Any:
    if action != groups.LIST:
        _check_access(client, groups.queue_of(log, group))
    arguments = groups.arguments(client.database.prefix_of(log), action, log, group, start)
    try:
        return (await client.database.run(verbs.GROUP, log, arguments, client=client.session))[0]
    except QueueAlreadyExistsError:
        raise QueueAlreadyExistsError(printable(groups.queue_of(log, group))) from None


def _check_access(client: Caller, queue: bytes) -> None:
    if not client.session.user.may_access(queue):
        raise CommandError("NOPERM this user has no permissions to access the queue of the group")


@command("PRESSURE.GROUP|CREATE key group [FROM start]", needs="administer", flags="write")
async def group_create(client: Caller, words: Words) -> str:
    """Creates a group that reads a log FROM its head (the default), its tail, or an offset. Its queue is
    `key+group`: clients of any protocol may take and reserve its messages there. Replies -EXISTS if there is
    one.
    """
    start = _GROUP_CREATE.values(words[4:]).get(b"FROM", groups.HEAD)
    await _do(client, groups.CREATE, words[2], words[3], start)
    return OK


@command("PRESSURE.GROUP|DELETE key group", needs="administer", flags="write")
async def group_delete(client: Caller, words: Words) -> str:
    """Deletes a group, with the messages that its consumers have not finished."""
    await _do(client, groups.DELETE, words[2], words[3])
    return OK


@command("PRESSURE.GROUP|SEEK key group FROM start", needs="administer", flags="write")
async def group_seek(client: Caller, words: Words) -> str:
    """Lets a group continue at the head, the tail, or an offset. Reserved messages stay reserved."""
    if words[4].upper() != b"FROM":
        raise syntax_error("FROM must follow the group")
    await _do(client, groups.SEEK, words[2], words[3], _start_of(words[5]))
    return OK


@command("PRESSURE.GROUP|LIST key", needs="read", flags="readonly")
async def group_list(client: Caller, words: Words) -> list[dict[bytes, object]]:
    """Describes the groups of a log: the offset of the first message not finished, lag, pending and buried
    messages, and how many were dropped from the log before the group came to them.
    """
    found = await _do(client, groups.LIST, words[2])
    prefix = client.database.prefix_of(words[2])
    all_groups = (groups.Group.of(prefix, words[2], one) for one in found)
    return [{field.encode(): value for field, value in one._asdict().items()} for one in all_groups]


@command(
    "PRESSURE.READ key GROUP group consumer [COUNT count] [TIMEOUT seconds] [TTR seconds]",
    needs="get",
    flags="write blocking",
)
def read(client: Caller, words: Words) -> None:
    """Reads the next messages of a log for a consumer of a group: a list with id, message, number of
    deliveries and offset for each; nil if none have come within TIMEOUT seconds (0: forever). The consumer
    finishes them by PRESSURE.ACK `key+group` id [id ...] TOKEN consumer; what it has not finished after TTR
    seconds (60 by default) is read again.
    """
    if words[2].upper() != b"GROUP":
        raise syntax_error("GROUP must follow the queue")
    options = _READ.values(words[5:])
    count = options.get(b"COUNT", 1)
    if count > _MAX_READ:
        raise CommandError(f"ERR too many messages: at most {_MAX_READ}")
    if isinstance(client.database, Transaction):
        raise CommandError("ERR a group cannot be read in a transaction")
    queue = groups.queue_of(words[1], words[3])
    _check_access(client, queue)
    wanted = claim(detached(token_of(words[4])), options.get(b"TTR"))
    wait = Wait(options[b"TIMEOUT"]) if b"TIMEOUT" in options else None
    how = Options() if wait is None else Options(waits=True) if count == 1 else UP_TO_COUNT
    how = replace(how, must_exist=True)
    client.submit(verbs.RESERVE, queue, [wanted] * count, count, _messages_read, wait=wait, options=how)


def _messages_read(operation: Operation) -> bytes:
    """Return the messages of each command; nil if there are none."""
    if isinstance(operation.error, QueueDoesNotExistError):
        log = printable(operation.name.rpartition(b"+")[0])
        return error(GroupDoesNotExistError(log)) * len(operation.sizes)
    return encoders.delivered_jobs(operation)
