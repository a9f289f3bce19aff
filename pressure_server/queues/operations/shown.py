"""What the slow log shows of an operation."""

from __future__ import annotations

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation


def messages_of_first_command(operation: Operation) -> list[bytes]:
    """Return the messages that the operation's first command has sent, as the client has sent them.

    Arguments that the server has made, such as claims of jobs, are left out.
    """
    options = operation.options
    if operation.verb not in (verbs.PUT, verbs.REMOVE, verbs.CONTAINS):
        return []
    if options.has_flags or options.has_key or options.once:
        return []
    messages = operation.messages[: operation.sizes[0]]
    # See jobs.job_to_put.
    return [message.split(b" ", 5)[5] for message in messages] if options.is_job else messages
