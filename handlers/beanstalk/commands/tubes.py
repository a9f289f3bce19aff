"""Commands about tubes: put and use; watch, ignore, list and pause."""

from contextlib import suppress
from typing import cast

from handlers.beanstalk import replies
from handlers.beanstalk.listener_state import is_in_use, report_on
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import command, is_tube
from pressure_server.errors import QueueAlreadyExistsError, QueueDoesNotExistError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import id_of
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import Options
from pressure_server.queues.operations.queue_options import Creation

_JOB = Options(is_job=True)


def _inserted(operation: Operation) -> bytes:
    """Return a reply for each put."""
    client = cast(BeanstalkSession, operation.owner)
    if operation.error is not None:
        return client.error_reply(operation.error) * len(operation.sizes)
    results = operation.results
    if not operation.has_errors:
        return b"INSERTED %d\r\n" * len(results) % tuple([int(job, 16) for job in results])
    return b"".join(
        [
            client.error_reply(job) if isinstance(job, Exception) else b"INSERTED %d\r\n" % id_of(job)
            for job in results
        ]
    )


@command("put <pri> <delay> <ttr> <bytes>", needs="put")
def put(client: BeanstalkSession, jobs: list[bytes]) -> None:
    """Puts the job that follows into the used tube.

    The reply is `INSERTED <id>`, `EXPECTED_CRLF`, `JOB_TOO_BIG` or `DRAINING`.
    """
    client.is_producer = True
    if client.context.is_draining:
        client.reply(replies.DRAINING * len(jobs))
    else:
        client.submit(verbs.PUT, client.used, jobs, 1, _inserted, commands=len(jobs), options=_JOB)
    client.listener.commands["put"] += len(jobs)


@command("use <tube>", needs="nothing")
def use(client: BeanstalkSession, name: bytes) -> None:
    """Uses a tube for later puts: `USING <tube>`."""
    client.permit_tube(name)
    client.used = name  # the first put creates it
    list_tube_used(client)


@command("watch <tube>", needs="get")
def watch(client: BeanstalkSession, name: bytes) -> None:
    """Reserves jobs of this tube, too: `WATCHING <count>`."""
    client.permit_tube(name)
    if name not in client.watched:
        client.watched[name] = None
        client.count_watched(name, 1)
    client.reply(b"WATCHING %d\r\n" % len(client.watched))


@command("ignore <tube>", needs="get")
def ignore(client: BeanstalkSession, name: bytes) -> None:
    """Reserves no more jobs of this tube: `WATCHING <count>`, or `NOT_IGNORED` for the last one."""
    if name in client.watched:
        if len(client.watched) == 1:
            client.reply(b"NOT_IGNORED\r\n")
            return
        del client.watched[name]
        client.count_watched(name, -1)
    client.reply(b"WATCHING %d\r\n" % len(client.watched))


@command("list-tube-used", needs="nothing")
def list_tube_used(client: BeanstalkSession) -> None:
    """Tells the used tube: `USING <tube>`."""
    client.reply(b"USING %b\r\n" % client.used)


@command("list-tubes-watched", needs="nothing")
def list_tubes_watched(client: BeanstalkSession) -> None:
    """Lists the watched tubes: `OK <bytes>` and YAML."""
    client.reply(replies.yaml_list(client.watched))


@command("list-tubes", needs="read")
async def list_tubes(client: BeanstalkSession) -> bytes:
    """Lists all queues that the user may access and whose names are valid tube names, and the tubes in use.

    The reply is `OK <bytes>` and YAML.
    """
    queues = {queue async for queue in client.database.queues() if is_tube(queue)}
    names = queues.union((await report_on(client)).tubes)
    return replies.yaml_list(sorted(name for name in names if client.user.may_access(name)))


@command("pause-tube <tube> <seconds>", needs="administer")
async def pause_tube(client: BeanstalkSession, name: bytes, seconds: int) -> bytes:
    """Lets no job of the tube be reserved for these seconds: `PAUSED` or `NOT_FOUND`."""
    client.permit_tube(name)
    # Somebody may create or delete the queue meanwhile.
    while not await _pause(client, name, seconds):
        if not await is_in_use(client, name):
            return replies.NOT_FOUND
        template = client.database.policy.template_of(name)
        creation = (template.creation if template else Creation()).arguments(client.database.prefix_of(name))
        with suppress(QueueAlreadyExistsError):
            await client.database.run(verbs.CREATE, name, creation, client=client)
    counts = client.listener.of_tube(name)
    counts["pause"] = seconds
    counts["cmd-pause-tube"] += 1
    return b"PAUSED\r\n"


async def _pause(client: BeanstalkSession, name: bytes, seconds: int) -> bool:
    """Pause a queue. Return False if it does not exist."""
    exists = False
    with suppress(QueueDoesNotExistError):
        await client.database.run(verbs.PAUSE, name, [b"%d" % (seconds * 1000)], client=client)
        exists = True
    return exists
