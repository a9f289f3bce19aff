"""The model: the replies that servers with the same queues may give, in plain Python.

tests/support/reference says what a queue does. This module says which replies clients get, and who is served
when.

A `World` is one possible state: the queues, and for each client its commands and the replies not read yet.
`outcomes` returns all states in which nothing more can happen. There are several when the documentation
leaves the order open. One server serves its clients first come, first served. Clients of different servers
are served in any order. Other clients may act between the commands of a pipeline.

`COMMANDS` maps each command to an action, which changes the world and returns the reply, or `WAITS`.
Expiry and syntax errors are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tests.differential.program import Words
from tests.support.reference import queue as reference
from tests.support.reference.queue import BLOCK, ERROR, Marked, RefusedError, flags_of

Reply = Any
# The most states of one step. A program that leads to more ends there.
MAX_STATES = 400


class Error(NamedTuple):
    """An error reply, of which only the code is compared."""

    code: str


class AnyOf(NamedTuple):
    """A reply of which only the type is compared."""

    type_: type


class Either(NamedTuple):
    """One of several replies that the documentation allows."""

    replies: tuple[Any, ...]


class Item(NamedTuple):
    """A message with its memcached flags. Flags of None match any."""

    message: bytes
    flags: int | None


# Returned by the action of a command that has to wait.
WAITS: Reply = object()
OK = b"OK"
_NOQUEUE, _CLOSED, _FULL = Error("NOQUEUE"), Error("CLOSED"), Error(reference.FULL)


class TooManyStatesError(Exception):
    """A step has more outcomes than can be followed."""


@dataclass
class Queue(reference.Queue):
    """A queue of the world."""

    # The number of queues of this name that had been created, including this one.
    birth: int = 0
    # Messages that were queued with different flags at the same time. A copy may get the flags of another.
    mixed: set[bytes] = field(default_factory=set)

    def copy(self) -> Self:
        clone = super().copy()
        clone.mixed = set(self.mixed)
        return clone

    @property
    def blocks(self) -> bool:
        """Whether puts wait for room."""
        return self.overflow == BLOCK

    def take_items(self, count: int) -> list[Item]:
        """Take messages with their flags."""
        taken = self.take(count)
        return [Item(bytes(one), None if one in self.mixed else flags_of(one)) for one in taken]

    @property
    def version(self) -> tuple[Any, ...]:
        """A value that changes with every change of the queue."""
        return (self.birth, self.is_closed, self.counters.produced, self.counters.consumed)

    def _accept(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if any(one == message and flags_of(one) != flags_of(message) for one in self.messages):
                self.mixed.add(message)
            super()._accept([message])


@dataclass
class Operation:
    """A command in progress. `order` is its place among all operations that wait; None if it may not wait."""

    client: int
    server: int
    words: Words
    order: int | None = None
    has_waited: bool = False
    # For a put: how many of its messages are done, and how many of these were new.
    done: int = 0
    new: int = 0
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
    pending: list[Words] = field(default_factory=list)
    waiting: Operation | None = None
    outbox: list[Reply] = field(default_factory=list)
    # The commands of an open transaction.
    queued: list[Words] | None = None
    watched: dict[str, Any] = field(default_factory=dict)
    # Servers do equal puts of a pipeline as one put. While it waits, they hold back this many of its replies.
    last_put: Words = ()
    held_back: int = 0
    # Items that a get of several queues has taken so far.
    found: list[Item] = field(default_factory=list)

    def copy(self) -> Client:
        return Client(
            self.server,
            list(self.pending),
            self.waiting.copy() if self.waiting else None,
            list(self.outbox),
            None if self.queued is None else list(self.queued),
            dict(self.watched),
            self.last_put,
            self.held_back,
            list(self.found),
        )

    @property
    def equal_puts(self) -> int:
        """The number of the next commands that are puts equal to the last one."""
        count = 0
        for words in self.pending:
            if words[0] not in _COMBINED or (_COMBINED[words[0]], words[1]) != self.last_put:
                break
            count += 1
        return count

    @property
    def is_idle(self) -> bool:
        return not (self.pending or self.waiting or self.outbox)


class World:
    """One possible state of all queues and clients."""

    def __init__(self, servers: list[int]) -> None:
        """Make a world without queues. `servers` has each client's server."""
        self.queues: dict[str, Queue] = {}
        self.births: dict[str, int] = {}
        self.clients = [Client(server) for server in servers]
        self.clock = 0

    def copy(self) -> World:
        clone = copy(self)
        clone.queues = {name: queue.copy() for name, queue in self.queues.items()}
        clone.births = dict(self.births)
        clone.clients = [client.copy() for client in self.clients]
        return clone

    def key(self) -> str:
        """Return a key that is equal for equal states."""
        return repr((sorted(self.queues.items()), sorted(self.births.items()), self.clients, self.clock))

    def create(self, name: str, bound: int = 0, *, blocks: bool = True) -> Queue:
        self.births[name] = self.births.get(name, 0) + 1
        self.queues[name] = Queue(bound, overflow=BLOCK if blocks else ERROR, birth=self.births[name])
        return self.queues[name]

    def blocked(self, server: int) -> int:
        """Return the number of the server's clients that wait."""
        return sum(client.server == server and client.waiting is not None for client in self.clients)

    def hang_up(self, number: int) -> None:
        """Replace a client that closes its connection by a new one."""
        self.clients[number] = Client(self.clients[number].server)

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
        return any(_command(operation).action in (_move, _smove) for operation in self.waiting())

    def moves_within(self, name: str) -> bool:
        """Return whether a command waits to move a message of this queue to its end."""
        moves = [o.words[1:3] for o in self.waiting() if _command(o).action is _move]
        return (name, name) in moves

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
                world = self.copy()
                world._execute(number)
                yield world, True
                words = client.pending[0]
                if words[0] == "BLMPOP" and self._put_waits(COMMANDS["BLMPOP"].names(words)):
                    # A server may leave some messages to clients that wait, or have waited, at other servers.
                    for fewer in range(1, _lmpop_count(words)):
                        world = self.copy()
                        world.clients[number].pending[0] = (*words[:-1], fewer)
                        world._execute(number)
                        yield world, True
                if words[0] in _NEEDS_A_ROLE and self._client_waits(words[1]):
                    # A server whose client waits may keep the role when its turn has come.
                    world = self.copy()
                    del world.clients[number].pending[0]
                    world.clients[number].outbox.append(Error("INUSE"))
                    yield world, True
        served: set[tuple[int, str]] = set()
        puts: set[tuple[int, str]] = set()
        for operation in self.waiting():
            yield from self._advance(operation, served, puts)

    def _put_waits(self, names: list[str]) -> bool:
        return any(_command(o).put is not None and o.words[1] in names for o in self.waiting())

    def _client_waits(self, name: str) -> bool:
        return any(name in _command(o).names(o.words) for o in self.waiting())

    def _advance(
        self, operation: Operation, served: set[tuple[int, str]], puts: set[tuple[int, str]]
    ) -> Iterator[tuple[World, bool]]:
        """Yield the next states of a waiting operation.

        `served` and `puts` have the servers and queues of earlier operations that are served now, and of
        earlier puts.
        """
        command = _command(operation)
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
            world._reply(operation.client, _FULL if command.put is not None else command.nothing)
            yield world, True
        yield from self._takes_fewer(operation, names)
        for name in names if command.is_choice else names[:1]:
            if (operation.server, name) in served:
                continue
            world = self.copy()
            again = world._waiting(operation)
            before = (again.done, again.new, dict(again.seen))
            reply = command.do(world, again, [name] if command.is_choice else names)
            if reply is not WAITS:
                # A client that waits on several queues may be overtaken while the server tries another queue.
                if command.put is None and not (command.is_choice and len(names) > 1):
                    served.add((operation.server, name))
                world._reply(operation.client, reply)
                # A move that waits for room notices the room even if its message is gone. A unique put need
                # not notice that another client has put the rest.
                is_unnoticed = command.action is _move and reply is None
                is_unnoticed |= command.put is not None and command.put.unique and again.new == before[1]
                yield world, is_first and not is_unnoticed
            elif (again.done, again.new, again.seen) != before:
                yield world, is_first

    def _deleted(self, operation: Operation, deleted: list[str]) -> Iterator[tuple[World, bool]]:
        """Yield the next states of a waiting operation, a queue of which was deleted or may have been."""
        world = self.copy()
        world._reply(operation.client, _NOQUEUE)
        yield world, True
        if world.clients[operation.client].equal_puts:
            # The equal puts that follow may be done as one with it, and end with it.
            world = world.copy()
            client = world.clients[operation.client]
            client.outbox += [_NOQUEUE] * client.equal_puts
            del client.pending[: client.equal_puts]
            yield world, True
        command = _command(operation)
        names = command.names(operation.words)
        has_messages = {name: bool(name in self.queues and self.queues[name].messages) for name in names}
        if command.is_choice:
            # One queue was deleted and another got a message at once, by EXEC: the message may come first.
            is_unnoticed = any(has_messages[name] for name in names if name not in deleted)
        else:
            # A move that waits for messages by now may not notice that its destination is deleted.
            source = names[0]
            is_unnoticed = command.action is _move and source not in deleted and not has_messages[source]
        if not deleted or is_unnoticed:
            world = self.copy()
            world._note(world._waiting(operation))
            yield world, True

    def _takes_fewer(self, operation: Operation, names: list[str]) -> Iterator[tuple[World, bool]]:
        """Yield states in which a BLMPOP leaves messages to clients that wait, or did, at other servers."""
        for fewer in range(1, _lmpop_count(operation.words) if operation.words[0] == "BLMPOP" else 1):
            for name in names:
                world = self.copy()
                again = world._waiting(operation)
                again.words = (*operation.words[:-1], fewer)
                reply = COMMANDS["BLMPOP"].do(world, again, [name])
                if reply is not WAITS:
                    world._reply(operation.client, reply)
                    yield world, True

    def _waiting(self, operation: Operation) -> Operation:
        """Return this world's copy of a waiting operation."""
        waiting = self.clients[operation.client].waiting
        assert waiting is not None
        return waiting

    def _is_deleted(self, operation: Operation, name: str) -> bool:
        """Return whether the queue was deleted, and not created again."""
        birth, births = operation.seen.get(name, (0, 0))
        return bool(birth) and name not in self.queues and self.births.get(name, 0) == births

    def _may_be_deleted(self, operation: Operation, name: str) -> bool:
        """Return whether the queue was deleted and created again, or the other way round, maybe unnoticed."""
        birth, births = operation.seen.get(name, (0, 0))
        queue = self.queues.get(name)
        if queue is None:
            return self.births.get(name, 0) != births
        return birth not in (0, queue.birth)

    def _note(self, operation: Operation) -> None:
        """Note that the operation has seen its queues as they are now; for a move, only the source."""
        command = _command(operation)
        names = command.names(operation.words)
        for name in operation.seen or (names if command.is_choice else names[:1]):
            queue = self.queues.get(name)
            operation.seen[name] = (queue.birth if queue else 0, self.births.get(name, 0))

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
            client.found += _get_many(self, [words[1]])
            if len(words) > 2:
                client.pending[:0] = [("get more", *words[2:])]
            else:
                client.outbox.append(client.found)
                client.found = []
            return
        put = (_COMBINED[words[0]], words[1]) if words[0] in _COMBINED else ()
        client.held_back = client.held_back + 1 if put and put == client.last_put else 0
        client.last_put = put
        self.clock += 1
        operation = Operation(number, client.server, words, self.clock)
        self._note(operation)
        reply = _run(self, operation)
        if reply is not WAITS:
            client.outbox.append(reply)
        else:
            operation.has_waited = True
            client.waiting = operation

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
                return [self._execute_queued(client.server, queued_words) for queued_words in queued]
        return OK

    def _execute_queued(self, server: int, words: Words) -> Reply:
        operation = Operation(-1, server, words)
        self._note(operation)
        reply = _run(self, operation)
        return _command(operation).nothing if reply is WAITS else reply

    def _version(self, name: str) -> Any:
        queue = self.queues.get(name)
        return queue.version if queue else None


def _command(operation: Operation) -> Command:
    return COMMANDS[operation.words[0]]


def _run(world: World, operation: Operation) -> Reply:
    command = _command(operation)
    return command.do(world, operation, command.names(operation.words))


# Puts that servers do as one if they follow each other.
_COMBINED = {"SADD": "add", "LPUSH": "put", "RPUSH": "put"}
_TRANSACTIONS = ("WATCH", "MULTI", "DISCARD", "EXEC")
# Commands of native clients that need a role.
_NEEDS_A_ROLE = ("native put", "native get")


# Commands.


class Put(NamedTuple):
    """How a command puts: its messages, and the result if the queue is full or does not exist."""

    messages: Callable[[Words], list[bytes]]
    unique: bool = False
    creates: bool = True
    # "queue" for the queue's own setting; "wait", "now" (refuse) and "overfill" override it.
    overflow: str = "queue"
    reply: Callable[[Queue, int], Reply] = lambda queue, new: new


_Names = Callable[[Words], list[str]]
_Action = Callable[[World, Operation, list[str]], Reply]


def _first(words: Words) -> list[str]:
    return [words[1]]


def _first_two(words: Words) -> list[str]:
    return list(words[1:3])


def _all(words: Words) -> list[str]:
    return list(words[1:])


def _no_timeout(_words: Words) -> float:
    return 0


def _last_word(words: Words) -> float:
    return float(words[-1])


class Command(NamedTuple):
    """The action of a command, and its queues. `nothing` is the reply after a timeout and in transactions."""

    action: _Action
    names: _Names = _first
    nothing: Reply = None
    put: Put | None = None
    # The command acts on the first of its queues that allows it.
    is_choice: bool = False
    # A move that also waits for messages, not only for room.
    waits_for_messages: bool = False
    timeout: Callable[[Words], float] = _no_timeout

    def do(self, world: World, operation: Operation, names: list[str]) -> Reply:
        """Return the reply, or WAITS."""
        try:
            return self.action(world, operation, names)
        except RefusedError as error:
            return Error(str(error))


# Commands that put.


def _putting(put: Put, timeout: Callable[[Words], float] = _no_timeout) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        return _put(world, operation, put, names[0])

    return Command(action, nothing=_FULL, put=put, timeout=timeout)


def _put(world: World, operation: Operation, put: Put, name: str) -> Reply:
    queue = world.queues.get(name)
    if queue is None:
        if not put.creates or operation.has_waited:
            return _NOQUEUE
        queue = world.create(name)
    queue.require_open()
    may_wait = operation.order is not None and put.overflow != "now"
    if may_wait and not operation.has_waited and _earlier_put_waits(world, operation, name):
        return WAITS
    messages = put.messages(operation.words)
    if put.overflow == "overfill" or not (may_wait and (queue.blocks or put.overflow == "wait")):
        result = queue.put(messages, unique=put.unique, overfill=put.overflow == "overfill")
        return put.reply(queue, result if put.unique else len(messages))
    done, new = queue.put_some(messages[operation.done :], unique=put.unique)
    operation.done += done
    operation.new += new
    if operation.done < len(messages):
        return WAITS
    # After a put in parts the length is open: other clients may have taken messages meanwhile.
    if operation.has_waited and len(messages) > 1 and not put.unique:
        return AnyOf(int)
    return put.reply(queue, operation.new)


def _earlier_put_waits(world: World, operation: Operation, name: str) -> bool:
    """Return whether a put of the same server waits for room in the queue. Later puts wait too."""
    return any(
        _command(other).put is not None and _command(other).names(other.words) == [name]
        for other in world.waiting(operation.server)
    )


# Commands that take.


def _taking(
    reply: Callable[[str, list[Item]], Reply],
    *,
    names: _Names = _first,
    count: Callable[[Words], int] = lambda words: 1,
    timeout: Callable[[Words], float] = _no_timeout,
    nothing: Reply = None,
    waits: bool = False,
    must_exist: bool = False,
) -> Command:
    """Return a command that takes from the first queue that has a message."""

    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        queues = [world.queues.get(name) for name in names]
        for name, queue in zip(names, queues, strict=True):
            if queue is not None and queue.messages:
                return reply(name, queue.take_items(count(operation.words)))
        for queue in queues:
            if queue is None and must_exist:
                return _NOQUEUE
            if queue is not None and queue.is_finished and (waits or must_exist):
                return _CLOSED
        return WAITS if waits else nothing

    return Command(action, names, nothing, is_choice=True, timeout=timeout)


def _message(_name: str, items: list[Item]) -> Reply:
    return items[0].message


def _messages(items: list[Item]) -> list[bytes]:
    return [item.message for item in items]


def _name_and_message(name: str, items: list[Item]) -> Reply:
    return [name.encode(), items[0].message]


def _name_and_messages(name: str, items: list[Item]) -> Reply:
    return [name.encode(), _messages(items)]


def _pop(world: World, operation: Operation, names: list[str]) -> Reply:
    """SPOP, LPOP and RPOP, with or without a count."""
    name, _, *count = operation.words
    queue = world.queues.get(names[0])
    if queue is None or not queue.messages:
        return [] if count and name == "SPOP" else None
    return queue.take(count[0]) if count else queue.take()[0]


def _lmpop_count(words: Words) -> int:
    return int(words[-1]) if "COUNT" in words else 1


def _get_many(world: World, names: list[str]) -> list[Item]:
    """memcached's get."""
    return [item for name in names if name in world.queues for item in world.queues[name].take_items(1)]


# Commands that move.


def _move(world: World, operation: Operation, names: list[str]) -> Reply:
    """LMOVE, RPOPLPUSH and their blocking forms."""
    source, sink = names
    origin = world.queues.get(source)
    if origin is None or not origin.messages:
        if _command(operation).waits_for_messages:
            return _CLOSED if origin is not None and origin.is_finished else WAITS
        return None
    return _move_to(world, operation, origin, sink)


def _smove(world: World, operation: Operation, names: list[str]) -> Reply:
    _, source, sink, message = operation.words
    origin = world.queues.get(source)
    if origin is None or message not in origin.messages:
        return 0
    reply = _move_to(world, operation, origin, sink, message)
    return 1 if reply == message else reply


def _move_to(
    world: World, operation: Operation, origin: Queue, name: str, message: bytes | None = None
) -> Reply:
    """Move a message that is there. Return it, or WAITS if there is no room yet."""
    queue = world.queues.get(name) or world.create(name)
    try:
        return origin.move(queue, message)
    except RefusedError as refusal:
        if str(refusal) != reference.FULL or not queue.blocks or operation.order is None:
            raise
        # A server that is notified of the message may detect a little later that the queue is full.
        operation.seen.setdefault(name, (queue.birth, queue.birth - operation.has_waited))
        return WAITS


# Queries, and commands for whole queues.


def _query(missing: Reply, answer: Callable[[Queue, Words], Reply]) -> Command:
    def action(world: World, operation: Operation, names: list[str]) -> Reply:
        queue = world.queues.get(names[0])
        return missing if queue is None else answer(queue, operation.words)

    return Command(action)


def _length(missing: Reply, form: Callable[[int], Reply] = int) -> Command:
    return _query(missing, lambda queue, words: form(queue.length))


def _algebra(combine: Callable[[list[bytes], list[list[bytes]]], list[bytes]]) -> Command:
    def action(world: World, _operation: Operation, names: list[str]) -> Reply:
        contents = [world.queues[name].messages if name in world.queues else [] for name in names]
        return list(dict.fromkeys(combine(contents[0], contents[1:])))

    return Command(action, _all)


def _create(world: World, operation: Operation, names: list[str]) -> Reply:
    """PRESSURE.CREATE q BOUND n OVERFLOW how, or a native Create q n."""
    words = operation.words
    bound, blocks = (words[3], words[5] == "BLOCK") if len(words) > 3 else (words[2], True)
    if names[0] in world.queues:
        return Error("EXISTS")
    world.create(names[0], bound, blocks=blocks)
    return OK


def _close(queue: Queue, _words: Words) -> Reply:
    queue.close()
    return OK


def _deleting(done: Reply, missing: Reply) -> Command:
    return Command(
        lambda world, _, names: missing if world.queues.pop(names[0], None) is None else done,
    )


def _del(world: World, _operation: Operation, names: list[str]) -> Reply:
    return sum(world.queues.pop(name, None) is not None for name in names)


def _exists(world: World, _operation: Operation, names: list[str]) -> Reply:
    return sum(name in world.queues for name in names)


def _flush(queue: Queue, _words: Words) -> Reply:
    queue.flush()
    return []


_POP = Command(_pop)
_PUSH = _putting(Put(lambda words: list(words[2:]), reply=lambda queue, new: queue.length))
_BLPOP = _taking(_name_and_message, names=lambda words: _all(words)[:-1], timeout=_last_word, waits=True)
_LMOVE = Command(_move, _first_two)
_BLMOVE = Command(
    _move, _first_two, nothing=Either((None, _FULL)), waits_for_messages=True, timeout=_last_word
)
_PUT = Put(lambda words: [words[2]], creates=False, reply=lambda queue, new: 1)
_SET = Put(
    lambda words: [Marked(words[3], int(words[2]))],
    overflow="now",
    reply=lambda queue, new: b"STORED" if new else b"NOT_STORED",
)

COMMANDS: dict[str, Command] = {
    "SADD": _putting(Put(lambda words: list(words[2:]), unique=True)),
    "SPOP": _POP,
    "SCARD": _length(0),
    "SISMEMBER": _query(0, lambda queue, words: int(words[2] in queue.messages)),
    "SREM": _query(0, lambda queue, words: sum(queue.remove(words[2:]))),
    "SMEMBERS": _query([], lambda queue, words: queue.visible),
    "SMOVE": Command(_smove, _first_two, nothing=_FULL),
    "SINTER": _algebra(lambda first, others: [m for m in first if all(m in other for other in others)]),
    "SUNION": _algebra(lambda first, others: first + [m for other in others for m in other]),
    "SDIFF": _algebra(lambda first, others: [m for m in first if not any(m in other for other in others)]),
    "LPUSH": _PUSH,
    "RPUSH": _PUSH,
    "LPOP": _POP,
    "RPOP": _POP,
    "LLEN": _length(0),
    "LRANGE": _query([], lambda queue, words: queue.range(words[2], words[3])),
    "LINDEX": _query(None, lambda queue, words: queue.at(words[2])),
    "BLPOP": _BLPOP,
    "BRPOP": _BLPOP,
    # LMPOP n q… LEFT COUNT n, and BLMPOP with a timeout before that.
    "LMPOP": _taking(
        _name_and_messages, names=lambda words: list(words[2 : 2 + words[1]]), count=_lmpop_count
    ),
    "BLMPOP": _taking(
        _name_and_messages,
        names=lambda words: list(words[3 : 3 + words[2]]),
        count=_lmpop_count,
        timeout=lambda words: float(words[1]),
        waits=True,
    ),
    "LMOVE": _LMOVE,
    "RPOPLPUSH": _LMOVE,
    "BLMOVE": _BLMOVE,
    "BRPOPLPUSH": _BLMOVE,
    "DEL": Command(_del, _all),
    "EXISTS": Command(_exists, _all),
    "PRESSURE.CREATE": Command(_create),
    "PRESSURE.EXISTS": Command(_exists),
    "PRESSURE.LENGTH": _length(_NOQUEUE),
    "PRESSURE.CLOSED": _query(_NOQUEUE, lambda queue, words: int(queue.is_closed)),
    "PRESSURE.CLOSE": _query(_NOQUEUE, _close),
    "PRESSURE.DELETE": _deleting(OK, _NOQUEUE),
    # PRESSURE.PUT and PRESSURE.GET with an option: see `RespWire` in wires.py.
    "PUT": _putting(_PUT),
    "PUT NX": _putting(_PUT._replace(unique=True, reply=lambda queue, new: new)),
    "PUT NOWAIT": _putting(_PUT._replace(overflow="now")),
    "PUT OVERFILL": _putting(_PUT._replace(overflow="overfill")),
    "PUT TIMEOUT": _putting(_PUT._replace(overflow="wait"), timeout=_last_word),
    "GET": _taking(_message, waits=True, must_exist=True),
    "GET NOWAIT": _taking(_message, must_exist=True),
    "GET TIMEOUT": _taking(_message, waits=True, must_exist=True, timeout=_last_word),
    # Commands of memcached clients.
    "set": _putting(_SET),
    "add": _putting(_SET._replace(unique=True)),
    "get": Command(lambda world, _, names: _get_many(world, names), _all),
    "get peek": _query([], lambda queue, words: queue.copy().take_items(1)),
    "get t": _taking(lambda _, items: items, waits=True, timeout=_last_word, nothing=[]),
    "scard": _length(b"0", lambda length: b"%d" % length),
    "sismember": _query(b"0", lambda queue, words: b"%d" % (words[2] in queue.messages)),
    "delete": _deleting(b"DELETED", b"NOT_FOUND"),
    "flush": _query([], _flush),
    # Operations of native clients.
    "native create": Command(_create),
    "native put": _putting(_PUT._replace(overflow="now", reply=lambda queue, new: OK)),
    "native get": _taking(_message, must_exist=True),
    "native length": _length(_NOQUEUE),
    "native delete": _deleting(OK, _NOQUEUE),
}


def matches(expected: Reply, found: Reply) -> bool:
    """Return whether a reply is an expected one."""
    if isinstance(expected, AnyOf):
        return isinstance(found, expected.type_)
    if isinstance(expected, Either):
        return any(matches(one, found) for one in expected.replies)
    if isinstance(expected, Item) and isinstance(found, Item):
        return expected.message == found.message and expected.flags in (None, found.flags)
    if isinstance(expected, bytes):
        return isinstance(found, bytes) and expected == found
    if type(expected) is list and type(found) is list:
        return len(expected) == len(found) and all(map(matches, expected, found))
    return type(expected) is type(found) and bool(expected == found)
