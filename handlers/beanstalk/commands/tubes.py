"""Commands about tubes: watch, ignore, list and pause."""

from __future__ import annotations

from handlers.beanstalk import replies
from handlers.beanstalk.session import DEFAULT_TUBE, BeanstalkSession
from handlers.beanstalk.table import command, tube, tube_and_number
from pressure_server.errors import QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.creation import Creation


@command("watch <tube>", "Reserves jobs of this tube, too: `WATCHING <count>`.", tube, needs="get")
def watch(client: BeanstalkSession, name: bytes) -> None:
    """Reserve jobs of this tube, too."""
    client.permit_tube(name)
    client.watch(name)
    client.reply(replies.watching(len(client.watched)))


@command(
    "ignore <tube>",
    "Reserves no more jobs of this tube: `WATCHING <count>`, or `NOT_IGNORED` for the last one.",
    tube,
    needs="get",
)
def ignore(client: BeanstalkSession, name: bytes) -> None:
    """Reserve no more jobs of this tube. The last watched tube stays."""
    if name in client.watched and len(client.watched) == 1:
        client.reply(replies.NOT_IGNORED)
        return
    client.ignore(name)
    client.reply(replies.watching(len(client.watched)))


@command("list-tube-used", "Tells the used tube: `USING <tube>`.", needs="nothing")
def list_tube_used(client: BeanstalkSession, _nothing: None) -> None:
    """Tell the used tube."""
    client.reply(replies.using(client.used))


@command("list-tubes-watched", "Lists the watched tubes: `OK <bytes>` and YAML.", needs="nothing")
def list_tubes_watched(client: BeanstalkSession, _nothing: None) -> None:
    """List the watched tubes."""
    client.reply(replies.yaml_list(client.watched))


def tubes_in_use(client: BeanstalkSession) -> set[bytes]:
    """Return the tubes that clients of this server use or watch. As in beanstalkd, these exist."""
    tubes = {DEFAULT_TUBE}
    for other in client.clients.connected:
        if isinstance(other, BeanstalkSession):
            tubes.add(other.used)
            tubes.update(other.watched)
    return tubes


def is_in_use(client: BeanstalkSession, name: bytes) -> bool:
    """Return whether a client of this server uses or watches the tube."""
    return name == DEFAULT_TUBE or any(
        name == other.used or name in other.watched
        for other in client.clients.connected
        if isinstance(other, BeanstalkSession)
    )


@command(
    "list-tubes",
    "Lists all queues that the user may access, and the tubes in use: `OK <bytes>` and YAML.",
    needs="read",
)
async def list_tubes(client: BeanstalkSession, _nothing: None) -> bytes:
    """List all queues that the user may access, and the tubes in use."""
    names = tubes_in_use(client) | {queue async for queue in client.database.queues()}
    return replies.yaml_list(sorted(name for name in names if client.user.may_access(name)))


@command(
    "pause-tube <tube> <seconds>",
    "Lets no job of the tube be reserved for so long: `PAUSED` or `NOT_FOUND`.",
    tube_and_number,
    needs="administer",
)
async def pause_tube(client: BeanstalkSession, arguments: tuple[bytes, int]) -> bytes:
    """Let no job of the tube be reserved for so many seconds."""
    name, seconds = arguments
    client.permit_tube(name)
    try:
        await client.database.run(verbs.PAUSE, name, [b"%d" % (seconds * 1000)], client=client)
    except QueueDoesNotExistError:
        if not is_in_use(client, name):
            return replies.NOT_FOUND
        await client.database.run(
            verbs.CREATE, name, Creation().arguments(client.database.prefix), client=client
        )
        await client.database.run(verbs.PAUSE, name, [b"%d" % (seconds * 1000)], client=client)
    client.statistics.pauses[name] = seconds
    client.statistics.of_tube(name)["cmd-pause-tube"] += 1
    return replies.PAUSED
