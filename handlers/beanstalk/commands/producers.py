"""Commands of producers: put and use."""

from __future__ import annotations

from handlers.beanstalk import replies
from handlers.beanstalk.client import BeanstalkClient
from handlers.beanstalk.commands.encoders import inserted
from handlers.beanstalk.parser import Put
from handlers.beanstalk.table import command, tube
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import job_to_put
from pressure_server.queues.operations.options import Options

_JOB = Options(is_job=True)


def put(client: BeanstalkClient, job: Put) -> None:
    """Put a job into the used tube. A time to run of 0 is one second."""
    client.is_producer = True
    client.statistics.commands["put"] += 1
    if client.context.is_draining:
        client.reply(replies.DRAINING)
        return
    message = job_to_put(job.message, job.priority, job.delay, job.ttr or 1)
    client.submit(verbs.PUT, client.used, [message], 1, inserted, options=_JOB)


@command("use", tube)
def use(client: BeanstalkClient, name: bytes) -> None:
    """Use a tube for later puts. It is created by the first of these."""
    client.permit_tube(name)
    client.used = name
    client.reply(replies.using(name))
