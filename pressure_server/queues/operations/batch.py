"""Batches: operations on one queue as the arguments of one script call, and its reply as their results.

Pure: the lane decides when to send a batch, and the courier sends it.
"""

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from pressure_server.backend.resp import packed
from pressure_server.errors import QueueDoesNotExistError
from pressure_server.lua.layout import NUMBERS, BlockField
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.block_reply import NO_NEWS, News
from pressure_server.queues.operations.jobs import claim
from pressure_server.queues.operations.operation import Operation, Owner
from pressure_server.queues.operations.options import taking_for_good
from pressure_server.queues.operations.refusals import condition_for, exception_for
from pressure_server.queues.operations.wait import Wait, WaitCondition

# A call with 2000 messages keeps the backend busy for about two milliseconds; a larger one gains nothing.
MAX_MESSAGES: Final = 2000
MAX_BYTES: Final = 1 << 20

# How a block treats messages that clients of other servers may wait for, too (waiting.lua).
NOTE, SHARE = b"note", b"share"

_ROLES: Final = {b"producer": WaitCondition.PRODUCER_ROLE, b"consumer": WaitCondition.CONSUMER_ROLE}

_what = attrgetter("verb", "options")


def take_batch(waiting: list[Operation]) -> list[Operation]:
    """Remove from the front of `waiting` the operations of the next call, at least one, and return them.

    A large operation that can be split does a portion, and comes back. What is in a call is sealed.
    """
    messages = size = count = 0
    kind = (False, False)
    for operation in waiting:
        portion = _portion(operation) if operation.wanted > MAX_MESSAGES else None
        of_put_back = len(operation.messages) if operation.verb.is_put_back else 0
        messages += of_put_back or (operation.wanted if portion is None else portion)
        size += sum(map(len, operation.messages)) if portion is None else operation.bytes_of_next(portion)
        # Put-backs get a call of their own: if it has no answer, it is sent again later. Jobs that are given
        # up get one, too: nothing may be taken before all of them are back.
        its_kind = (operation.verb.is_put_back, operation.verb.gives_up)
        if count and (messages > MAX_MESSAGES or size > MAX_BYTES or its_kind != kind):
            break
        kind = its_kind
        operation.is_sealed = True
        operation.commands_in_call = portion
        count += 1
        if portion is not None:
            break  # operations after it have to wait for the rest
    batch = waiting[:count]
    del waiting[:count]
    return batch


def _portion(operation: Operation) -> int | None:
    """Return how many units of a large operation the next call does; None for all that are left."""
    can_split = operation.verb.can_split and operation.verb.units_left(operation) > MAX_MESSAGES
    return MAX_MESSAGES if can_split else None


def adapt_pops(operations: Sequence[Operation], name: bytes, *, keeps: bool) -> list[bytes]:
    """Make pops of the gets from the queue `name` if it `keeps` what is popped, otherwise gets of the pops.

    A pop is a get until the library says that its queue has ACK NEXT; then it is sent again. Gets that an
    option makes final, and those without a client, stay gets; so does what has got something. Return what
    the clients have finished.
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


def fold(batch: Sequence[Operation]) -> list[list[Operation]]:
    """Group neighbouring operations with the same verb and options, if they fold.

    Those that may overtake other owners' go first: workers that reserve and delete would otherwise make a run
    of each operation, which takes the backend twice as long.
    """
    groups = [list(group) for _, group in groupby(batch, _what)]
    if len(groups) > 2 and any(group[0].verb.overtakes for group in groups):
        groups = [list(group) for _, group in groupby(_overtaken(batch), _what)]
    runs: list[list[Operation]] = []
    for run in groups:
        runs += [run] if run[0].can_fold else [[operation] for operation in run]
    return runs


def _overtaken(batch: Sequence[Operation]) -> list[Operation]:
    """Return the operations in another order. Operations of one owner keep their order."""
    ahead: list[Operation] = []
    rest: list[Operation] = []
    owners: set[Owner] = set()
    for operation in batch:
        if operation.verb.overtakes and operation.owner not in owners:
            ahead.append(operation)
        else:
            rest.append(operation)
            owners.add(operation.owner)
    return ahead + rest


def share_mode(operations: Sequence[Operation], *, limit_to_share: bool) -> bytes:
    """Return SHARE for a call that puts and whose takes all may wait, if `limit_to_share`; otherwise NOTE.

    A take that may not wait must not be limited to a share: it would report that the queue is empty.
    """
    puts = any(operation.verb.puts for operation in operations)
    all_wait = all(o.wait is None or o.wait.timeout != 0 for o in operations if o.verb.takes)
    return SHARE if limit_to_share and puts and all_wait else NOTE


def pack(runs: Sequence[Sequence[Operation]]) -> list[bytes]:
    """Return the runs as arguments for batch.lua: for each a name, a count, and that many arguments."""
    arguments: list[bytes] = []
    for run in runs:
        verb = run[0].verb
        packed = verb.pack(run)
        arguments += (verb.name + run[0].options.words, NUMBERS[len(packed)])
        arguments += packed
    return arguments


# How many words a head has, and how many heads are kept.
HEAD_SIZE: Final = len(BlockField) + 2
_HEADS: Final = 4096


class _Heads(dict[tuple[bytes, bytes, int], bytes]):
    """The first words, as they are sent, of a block on one queue that is one run.

    The keys are the name of its verb, the words of its options, and the number of its words.
    """

    def __missing__(self, key: tuple[bytes, bytes, int]) -> bytes:
        verb, options, count = key
        if len(self) >= _HEADS:
            self.clear()
        head = self[key] = packed((b"1", NUMBERS[2 + count], b"", verb + options, NUMBERS[count]))
        return head


HEADS: Final = _Heads()


class Progress:
    """What the reply to a block means for its operations.

    `ended` have ended. `resend` must be sent again at once, before others. `must_wait` wait for what their
    `wait` says. `held_roles` are roles that native clients hold and waiting operations need. `news` is None
    if no reply could say it. Operations that wait in the queue of a group need messages of the log `source`.
    """

    # What nearly every reply means: all has ended, and nothing is due.
    resend: Sequence[Operation] = ()
    must_wait: Sequence[Operation] = ()
    held_roles: Collection[WaitCondition] = ()
    news: News | None = NO_NEWS
    source: bytes | None = None

    def __init__(self, ended: list[Operation]) -> None:
        self.ended = ended


def distribute(runs: Sequence[list[Operation]], reply: list[Any]) -> Progress | None:
    """Distribute a reply of batch.lua among runs. Return None if there is one, it has ended, and no news."""
    left, executed = reply[0], len(reply) - 1
    news = NO_NEWS
    if type(left) is list:
        left, news = left[0], News.of(left[1:])
    if len(runs) == 1 == executed:
        run, result = runs[0], reply[1]
        is_error = isinstance(result, Exception)
        unsure = [_share_error(run, result) if is_error else run[0].verb.distribute(run, result)]
        if left <= 0 and news is NO_NEWS and not unsure[0]:
            return None
    else:
        unsure = [_distribute_run(run, result) for run, result in zip(runs, reply[1:], strict=False)]
    progress = Progress([])
    again: list[Operation] = []
    lacking: list[Operation] = []
    for number, result in news.later:
        for operation in runs[number - 1]:
            if operation.wait is not None:
                operation.wait.condition = None
        _distribute_run(runs[number - 1], result)
    progress.news = news
    progress.source = runs[0][0].name[: -news.log_suffix] if news.log_suffix else None
    for number, run in enumerate(runs[:executed], 1):
        in_part = left > 0 and number == executed
        if unsure[number - 1] or in_part:
            for operation in run:
                _list_for(operation, progress.ended, again, lacking, in_part=in_part).append(operation)
        else:
            progress.ended += run
    for run in runs[executed:]:
        again += run
    progress.resend, progress.must_wait = again, lacking
    progress.held_roles = {_ROLES[role] for role in news.held}
    return progress


def progress_after_refusal(runs: Sequence[Sequence[Operation]], error: str) -> Progress:
    """Return what becomes of a call that the backend has refused as a whole, before anything was done.

    `ended` are the operations that caused it, or if none did, all; they must fail. Others are sent again.
    """
    ended: list[Operation] = []
    others: list[Operation] = []
    for operation in (operation for run in runs for operation in run):
        (ended if _is_refused(operation, error) else others).append(operation)
    progress = Progress(ended or others)
    progress.news = None
    if ended:
        progress.resend = others
    return progress


def _is_refused(operation: Operation, error: str) -> bool:
    """Return whether the backend refuses a call with this error because of this operation."""
    verb = operation.verb
    if error.startswith("OOM"):
        return verb.puts or verb.moves
    return verb.changes and error.startswith(("MISCONF", "NOREPLICAS"))


def _distribute_run(run: Sequence[Operation], result: Any) -> bool:
    """Distribute a run's result or error. Return whether some of its operations may have to wait."""
    if isinstance(result, Exception):
        return _share_error(run, result)
    return run[0].verb.distribute(run, result)


def _share_error(run: Sequence[Operation], error_reply: Exception) -> bool:
    text = str(error_reply)
    elsewhere = text.startswith("OTHER ")
    first = run[0]
    name = first.wait.destination if elsewhere and first.wait is not None else first.name
    error = exception_for(name, text.removeprefix("OTHER "))
    condition = condition_for(text)
    for operation in run:
        if isinstance(error, QueueDoesNotExistError) and operation.verb.can_split and operation.results:
            # The queue has been deleted after a part was done. The rest has nothing to find there.
            operation.results += [0] * (0 if operation.verb.takes else operation.verb.units_left(operation))
        elif condition is None or operation.verb.line is None or (operation.verb.takes and operation.results):
            operation.fail(error)
        else:
            wait = operation.wait = operation.wait or Wait()
            wait.condition, wait.timeout_error, wait.at_destination = condition, error, elsewhere
            if condition is not WaitCondition.REMOVED:
                operation.require_existing(at_destination=elsewhere)
    return condition is not None


def _list_for(
    operation: Operation,
    ended: list[Operation],
    again: list[Operation],
    lacking: list[Operation],
    *,
    in_part: bool,
) -> list[Operation]:
    if operation.error is not None:
        return ended
    has_whole_portion = operation.verb.can_split and operation.commands_in_call == 0
    if (in_part or has_whole_portion) and operation.verb.units_left(operation) > 0:
        return again
    # What has been taken must not wait for more. A pop keeps the condition of the get that it was before.
    has_taken = operation.verb.takes and bool(operation.results)
    if operation.wait is not None and operation.wait.condition is not None and not has_taken:
        return lacking
    return ended if operation.can_end else again
