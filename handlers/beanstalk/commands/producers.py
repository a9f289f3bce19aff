"""Commands of producers: put and use."""

from __future__ import annotations

from handlers.beanstalk import replies
from handlers.beanstalk.commands.encoders import inserted
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import FormatError, command, tube
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import Options

_JOB = Options(is_job=True)


def _malformed(_rest: bytes) -> None:
    """Refuse the line of a put that the parser has not understood."""
    raise FormatError


@command(
    "put <pri> <delay> <ttr> <bytes>",
    "Puts the job that follows into the used tube: `INSERTED <id>`, `EXPECTED_CRLF`, `JOB_TOO_BIG` or "
    "`DRAINING`.",
    _malformed,
    needs="put",
)
def put(client: BeanstalkSession, jobs: list[bytes]) -> None:
    """Put jobs into the used tube."""
    client.is_producer = True
    if client.context.is_draining:
        client.statistics.commands["put"] += len(jobs)
        client.reply(replies.DRAINING * len(jobs))
        return
    client.submit(verbs.PUT, client.used, jobs, 1, inserted, commands=len(jobs), options=_JOB)
    if not client.is_held:  # otherwise it will be executed again
        client.statistics.commands["put"] += len(jobs)


@command("use <tube>", "Uses a tube for later puts: `USING <tube>`.", tube, needs="nothing")
def use(client: BeanstalkSession, name: bytes) -> None:
    """Use a tube for later puts. It is created by the first of these."""
    client.permit_tube(name)
    client.used = name
    client.reply(replies.using(name))
