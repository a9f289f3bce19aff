"""Pops: gets from a queue with ACK NEXT. They reserve, and acknowledge what their clients have popped before.

Pure. A pop is a get until the library says that its queue has ACK NEXT (lua/core/get.lua); then it is sent
again as a POP. Gets that an option makes final, and those without a client, stay gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.jobs import claim
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import taking_for_good


def adapt(operations: Sequence[Operation], name: bytes, *, keeps: bool) -> list[bytes]:
    """Make pops of the gets from the queue `name` if it `keeps` what is popped, otherwise gets of the pops.

    What an operation has taken in earlier calls stays as it is. Return what the clients have finished.
    """
    finished: list[bytes] = []
    for operation in operations:
        if keeps and operation.verb is verbs.GET and not operation.options.final:
            begun = None if operation.results else operation.owner.begin_pop(name)
            if begun is None:
                operation.options = taking_for_good(operation.options)
                continue
            owner, some = begun
            operation.verb, operation.messages = verbs.POP, [claim(owner)]
            finished += some
        elif operation.verb is verbs.POP and not keeps:
            if operation.results:
                operation.wanted = len(operation.results)
            else:
                operation.verb, operation.messages = verbs.GET, []
    return finished
