"""A world: one possible state of all queues and clients.

tests/support/reference says what a queue does. This module says which client is served when. `outcomes`
returns all states in which nothing more can happen. There are several when the documentation leaves the order
open. One server serves its clients first come, first served; clients of different servers are served in any
order. Other clients may act between the commands of a pipeline. Clients that have left give up what they had
reserved, from one queue after the other. A short time ends before the step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support.reference.jobs import DELAYED, RESERVED, Job, JobQueue
from tests.support.reference.log import Group, Log
from tests.support.reference.queue import BLOCK, ERROR, FULL, Queue, RefusedError, flags_of
from tests.support.reference.queues import Queues

Words = tuple[Any, ...]
Reply = Any
# The most states of one step. A program that leads to more ends there.
MAX_STATES = 400
# A time in seconds that ends within its step. All other times are long.
SHORT = 0.02


class Error(NamedTuple):
    """An error reply, of which only the code is compared."""

    code: str


class AnyOf(NamedTuple):
    """A reply of which only the type is compared."""

    type_: type


class Either(NamedTuple):
    """One of several replies that the documentation allows."""

    replies: tuple[Any, ...]


class Fields(NamedTuple):
    """Some of the names and values in a reply."""

    fields: dict[bytes, Any]


class Unordered(NamedTuple):
    """The elements of a reply, in any order."""

    elements: list[Any]


class NewJobs(NamedTuple):
    """Jobs of a group: id, message, reserves and offset of each. Only the reply tells negative ids."""

    group: str
    jobs: list[list[Any]]


class Item(NamedTuple):
    """A message with its memcached flags. Flags of None match any."""

    message: bytes
    flags: int | None


# Returned by the action of a command that has to wait.
WAITS: Reply = object()
OK = b"OK"
NOQUEUE, CLOSED = Error("NOQUEUE"), Error("CLOSED")


def matches(expected: Reply, found: Reply) -> bool:
    """Return whether a reply is an expected one."""
    match expected:
        case AnyOf(type_):
            return isinstance(found, type_)
        case Either(replies):
            return any(matches(one, found) for one in replies)
        case Fields(fields):
            pairs = dict(zip(found[::2], found[1::2], strict=True)) if isinstance(found, list) else {}
            return all(pairs.get(name) == value for name, value in fields.items())
        case Unordered(elements):
            return isinstance(found, list | None) and sorted(found or []) == sorted(elements)
        case NewJobs(_, jobs):
            found = found if isinstance(found, list) else [[found]] if found else []
            return [one[1:] for one in jobs] == [one[1:] for one in found] and all(
                one[0] in (other[0], -abs(one[0])) for one, other in zip(jobs, found, strict=True)
            )
        case Item(message, flags) if isinstance(found, Item):
            return message == found.message and flags in (None, found.flags)
        case bytes():
            return isinstance(found, bytes) and expected == found
        case list() if isinstance(found, list):
            return len(expected) == len(found) and all(map(matches, expected, found))
    return isinstance(expected, type(found)) and bool(expected == found)


class TooManyStatesError(Exception):
    """A step has more outcomes than can be followed."""


class SimulatedQueue(JobQueue):
    """A queue that tells the flags of messages."""

    def take_natively(self) -> bytes:
        """Take the next message as a native client, who does not know that it has expired."""
        (message,) = self._pop(1)
        self.consumer = self.actor
        self.settle()
        return bytes(message)

    def item(self, message: bytes) -> Item:
        """Return a message with its flags."""
        return Item(bytes(message), flags_of(message))


@dataclass(eq=False, kw_only=True)
class SharedQueue(SimulatedQueue):
    """A queue of clients that act at the same time. Of equal messages, one may get the flags of another."""

    # The messages that were queued with different flags at the same time.
    mixed: set[bytes] = field(default_factory=set)

    def item(self, message: bytes) -> Item:
        found = super().item(message)
        return found._replace(flags=None) if message in self.mixed else found

    def _accept(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if any(one == message and flags_of(one) != flags_of(message) for one in self.messages):
                self.mixed = self.mixed | {message}
            super()._accept([message])


class Home(Queues):
    """The queues, and how many of each name have been created."""

    def __init__(self, last_block: int, *, blocks: bool) -> None:
        super().__init__(last_block)
        self.made_of = SharedQueue if blocks else SimulatedQueue
        self.births: dict[str, int] = {}
        self._overflow = BLOCK if blocks else ERROR

    def copy(self) -> Home:
        clone = super().copy()
        clone.births = dict(self.births)
        return clone

    def create(self, name: str, type_: str = "", **settings: Any) -> JobQueue:
        made = super().create(name, type_, **{"overflow": self._overflow, **settings})
        self.note_birth(name)
        return made

    def note_birth(self, name: str) -> None:
        """Note that a queue, a log or a group of this name is created."""
        self.births[name] = self.births.get(name, 0) + 1


@dataclass
class Operation:
    """A command in progress. `order` is its place among all operations that wait; None if it may not wait."""

    client: int
    server: int
    words: Words
    owner: str = ""
    order: int | None = None
    has_waited: bool = False
    # For a put: how many of its messages are done, and how many of these were new.
    done: int = 0
    new: int = 0
    # Whether it has made a list a queue of jobs.
    has_converted: bool = False
    # For each queue, as last seen: its birth (0 if it did not exist), and the number of births so far.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> Operation:
        clone = copy(self)
        clone.seen = dict(self.seen)
        return clone


@dataclass
class Client:
    """A client: at most one waiting operation, the commands that follow it, and the replies not read yet."""

    server: int
    # The name under which its connection reserves jobs.
    owner: str
    pending: list[Words] = field(default_factory=list)
    waiting: Operation | None = None
    outbox: list[Reply] = field(default_factory=list)
    # The commands of an open transaction.
    queued: list[Words] | None = None
    watched: dict[str, Any] = field(default_factory=dict)
    # The transaction id for the next put.
    transaction: str = ""
    # Servers do equal puts of a pipeline as one put. While it waits, they hold back this many of its replies.
    last_put: Words = ()
    held_back: int = 0
    # Items that a get of several queues has taken so far.
    found: list[Item] = field(default_factory=list)

    def copy(self) -> Client:
        clone = copy(self)
        clone.pending, clone.outbox, clone.found = list(self.pending), list(self.outbox), list(self.found)
        clone.waiting = self.waiting.copy() if self.waiting else None
        clone.queued = None if self.queued is None else list(self.queued)
        clone.watched = dict(self.watched)
        return clone

    @property
    def is_idle(self) -> bool:
        return not (self.pending or self.waiting or self.outbox)


class Put(NamedTuple):
    """How a command puts: its messages, and the result if the queue is full or does not exist."""

    messages: Callable[[Words], list[bytes]]
    unique: bool = False
    creates: bool = True
    # "queue" for the queue's own setting; "wait", "now" (refuse) and "overfill" override it.
    overflow: str = "queue"
    reply: Callable[[Queue, int], Reply] = lambda queue, new: new
    # Equal puts of a pipeline with the same word are done as one.
    combined: str = ""


class Command(NamedTuple):
    """What the reference does for a command: its action changes the world and returns the reply, or WAITS.

    `nothing` is the reply after a timeout and in transactions, `deleted` if its queue is deleted while it
    waits. `variants` are the commands of which a server does one, as it likes.
    """

    action: Callable[[World, Operation, list[str]], Reply]
    names: Callable[[Words], list[str]] = lambda words: [words[1]]
    nothing: Reply = None
    deleted: Reply = NOQUEUE
    put: Put | None = None
    # The command acts on the first of its queues that allows it.
    is_choice: bool = False
    # A move, and one that also waits for messages, not only for room.
    moves: bool = False
    waits_for_messages: bool = False
    timeout: Callable[[Words], float] = lambda words: 0
    variants: Callable[[World, Words], list[Words]] = lambda world, words: [words]
    # It waits on if its queue is deleted.
    outlives_queue: bool = False
    # A command of a native client that needs a role.
    needs_role: bool = False

    def do(self, world: World, operation: Operation, names: list[str]) -> Reply:
        """Return the reply, or WAITS."""
        try:
            return self.action(world, operation, names)
        except RefusedError as error:
            return Error(str(error))


_TRANSACTIONS = ("WATCH", "MULTI", "DISCARD", "EXEC")


class World:
    """One possible state of all queues and clients."""

    def __init__(
        self, commands: dict[str, Command], servers: list[int], last_block: int = 0, *, blocks: bool = True
    ) -> None:
        """Make a world without queues. `servers` has each client's server."""
        self._commands = commands
        self.home = Home(last_block, blocks=blocks)
        self.logs: dict[str, Log] = {}
        self.clients = [Client(server, f"{number}") for number, server in enumerate(servers)]
        # Owners that have left, each with a queue in which it may have reserved jobs.
        self.gone: list[tuple[str, str]] = []
        self.clock = 0
        # How often a short time has ended.
        self.short_times = 0

    def copy(self) -> World:
        clone = copy(self)
        clone.home = self.home.copy()
        clone.logs = {name: log.copy() for name, log in self.logs.items()}
        clone.clients = [client.copy() for client in self.clients]
        clone.gone = list(self.gone)
        return clone

    def key(self) -> str:
        """Return a key that is equal for equal states."""
        queues = [(name, queue) for name, queue in sorted(self.home.by_name.items()) if queue.exists]
        groups = {name: log.groups for name, log in self.logs.items()}
        births = sorted(self.home.births.items())
        popped = sorted(one for one in self.home.popped.items() if one[1])
        return repr((queues, self.logs, groups, births, popped, self.clients, self.gone, self.clock))

    # Queues

    def queue(self, name: str) -> Any:
        """Return the queue, log or group of that name; None if there is none."""
        if name in self.logs:
            self.logs[name].begin()
            return self.logs[name]
        log, _, group = name.partition("+")
        if log in self.logs:
            return self.logs[log].groups.get(group)
        queue = self.home[name]
        return queue if queue.exists else None

    def delete(self, name: str) -> bool:
        """Delete a queue, or a log with its groups. Return whether it existed."""
        return self.logs.pop(name, None) is not None or bool(self.home.delete(name))

    def names(self) -> list[str]:
        """Return the names of the queues that exist, without logs and groups."""
        return sorted(name for name, queue in self.home.by_name.items() if queue.exists)

    def jobs(self, *states: str) -> list[tuple[str, Job]]:
        """Return the jobs in these states, each with its queue, in the order of their ids."""
        found = [(name, job) for name in self.names() for job in self.home.by_name[name].jobs.values()]
        groups = [
            (f"{name}+{of}", group) for name, log in self.logs.items() for of, group in log.groups.items()
        ]
        found += [(name, job) for name, group in groups for job in group.jobs.values()]
        return sorted((one for one in found if one[1].state in states), key=lambda one: (one[0], one[1].id))

    def find_job(self, number: int) -> tuple[JobQueue, Job] | None:
        """Return a job, and its queue."""
        for name in self.names():
            queue: JobQueue = self.home[name]
            if number in queue.jobs:
                return queue, queue.jobs[number]
        return None

    def learn(self, expected: Reply, found: Reply) -> None:
        """Note the ids of new jobs of a group, which only a reply tells."""
        if isinstance(expected, NewJobs):
            group = self.queue(expected.group)
            jobs = group.jobs if group is not None else {}  # it may be deleted by now
            for (before, *_), (number, *_) in zip(expected.jobs, found or [], strict=True):
                if before not in jobs:
                    continue
                job = jobs.pop(before)
                job.id = number
                jobs[number] = job

    # Clients

    def blocked(self, server: int) -> int:
        """Return the number of the server's clients that wait."""
        return sum(client.server == server and client.waiting is not None for client in self.clients)

    def hang_up(self, number: int) -> None:
        """Replace a client that closes its connection by a new one. What it has reserved will be given up."""
        client = self.clients[number]
        self.gone += [(client.owner, name) for name in self.names()]
        self.home.popped.pop(client.owner, None)
        self.clock += 1
        self.clients[number] = Client(client.server, f"{number}.{self.clock}")

    @property
    def is_settled(self) -> bool:
        """Whether all replies have been read."""
        return all(
            len(client.outbox) <= (client.held_back if client.waiting else 0) for client in self.clients
        )

    def waiting(self, server: int | None = None) -> list[Operation]:
        """Return the operations that wait, at one server or at all, first come first."""
        operations = [
            client.waiting
            for client in self.clients
            if client.waiting and (server is None or client.server == server)
        ]
        return sorted(operations, key=lambda operation: operation.order or 0)

    @property
    def moves_wait(self) -> bool:
        """Whether a command waits to move a message."""
        return any(self.command(operation.words).moves for operation in self.waiting())

    def moves_within(self, name: str) -> bool:
        """Return whether a command waits to move a message of this queue to its end."""
        moves = [o.words[1:3] for o in self.waiting() if self.command(o.words).waits_for_messages]
        return (name, name) in moves

    # What happens

    def outcomes(self) -> list[World]:
        """Return all states to which this one leads, in which nothing more has to happen."""
        outcomes: list[World] = []
        seen: set[str] = set()
        todo = [self]
        while todo:
            world = todo.pop()
            key = world.key()
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MAX_STATES:
                raise TooManyStatesError
            successors = list(world._successors())
            todo += [successor for successor, _ in successors]
            if not any(must_happen for _, must_happen in successors):
                outcomes.append(world)
        return outcomes

    def _successors(self) -> Iterator[tuple[World, bool]]:
        """Yield each state that may follow, and whether this state cannot be final."""
        for number, client in enumerate(self.clients):
            if client.pending and client.waiting is None:
                yield from self._next_commands(number, client)
        for at, (owner, name) in enumerate(self.gone):
            world = self.copy()
            del world.gone[at]
            world.home[name].give_up(owner)
            yield world, True
        yield from self._ended_times()
        served: set[tuple[int, str]] = set()
        puts: set[tuple[int, str]] = set()
        for operation in self.waiting():
            yield from self._advance(operation, served, puts)

    def _next_commands(self, number: int, client: Client) -> Iterator[tuple[World, bool]]:
        words = client.pending[0]
        is_plain = words[0] not in _TRANSACTIONS and client.queued is None
        for variant in self.command(words).variants(self, words) if is_plain else [words]:
            world = self.copy()
            world.clients[number].pending[0] = variant
            world._execute(number)
            yield world, True
        if is_plain and self.command(words).needs_role and self._client_waits(words[1]):
            # A server whose client waits may keep the role when its turn has come.
            world = self.copy()
            del world.clients[number].pending[0]
            world.clients[number].outbox.append(Error("INUSE"))
            yield world, True

    def _ended_times(self) -> Iterator[tuple[World, bool]]:
        for name, job in self.jobs(DELAYED, RESERVED):
            if (job.state == DELAYED and job.delay == SHORT) or (
                job.state == RESERVED and job.time_to_run == SHORT
            ):
                world = self.copy()
                queue = world.home.by_name[name]
                queue.jobs[job.id].is_due = True
                queue.begin()
                world.short_times += 1
                yield world, True

    def put_waits(self, names: list[str]) -> bool:
        """Return whether a put waits for room in one of these queues."""
        return any(self.command(o.words).put is not None and o.words[1] in names for o in self.waiting())

    def _client_waits(self, name: str) -> bool:
        return any(name in self.command(o.words).names(o.words) for o in self.waiting())

    def _advance(
        self, operation: Operation, served: set[tuple[int, str]], puts: set[tuple[int, str]]
    ) -> Iterator[tuple[World, bool]]:
        """Yield the next states of a waiting operation.

        `served` and `puts` have the servers and queues of earlier operations that are served now, and of
        earlier puts.
        """
        command = self.command(operation.words)
        names = command.names(operation.words)
        deleted = [name for name in operation.seen if self._is_deleted(operation, name)]
        if deleted or any(self._may_be_deleted(operation, name) for name in operation.seen):
            yield from self._deleted(operation, deleted)
            return
        place = (operation.server, names[0])
        is_first = command.put is None or place not in puts
        if command.put is not None:
            puts.add(place)
        if command.timeout(operation.words):
            # The timeout is short, but other clients may act before it ends.
            world = self.copy()
            world._reply(operation.client, command.nothing)
            yield world, True
        yield from self._takes_fewer(operation, names)
        for name in names if command.is_choice else names[:1]:
            if (operation.server, name) in served:
                continue
            world = self.copy()
            again = world._waiting(operation)
            before = again.copy()
            reply = command.do(world, again, [name] if command.is_choice else names)
            if again.new > before.new and not is_first:
                continue  # an earlier put of the same server gets this room
            if reply is not WAITS:
                # A client that waits on several queues may be overtaken while the server tries another queue.
                if command.put is None and not (command.is_choice and len(names) > 1):
                    served.add((operation.server, name))
                world._reply(operation.client, reply)
                # A move that waits for room notices the room even if its message is gone. A unique put need
                # not notice that another client has put the rest.
                is_unnoticed = command.moves and reply is None
                is_unnoticed |= command.put is not None and command.put.unique and again.new == before.new
                yield world, is_first and not is_unnoticed
            elif again != before:
                yield world, is_first

    def _deleted(self, operation: Operation, deleted: list[str]) -> Iterator[tuple[World, bool]]:
        """Yield the next states of a waiting operation, a queue of which was deleted or may have been."""
        command = self.command(operation.words)
        world = self.copy()
        world._reply(operation.client, command.deleted)
        yield world, True
        if equal := self._equal_puts(world.clients[operation.client]):
            # The equal puts that follow may be done as one with it, and end with it.
            world = world.copy()
            client = world.clients[operation.client]
            client.outbox += [NOQUEUE] * equal
            del client.pending[:equal]
            yield world, True
        names = command.names(operation.words)
        has_messages = {name: is_takeable(self.queue(name)) for name in names}
        if command.is_choice:
            # One queue was deleted and another got a message at once, by EXEC: the message may come first.
            is_unnoticed = any(has_messages[name] for name in names if name not in deleted)
        else:
            # A move that waits for messages by now may not notice that its destination is deleted.
            source = names[0]
            is_unnoticed = command.moves and source not in deleted and not has_messages[source]
        if not deleted or is_unnoticed:
            world = self.copy()
            world._note(world._waiting(operation))
            yield world, True

    def _takes_fewer(self, operation: Operation, names: list[str]) -> Iterator[tuple[World, bool]]:
        """Yield states in which a BLMPOP leaves messages to clients that wait, or did, at other servers."""
        words = operation.words
        for fewer in range(1, int(words[-1]) if words[0] == "BLMPOP" and "COUNT" in words else 1):
            for name in names:
                world = self.copy()
                again = world._waiting(operation)
                again.words = (*words[:-1], fewer)
                reply = self.command(words).do(world, again, [name])
                if reply is not WAITS:
                    world._reply(operation.client, reply)
                    yield world, True

    def _equal_puts(self, client: Client) -> int:
        """Return the number of the client's next commands that are puts equal to the last one."""
        count = 0
        for words in client.pending:
            if not self._combined(words) or self._combined(words) != client.last_put:
                break
            count += 1
        return count

    def _combined(self, words: Words) -> Words:
        put = self.command(words).put if words[0] not in _TRANSACTIONS else None
        return (put.combined, words[1]) if put is not None and put.combined else ()

    def _waiting(self, operation: Operation) -> Operation:
        """Return this world's copy of a waiting operation."""
        waiting = self.clients[operation.client].waiting
        assert waiting is not None
        return waiting

    def birth(self, name: str) -> int:
        """Return how many queues of this name had been created with this one; 0 if it does not exist."""
        return self.home.births.get(name, 0) if self.queue(name) is not None else 0

    def _is_deleted(self, operation: Operation, name: str) -> bool:
        """Return whether the queue was deleted, and not created again."""
        birth, births = operation.seen.get(name, (0, 0))
        return bool(birth) and not self.birth(name) and self.home.births.get(name, 0) == births

    def _may_be_deleted(self, operation: Operation, name: str) -> bool:
        """Return whether the queue was deleted and created again, or the other way round, maybe unnoticed."""
        birth, births = operation.seen.get(name, (0, 0))
        if not self.birth(name):
            return self.home.births.get(name, 0) != births
        return birth not in (0, self.birth(name))

    def _note(self, operation: Operation) -> None:
        """Note that the operation has seen its queues as they are now; for a move, only the source."""
        command = self.command(operation.words)
        names = [] if command.outlives_queue else command.names(operation.words)
        for name in operation.seen or (names if command.is_choice else names[:1]):
            operation.seen[name] = (self.birth(name), self.home.births.get(name, 0))

    def _reply(self, number: int, reply: Reply) -> None:
        client = self.clients[number]
        client.waiting = None
        client.outbox.append(reply)

    def _execute(self, number: int) -> None:
        """Do the next command of the client."""
        client = self.clients[number]
        words = client.pending.pop(0)
        if words[0] in _TRANSACTIONS:
            client.outbox.append(self._transaction(client, words))
            return
        if client.queued is not None:
            client.queued.append(words)
            client.outbox.append(b"QUEUED")
            return
        if words[0] == "get more" or (words[0] == "get" and len(words) > 2):
            # It takes from one queue after the other, and waiting clients may act in between.
            queue = self.queue(words[1])
            client.found += take_items(queue, 1) if queue else []
            if len(words) > 2:
                client.pending[:0] = [("get more", *words[2:])]
            else:
                client.outbox.append(client.found)
                client.found = []
            return
        put = self._combined(words)
        client.held_back = client.held_back + 1 if put and put == client.last_put else 0
        client.last_put = put
        self.clock += 1
        operation = Operation(number, client.server, words, client.owner, self.clock)
        self._note(operation)
        reply = self._run(operation)
        if reply is not WAITS:
            client.outbox.append(reply)
        else:
            operation.has_waited = True
            client.waiting = operation

    def _run(self, operation: Operation) -> Reply:
        command = self.command(operation.words)
        return command.do(self, operation, command.names(operation.words))

    def command(self, words: Words) -> Command:
        """Return what a command does."""
        return self._commands[words[0]]

    def _transaction(self, client: Client, words: Words) -> Reply:
        match words[0]:
            case "WATCH":
                for name in words[1:]:
                    client.watched.setdefault(name, self._version(name))
            case "MULTI":
                client.queued = []
            case "DISCARD":
                client.queued, client.watched = None, {}
            case "EXEC":
                queued, client.queued = client.queued or [], None
                watched, client.watched = client.watched, {}
                if any(self._version(name) != version for name, version in watched.items()):
                    return None
                return [self._execute_queued(client, queued_words) for queued_words in queued]
        return OK

    def _execute_queued(self, client: Client, words: Words) -> Reply:
        operation = Operation(-1, client.server, words, client.owner)
        self._note(operation)
        reply = self._run(operation)
        return self.command(words).nothing if reply is WAITS else reply

    def _version(self, name: str) -> Any:
        """Return a value that changes with every change of the queue."""
        queue = self.queue(name)
        if queue is None:
            return None
        some = getattr(queue, "jobs", {}).values()
        jobs = [(job.id, job.state, job.counts["reserves"], job.place) for job in some]
        paused = getattr(queue, "is_paused", False)
        return (
            self.birth(name),
            queue.is_closed,
            queue.counters.produced,
            queue.counters.consumed,
            jobs,
            paused,
        )


def is_takeable(queue: Any) -> bool:
    """Return whether a client that asks now would get a message."""
    if queue is None:
        return False
    if isinstance(queue, Group):
        return queue.is_takeable
    return bool(queue.takeable if getattr(queue, "has_jobs", False) else queue.messages)


def take_items(queue: Any, count: int) -> list[Item]:
    """Take messages. The flags of messages of a group are not known: they match any flags."""
    taken = queue.take(count)
    return [queue.item(one) if isinstance(queue, SimulatedQueue) else Item(bytes(one), None) for one in taken]


NO_ROOM = Error(FULL)
