"""Commands that look at jobs without taking them."""

from __future__ import annotations

from functools import partial

from handlers.beanstalk import replies
from handlers.beanstalk.session import BeanstalkSession
from handlers.beanstalk.table import UINT64, command, numbers
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import id_of, word_of


@command(
    "peek <id>",
    "Returns a job without reserving it: `FOUND <id> <bytes>` and the job, or `NOT_FOUND`.",
    numbers(UINT64),
    needs="read",
)
async def peek(client: BeanstalkSession, arguments: tuple[int]) -> bytes:
    """Return a job by its id."""
    (job,) = arguments
    found = await client.in_tube_of(job, verbs.PEEK_JOB, [word_of(job)])
    return replies.found(id_of(found[1][0]), found[1][1]) if found else replies.NOT_FOUND


async def _peek(client: BeanstalkSession, tube: bytes, which: bytes) -> bytes:
    client.permit_tube(tube)
    (found,) = await client.database.run(verbs.PEEK_JOB, tube, [which], client=client)
    return replies.found(id_of(found[0]), found[1]) if found else replies.NOT_FOUND


async def _peek_next(client: BeanstalkSession, _nothing: None, *, state: bytes) -> bytes:
    return await _peek(client, client.used, state)


for _state in ("ready", "delayed", "buried"):
    command(f"peek-{_state}", f"The same, of the next {_state} job of the used tube.", needs="read")(
        partial(_peek_next, state=_state.encode())
    )
