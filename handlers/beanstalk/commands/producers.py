"""Commands of producers: put and use."""

from __future__ import annotations

from handlers.beanstalk import replies
from handlers.beanstalk.client import BeanstalkClient
from handlers.beanstalk.commands.encoders import inserted
from handlers.beanstalk.table import command, tube
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import Options

_JOB = Options(is_job=True)


def put(client: BeanstalkClient, jobs: list[bytes]) -> None:
    """Put jobs into the used tube."""
    client.is_producer = True
    if client.context.is_draining:
        client.statistics.commands["put"] += len(jobs)
        client.reply(replies.DRAINING * len(jobs))
        return
    client.submit(verbs.PUT, client.used, jobs, 1, inserted, commands=len(jobs), options=_JOB)
    if not client.is_held:  # otherwise it will be executed again
        client.statistics.commands["put"] += len(jobs)


@command("use", tube)
def use(client: BeanstalkClient, name: bytes) -> None:
    """Use a tube for later puts. It is created by the first of these."""
    client.permit_tube(name)
    client.used = name
    client.reply(replies.using(name))
