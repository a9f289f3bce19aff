"""A shard: the lanes of the queues whose keys are together on one node, and what they need from the backend.

A database has one shard; on a cluster several, each with a prefix and connections of its own (placement.py).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from pressure_server.backend.durability import Durability, Follows
from pressure_server.backend.link import Link
from pressure_server.backend.requests import Caller
from pressure_server.backend.route import Route
from pressure_server.backend.turns import Turns
from pressure_server.backend.watch import Watch
from pressure_server.compiled import mypyc_attr
from pressure_server.errors import PressureError
from pressure_server.lua.layout import BY_NAME
from pressure_server.queues.calls.courier import MOST_IN_FLIGHT, Courier
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.first_jobs import FirstJobs
from pressure_server.queues.housekeeping import DeletionWatch, DueQueues, Housekeeping
from pressure_server.queues.lanes.lane import Lane
from pressure_server.queues.lanes.reservations import Reservations
from pressure_server.queues.lanes.revived import JobsOfClients, Revived
from pressure_server.queues.names import BOUND, UNAWAITED, base_key, portions, records_key, split_key
from pressure_server.queues.operations.operation import Line, Operation, Verb
from pressure_server.queues.operations.owners import Answers, Client, CoroutineOwner
from pressure_server.queues.operations.wait import Unblocking, WaitCondition, WaiterCount
from pressure_server.queues.policy import Policy
from pressure_server.queues.ranges import Ranges
from pressure_server.queues.stored_keys import StoredKeys
from pressure_server.queues.waiting.key_notifications import KeyNotifications
from pressure_server.queues.waiting.role_turns import RoleTurns
from pressure_server.queues.waiting.waiting_operations import WaitingOperations

# The most lanes, of about 500 bytes if idle, before each new one looks at the oldest for idle ones to forget.
# Each new lane looks at four others, so that idle lanes go faster than lanes come.
_MOST_KEPT: Final = 10_000
_LOOKS: Final = 4
# Seconds between two looks whether all is done, when the server stops.
_SETTLES_EVERY: Final = 0.01
# Queues that are operated on, or read from, at the same time: each takes some memory.
_AT_ONCE: Final = 100
# Seconds before a put-back or recovery that the backend has refused is tried again.
_RETRY_AFTER: Final = 1.0


@mypyc_attr(allow_interpreted_subclasses=True)
class Shard:
    """The queues of one shard of a database. A lane is made when a queue first needs one."""

    def __init__(
        self,
        link: Link,
        watch: Watch,
        turns: Turns,
        durability: Durability,
        *,
        prefix: bytes,
        identity: bytes,
        policy: Policy,
        waiters: WaiterCount,
        answers: Answers,
        jobs_of_clients: JobsOfClients = tuple,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        """`jobs_of_clients` returns what all clients have; see Revived.

        `most_in_flight` is the number of calls that the backend may have to answer at the same time.
        """
        self.prefix = prefix
        self.waiters = waiters
        self.database_number = link.number
        self.is_stopping = False
        # The number of other servers on the backend, whose clients may wait for the same messages.
        self.peer_count = 0
        # Whether other shards of the database are up; None if there are none.
        self.others_are_up: Callable[[], bool] | None = None
        self.link = link
        self._durability = durability
        # Whether changes must be durable before clients are answered.
        self.is_durable = durability.is_enabled
        self.identity = identity
        # Callbacks for when the backend is back; a dict keeps their order, and each only once.
        self._when_back_callbacks: dict[Callable[[], None], None] = {}
        # Without heartbeats no other server would recover the records, so none are kept.
        records = records_key(prefix, identity) if link.heartbeats is not None else b""
        self._records_key = records
        self._set_policy(policy)
        self.courier = Courier(link, self, self._callers[0], most_in_flight)
        # Lanes that have something to do, and others, which keep what they know of their queues.
        self._lanes: OrderedDict[bytes, Lane] = OrderedDict()
        self.answers = answers
        self._due_queues = DueQueues(self, watch, is_active=bool(records))
        self._deletions = DeletionWatch(watch, link.number, prefix, self._queue_is_gone)
        # End a client's read: the operations that it has added may be sent.
        self.end_of_read = self.courier.end_of_read
        self.housekeeping = Housekeeping(self)
        self.reservations = Reservations(self)
        self.revived = Revived(self, records, jobs_of_clients)
        self.notifications = KeyNotifications(watch, link.number, prefix)
        self.first_jobs = FirstJobs(link, watch, prefix)
        self.role_turns = RoleTurns(self, turns)
        link.is_back = self._backend_is_back
        self.keys = StoredKeys(self)
        self.ranges = Ranges(self)
        self.loop = asyncio.get_running_loop()

    def _set_policy(self, policy: Policy) -> None:
        self.policy = policy
        bound = b"" if policy.create_bound is None else b"%d" % policy.create_bound
        if bound and policy.templates:
            bound = BY_NAME
        limits = b"%d %d" % (policy.max_bytes, policy.max_queues)
        words = (self.identity, bound, policy.overflow.encode())
        # The second one goes with the calls while the backend holds more bytes than it may.
        self._callers = [Caller((*words, limits + mark), self._records_key) for mark in (b"", b"!")]

    def change_policy(self, policy: Policy) -> None:
        """Use other settings for all queues from now on."""
        is_reached = self.courier.caller is self._callers[1]
        self._set_policy(policy)
        self.limit_storage(is_reached=is_reached)

    def limit_storage(self, *, is_reached: bool) -> None:
        """Refuse puts while the backend holds more bytes than it may."""
        self.courier.caller = self._callers[is_reached]

    @property
    def is_up(self) -> bool:
        """Whether the backend can be reached."""
        return self.link.is_up

    @property
    def is_away(self) -> bool:
        """Whether this server cannot reach this shard, but can reach another one of the database."""
        return self.others_are_up is not None and not self.link.is_up and self.others_are_up()

    @property
    def route(self) -> Route:
        """The route to the node that has the keys."""
        return self.link.route

    @property
    def call_statistics(self) -> CallStatistics:
        """The totals of the calls of the library."""
        return self.courier.statistics

    def submit(self, operation: Operation) -> None:
        """Add an operation, and send it with the next call. Raises QueueNameError."""
        self.add(operation)
        self.courier.send_soon()

    def add(self, operation: Operation) -> Lane:
        """Do an operation after those added for its queue before; tell its owner when it ends.

        It leaves after `end_of_read`, or when its queue's call is back. Return the lane. Raises
        QueueNameError.
        """
        name = operation.name
        lane = self._lanes.get(name) or self._new_lane(name)
        lane.is_recent = True
        if operation.wait is not None and operation.waits_for_message and not self.link.is_up:
            # Not at once: the owner does not expect an end before this returns.
            self.loop.call_soon(self._join_while_lost, operation)
            return lane
        if self.reservations.given_up and name in self.reservations.given_up:
            self.reservations.restore_to(name)
        lane.pending.append(operation)
        self.courier.submitted += 1
        if lane.is_idle:
            lane.is_idle = False
            self.courier.add(lane)
        return lane

    def seal(self, name: bytes) -> None:
        """Let no later command on the queue become part of an operation that has been submitted."""
        lane = self._lanes.get(name)
        if lane is not None and lane.pending:
            lane.pending[-1].is_sealed = True

    def join(self, operation: Operation) -> None:
        """Let an operation wait for a message without trying it first. Raises QueueNameError."""
        self._lane(operation.name).join(operation)

    def _join_while_lost(self, operation: Operation) -> None:
        """Let an operation wait until the backend is back, or try it if that has just come back."""
        if not self.link.is_up:
            self.join(operation)
        else:
            self.submit(operation)

    def due_soon(self, name: bytes) -> float | None:
        """See TimedTries.due_soon; None if no client waits on the queue."""
        lane = self._lanes.get(name)
        return lane.waiting.timed_tries.due_soon if lane is not None and lane.waiting is not None else None

    def _lane(self, name: bytes) -> Lane:
        """Return the queue's lane, for use. Raises QueueNameError."""
        lane = self._lanes.get(name) or self._new_lane(name)
        lane.is_recent = True
        return lane

    def _new_lane(self, name: bytes) -> Lane:
        looks = _LOOKS if len(self._lanes) >= _MOST_KEPT else 0
        for oldest in list(islice(self._lanes.values(), looks)):
            if oldest.is_in_use or oldest.is_recent:
                oldest.is_recent = False
                self._lanes.move_to_end(oldest.name)
            else:
                del self._lanes[oldest.name]
        lane = self._lanes[name] = Lane(self, name, base_key(self.prefix, name))
        return lane

    @property
    def _in_use(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.is_in_use]

    def cancel(self, operation: Operation) -> None:
        """Cancel an operation whose client has gone. A take that has been sent is done and put back."""
        operation.cancelled = True
        lane = self._lanes.get(operation.name)
        if lane is not None:
            lane.cancel(operation)

    def unblock(self, operation: Operation, unblocking: Unblocking) -> None:
        """End an operation as if its time were up; one that is in flight ends when its reply arrives."""
        lane = self._lanes.get(operation.name)
        if lane is not None:
            lane.unblock(operation, unblocking)

    async def attempt(self, operation: Operation, owner: CoroutineOwner) -> list[Any] | PressureError:
        """Do an operation for `owner`. Return its `results`, or the error with which it ended."""
        try:
            self.submit(operation)
        except PressureError as error:
            return error
        owner.on_unblock = partial(self.unblock, operation)
        try:
            await owner.first_ended
        except asyncio.CancelledError:
            self.cancel(operation)
            raise
        finally:
            owner.end()
        return operation.error or operation.results

    def retry_all_waiting(self) -> None:
        """Try all waiting operations again, so that queues with waiting clients do not expire."""
        for lane in list(self._lanes.values()):
            if lane.waiting is None or lane.waiting.need_queue:
                lane.wake_up()

    def waiting(self, names: Collection[bytes] | None) -> dict[bytes, dict[Line, int]]:
        """Return how many operations of this process wait in these queues, or in all, if any do."""
        lanes = self._lanes.values() if names is None else filter(None, map(self._lanes.get, names))
        counts = {
            lane.name: {line: lane.waiting.count(line) for line in Line}
            for lane in lanes
            if lane.waiting is not None and lane.waiting
        }
        for name, count in self.first_jobs.watchers.count(names).items():
            counts.setdefault(name, dict.fromkeys(Line, 0))[Line.CONSUMERS] += count
        return counts

    @property
    def _all_waiting(self) -> list[WaitingOperations]:
        return [lane.waiting for lane in self._lanes.values() if lane.waiting is not None]

    def end_waits(self) -> None:
        """End all waiting operations with StoppingError, and from now on all that would have to wait."""
        self.is_stopping = True
        self._due_queues.stop()
        for waiting in self._all_waiting:
            waiting.stop_all()
        self.notifications.watch_lost()
        self.first_jobs.watchers.tell_all()

    @property
    def _has_work(self) -> bool:
        has_gathered = len(self.courier.records) or len(self.reservations)
        return bool(self._in_use or has_gathered or self.revived.is_searching)

    async def settle(self, timeout: float) -> bool:
        """Drop the records of delivered messages. Return whether all is done within `timeout` seconds."""
        self.courier.records.drop()
        try:
            async with asyncio.timeout(timeout):
                # An event would cost one more function call for each request.
                while self._has_work:  # noqa: ASYNC110
                    await asyncio.sleep(_SETTLES_EVERY)
        except TimeoutError:
            return False
        return True

    def flush_put_backs(self, names: Iterable[bytes] | None = None) -> None:
        """Send the pending put-backs of these queues, or of all, before a request that bypasses the lanes."""
        given_up = self.reservations.given_up
        for name in [*self._lanes, *given_up] if names is None else names:
            lane = self._lanes.get(name)
            if lane is not None and lane.has_put_backs:
                lane.put_backs.restore()
            if name in given_up:
                self.reservations.restore_to(name)
        self.courier.flush()

    async def run_each(
        self,
        verb: Verb,
        names: Sequence[bytes],
        arguments: list[bytes] | None = None,
        client: Client | None = None,
    ) -> list[Any]:
        """See QueueOperations."""

        def one(name: bytes) -> Coroutine[Any, Any, list[Any] | PressureError]:
            call = CoroutineOwner(client)
            return self.attempt(Operation(verb, name, list(arguments or []), 1, call), call)

        results: list[Any] = []
        for some in portions(names, _AT_ONCE):
            # `attempt` returns errors: raised ones would keep their frames in memory.
            results += await asyncio.gather(*map(one, some))
        return [result if isinstance(result, PressureError) else result[0] for result in results]

    # For the courier.

    def put_back(self, operation: Operation) -> None:
        """Put back the messages of an operation whose client has gone."""
        for delivery, _ in operation.deliveries or ():
            self.courier.records.note_put_back(delivery.number)
        self._lane(operation.name).put_backs.put_back(operation)

    def messages_are_back(self, bases: Sequence[bytes]) -> None:
        """Try the operations that wait on the queues with these base keys: messages are back."""
        self.wake_up(base[len(self.prefix) + 1 :] for base in bases)

    def wake_up(self, names: Iterable[bytes]) -> None:
        """Try the operations that wait on these queues again."""
        for name in names:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.wake_up()

    # For lanes.

    def note_existence(self, name: bytes, *, exists: bool) -> bool:
        """Note whether a queue exists. Return False if this must be noted again with the next reply."""
        return self._deletions.note(name, exists=exists)

    @property
    def unsafe_run(self) -> str:
        """The backend's run if its last replies are not known to be durable, otherwise an empty text."""
        return "" if self._durability.is_proven(self.link.run_id) else self.link.run_id

    def when_durable(self, follows: Follows, run: str = "") -> None:
        """Call `follows` when the backend's last replies are as durable as configured, or with an error.

        Pass the `run` of the backend if an earlier one may have done a part.
        """
        self._durability.when_durable(run or self.link.run_id, follows)

    def when_back(self, follows: Callable[[], None]) -> None:
        """Call `follows` when the backend is back; if it is up but has refused something, after a pause."""
        if self.link.is_up:
            self.loop.call_later(max(_RETRY_AFTER, self.link.pause_after_deaths), follows)
        else:
            self._when_back_callbacks[follows] = None

    def after_iterations(self, iterations: int, follows: Callable[[], None]) -> None:
        """Call `follows` after a number of iterations of the event loop."""
        if iterations:
            self.loop.call_soon(self.after_iterations, iterations - 1, follows)
        else:
            follows()

    def take_turn(self, name: bytes, role: WaitCondition) -> None:
        """Begin the turn of a queue's lane in a role. Give the role back if no operation waits there."""
        lane = self._lanes.get(name)
        if lane is not None and lane.waiting is not None:
            lane.waiting.take_turn(role)
        else:
            self.role_turns.give_back(name)

    def forget(self, lane: Lane) -> None:
        """Forget a lane that has nothing to do, and knows nothing for the next operation on its queue."""
        if self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    # Called by the link and the watch.

    def _backend_is_back(self) -> None:
        self.role_turns.backend_is_back()
        when_back, self._when_back_callbacks = self._when_back_callbacks, {}
        # The operations that wait have not been tried meanwhile.
        for follows in (*when_back, self._try_waiting):
            if self.link.pause_after_deaths:
                self.loop.call_later(self.link.pause_after_deaths, follows)
            else:
                follows()

    def _try_waiting(self) -> None:
        for waiting in self._all_waiting:
            waiting.try_all()

    def changed(self, key: bytes) -> None:
        """Note that a watched key has changed, maybe in another database."""
        if self._due_queues.changed(key):
            return
        if not key.startswith(self.prefix + b":"):
            return
        name, suffix = split_key(self.prefix, key)
        self.first_jobs.forget(name)
        if suffix in UNAWAITED:
            return
        lane = self._lanes.get(name)
        if suffix == BOUND:
            if lane is not None:
                lane.forget_queue()
            if self._deletions.forget(name):
                self.housekeeping.clean(name)
        if lane is not None and lane.waiting is not None:
            lane.waiting.changed(existence=suffix == BOUND)
        self.notifications.notify(name)

    def watch_lost(self) -> None:
        """Note that no key is watched any longer."""
        self._due_queues.look()
        self._deletions.forget_all()
        self.first_jobs.forget_all()
        self.notifications.watch_lost()
        for lane in list(self._lanes.values()):
            lane.forget_queue()
            if not lane.is_in_use:
                del self._lanes[lane.name]
        for waiting in self._all_waiting:
            waiting.watch_lost()

    def _queue_is_gone(self, name: bytes) -> None:
        """Note that a queue had been deleted when the watch for that began."""
        lane = self._lanes.get(name)
        if lane is not None:
            lane.forget_queue()
        self.housekeeping.clean(name)
