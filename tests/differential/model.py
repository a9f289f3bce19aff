"""The model: what servers that share queues may reply, in plain Python.

A `World` is one possible state: the queues, and what each client has sent and has not been replied to.
`outcomes` returns all states in which nothing more can happen. There are several when the documentation
leaves the order open: clients of one server are served first come, first served, those of different servers
in any order; and what a client sends in one pipeline may be mixed with what others wait for.

Every command is one line of `COMMANDS`. Its function changes the world and returns the reply, or `WAITS`.
Expiry and errors of syntax are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Words = tuple[Any, ...]
Reply = Any
# At most so many states for one step; a program that leads to more ends there.
MOST_STATES = 400


class Error(NamedTuple):
    """An error reply, of which only the code is compared."""

    code: str


class AnyOf(NamedTuple):
    """A reply of which only the type is compared."""

    type_: type


class Either(NamedTuple):
    """One of several replies, where the documentation leaves it open."""

    replies: tuple[Any, ...]


class Item(NamedTuple):
    """A message that memcached returns. Flags of None stand for any."""

    message: bytes
    flags: int | None


class _Waits:
    def __repr__(self) -> str:
        return "(waits)"


WAITS = _Waits()
OK = b"OK"
_NOQUEUE, _CLOSED, _FULL = Error("NOQUEUE"), Error("CLOSED"), Error("FULL")


class TooManyStatesError(Exception):
    """A step has more outcomes than can be followed."""


@dataclass
class Queue:
    """One queue. `entries` are messages with their flags, the oldest first."""

    bound: int
    blocks: bool
    born: int
    closed: bool = False
    entries: list[tuple[bytes, int]] = field(default_factory=list)
    # Messages of which copies with different flags were queued at a time: any copy may come with any of them.
    mixed: set[bytes] = field(default_factory=set)
    produced: int = 0
    consumed: int = 0

    def copy(self) -> Queue:
        found = copy(self)
        found.entries, found.mixed = list(self.entries), set(self.mixed)
        return found

    @property
    def messages(self) -> list[bytes]:
        return [message for message, _ in self.entries]

    @property
    def room(self) -> float:
        return max(0, self.bound - len(self.entries)) if self.bound else float("inf")

    def push(self, message: bytes, flags: int = 0) -> None:
        if any(other == message and its != flags for other, its in self.entries):
            self.mixed.add(message)
        self.entries.append((message, flags))
        self.produced += 1

    def take(self, count: int) -> list[Item]:
        taken, self.entries = self.entries[:count], self.entries[count:]
        self.consumed += len(taken)
        return [Item(message, None if message in self.mixed else flags) for message, flags in taken]

    def remove(self, message: bytes) -> int:
        """Remove all copies; return 1 if there was one."""
        kept = [entry for entry in self.entries if entry[0] != message]
        removed = len(self.entries) - len(kept)
        self.entries, self.consumed = kept, self.consumed + removed
        return min(removed, 1)

    @property
    def version(self) -> tuple[Any, ...]:
        """What changes when the queue does."""
        return (self.born, self.closed, self.produced, self.consumed)


@dataclass
class Operation:
    """A command that is being done. `order` is its place among all that wait; None if it may not wait."""

    client: int
    server: int
    words: Words
    order: int | None = None
    waits: bool = False
    # For a put: how many of its messages are done, and how many of these were new.
    done: int = 0
    new: int = 0
    # Each queue's birth, 0 if it did not exist, and how many births there had been, when that was known last.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> Operation:
        found = copy(self)
        found.seen = dict(self.seen)
        return found


@dataclass
class Client:
    """One client: at most one operation that waits, the commands behind it, and the replies not read yet."""

    server: int
    pending: list[Words] = field(default_factory=list)
    waiting: Operation | None = None
    outbox: list[Reply] = field(default_factory=list)
    queued: list[Words] | None = None
    watched: dict[str, Any] = field(default_factory=dict)
    # Equal puts of a pipeline are done as one: so many replies come when the one that waits has ended.
    last_put: Words = ()
    held: int = 0
    # What a get of several queues has found in the first of them.
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
            self.held,
            list(self.found),
        )

    @property
    def folded_behind(self) -> int:
        """How many of the next commands are puts equal to the last one."""
        found = 0
        for words in self.pending:
            if words[0] not in _FOLDED or (_FOLDED[words[0]], words[1]) != self.last_put:
                break
            found += 1
        return found

    @property
    def is_idle(self) -> bool:
        return not (self.pending or self.waiting or self.outbox)


class World:
    """One possible state of everything."""

    def __init__(self, servers: list[int]) -> None:
        """`servers`: of each client, the server's number."""
        self.queues: dict[str, Queue] = {}
        self.births: dict[str, int] = {}
        self.clients = [Client(server) for server in servers]
        self.clock = 0

    def copy(self) -> World:
        found = copy(self)
        found.queues = {name: queue.copy() for name, queue in self.queues.items()}
        found.births = dict(self.births)
        found.clients = [client.copy() for client in self.clients]
        return found

    def key(self) -> str:
        """Equal for equal states."""
        return repr((sorted(self.queues.items()), sorted(self.births.items()), self.clients, self.clock))

    def create(self, name: str, bound: int = 0, *, blocks: bool = True) -> Queue:
        self.births[name] = self.births.get(name, 0) + 1
        self.queues[name] = Queue(bound, blocks, self.births[name])
        return self.queues[name]

    def blocked(self, server: int) -> int:
        """Return how many clients of the server wait."""
        return sum(client.server == server and client.waiting is not None for client in self.clients)

    def hang_up(self, number: int) -> None:
        """The client closes its connection, and another takes its place."""
        self.clients[number] = Client(self.clients[number].server)

    @property
    def is_settled(self) -> bool:
        """Whether all replies have been read."""
        return all(len(client.outbox) <= (client.held if client.waiting else 0) for client in self.clients)

    def waiting(self, server: int | None = None) -> list[Operation]:
        """Return the operations that wait, first come first."""
        found = [
            client.waiting
            for client in self.clients
            if client.waiting and (server is None or client.server == server)
        ]
        return sorted(found, key=lambda operation: operation.order or 0)

    @property
    def moves_wait(self) -> bool:
        """Whether a command waits to move a message."""
        return any(COMMANDS[o.words[0]].does in (_move, _smove) for o in self.waiting())

    def moves_within(self, name: str) -> bool:
        """Whether a command waits to move a message of this queue to its end."""
        moves = [o.words[1:3] for o in self.waiting() if COMMANDS[o.words[0]].does is _move]
        return (name, name) in moves

    # What happens.

    def outcomes(self) -> list[World]:
        """Return all states to which this one leads, in which nothing more has to happen."""
        found: dict[str, World] = {}
        seen: set[str] = set()
        todo = [self]
        while todo:
            world = todo.pop()
            key = world.key()
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MOST_STATES:
                raise TooManyStatesError
            must = False
            for following, is_forced in world._next():
                must = must or is_forced
                todo.append(following)
            if not must:
                found[key] = world
        return list(found.values())

    def _next(self) -> Iterator[tuple[World, bool]]:
        """What may happen next, each as a world, and whether it must happen before all is quiet."""
        for number, client in enumerate(self.clients):
            if client.pending and client.waiting is None:
                world = self.copy()
                world._execute(number)
                yield world, True
                words = client.pending[0]
                if words[0] == "BLMPOP" and self._puts_wait(COMMANDS["BLMPOP"].names(words)):
                    # It may leave some of what there is to clients that wait, or have waited, elsewhere.
                    for fewer in range(1, _lmpop_count(words)):
                        world = self.copy()
                        world.clients[number].pending[0] = (*words[:-1], fewer)
                        world._execute(number)
                        yield world, True
                if words[0] in _NEEDS_A_ROLE and self._is_waited_on(words[1]):
                    # A server that waits in line with native clients keeps the role when its turn has come.
                    world = self.copy()
                    del world.clients[number].pending[0]
                    world.clients[number].outbox.append(Error("INUSE"))
                    yield world, True
        ahead: list[tuple[int, str]] = []
        puts: set[tuple[int, str]] = set()
        for operation in self.waiting():
            yield from self._goes_on(operation, ahead, puts)

    def _is_empty(self, name: str) -> bool:
        return name not in self.queues or not self.queues[name].entries

    def _puts_wait(self, names: list[str]) -> bool:
        return any(COMMANDS[o.words[0]].put is not None and o.words[1] in names for o in self.waiting())

    def _is_waited_on(self, name: str) -> bool:
        return any(name in COMMANDS[o.words[0]].names(o.words) for o in self.waiting())

    def _goes_on(
        self, operation: Operation, ahead: list[tuple[int, str]], puts: set[tuple[int, str]]
    ) -> Iterator[tuple[World, bool]]:
        command = COMMANDS[operation.words[0]]
        names = command.names(operation.words)
        gone = [name for name in operation.seen if self._is_gone(operation, name)]
        # A move that waits for messages by now may not notice that the queue to which it goes is away.
        has_moved_on = command.does is _move and self._is_empty(names[0]) and names[0] not in gone
        is_gone = bool(gone) and not has_moved_on
        if gone or any(self._is_vague(operation, name) for name in operation.seen):
            world = self.copy()
            world._reply(operation.client, _NOQUEUE)
            yield world, True
            if world.clients[operation.client].folded_behind:
                # Equal puts of a pipeline may be done as one, and end as one.
                world = world.copy()
                client = world.clients[operation.client]
                client.outbox += [_NOQUEUE] * client.folded_behind
                del client.pending[: client.folded_behind]
                yield world, True
            if not is_gone:
                # Maybe the server has not noticed that the queue was away.
                world = self.copy()
                world._note(world._waiting(operation))
                yield world, True
            return
        place = (operation.server, names[0])
        is_first = command.put is None or place not in puts
        if command.put is not None:
            puts.add(place)
        if command.timeout(operation.words):
            # Its time is short, but others may act before it is up.
            world = self.copy()
            world._reply(operation.client, _FULL if command.put is not None else command.nothing)
            yield world, True
        yield from self._takes_fewer(operation, names)
        for name in names if command.is_choice else names[:1]:
            if (operation.server, name) in ahead:
                continue
            world = self.copy()
            again = world._waiting(operation)
            before = (again.done, again.new, dict(again.seen))
            reply = command.does(world, again, [name] if command.is_choice else names)
            if reply is not WAITS:
                # One that waits on several queues may be overtaken while the server tries another of them.
                if command.put is None and not (command.is_choice and len(names) > 1):
                    ahead.append((operation.server, name))
                world._reply(operation.client, reply)
                # A move that waits for room is told when there is some, also if its message has gone.
                yield world, is_first and not (command.does is _move and reply is None)
            elif (again.done, again.new, again.seen) != before:
                yield world, is_first

    def _takes_fewer(self, operation: Operation, names: list[str]) -> Iterator[tuple[World, bool]]:
        """A BLMPOP that waits may leave some of what comes to clients that wait elsewhere, or did so."""
        for fewer in range(1, _lmpop_count(operation.words) if operation.words[0] == "BLMPOP" else 1):
            for name in names:
                world = self.copy()
                again = world._waiting(operation)
                again.words = (*operation.words[:-1], fewer)
                reply = COMMANDS["BLMPOP"].does(world, again, [name])
                if reply is not WAITS:
                    world._reply(operation.client, reply)
                    yield world, True

    def _waiting(self, operation: Operation) -> Operation:
        """Return this world's copy of an operation that waits."""
        found = self.clients[operation.client].waiting
        assert found is not None
        return found

    def _is_gone(self, operation: Operation, name: str) -> bool:
        """Whether the queue existed and was deleted, and nothing else has happened."""
        born, births = operation.seen.get(name, (0, 0))
        return bool(born) and name not in self.queues and self.births.get(name, 0) == births

    def _is_vague(self, operation: Operation, name: str) -> bool:
        """Whether the queue was deleted and maybe nobody has noticed, or created and deleted."""
        born, births = operation.seen.get(name, (0, 0))
        queue = self.queues.get(name)
        if queue is None:
            return self.births.get(name, 0) != births
        return born not in (0, queue.born)

    def _note(self, operation: Operation) -> None:
        """The operation has found its queues as they are now; of a move, the one from which it takes."""
        command = COMMANDS[operation.words[0]]
        names = command.names(operation.words)
        for name in operation.seen or (names if command.is_choice else names[:1]):
            queue = self.queues.get(name)
            operation.seen[name] = (queue.born if queue else 0, self.births.get(name, 0))

    def _reply(self, number: int, reply: Reply) -> None:
        client = self.clients[number]
        client.waiting = None
        client.outbox.append(reply)

    def _execute(self, number: int) -> None:
        """Do the next command of the client."""
        client = self.clients[number]
        words = client.pending.pop(0)
        if words[0] in _TRANSACTIONS:
            client.outbox.append(_TRANSACTIONS[words[0]](self, client, words))
            return
        if client.queued is not None:
            client.queued.append(words)
            client.outbox.append(b"QUEUED")
            return
        if words[0] == "get" and len(words) > 2:
            # It takes from one queue after the other, and clients that wait may act in between.
            client.pending[:0] = [("get more", *words[2:])]
            client.found = _get_many(self, [words[1]])
            return
        if words[0] == "get more":
            client.found += _get_many(self, [words[1]])
            if len(words) > 2:
                client.pending[:0] = [("get more", *words[2:])]
            else:
                client.outbox.append(client.found)
                client.found = []
            return
        put = (_FOLDED[words[0]], words[1]) if words[0] in _FOLDED else ()
        client.held = client.held + 1 if put and put == client.last_put else 0
        client.last_put = put
        self.clock += 1
        operation = Operation(number, client.server, words, self.clock)
        self._note(operation)
        command = COMMANDS[words[0]]
        reply = command.does(self, operation, command.names(words))
        if reply is not WAITS:
            client.outbox.append(reply)
        else:
            operation.waits = True
            client.waiting = operation


# Transactions.

# Puts that are done as one if they follow each other.
_FOLDED = {"SADD": "add", "LPUSH": "put", "RPUSH": "put"}
_NEEDS_A_ROLE = ("native put", "native get")


def _multi(_world: World, client: Client, _words: Words) -> Reply:
    client.queued = []
    return OK


def _exec(world: World, client: Client, _words: Words) -> Reply:
    queued, client.queued = client.queued or [], None
    watched, client.watched = client.watched, {}
    if any(_version(world, name) != version for name, version in watched.items()):
        return None
    replies = []
    for words in queued:
        operation = Operation(-1, client.server, words)
        world._note(operation)
        command = COMMANDS[words[0]]
        reply = command.does(world, operation, command.names(words))
        replies.append(command.nothing if reply is WAITS else reply)
    return replies


def _discard(_world: World, client: Client, _words: Words) -> Reply:
    client.queued = None
    client.watched = {}
    return OK


def _watch(world: World, client: Client, words: Words) -> Reply:
    for name in words[1:]:
        client.watched.setdefault(name, _version(world, name))
    return OK


def _unwatch(_world: World, client: Client, _words: Words) -> Reply:
    client.watched = {}
    return OK


def _version(world: World, name: str) -> Any:
    queue = world.queues.get(name)
    return queue.version if queue else None


_TRANSACTIONS: dict[str, Callable[[World, Client, Words], Reply]] = {
    "MULTI": _multi,
    "EXEC": _exec,
    "DISCARD": _discard,
    "WATCH": _watch,
    "UNWATCH": _unwatch,
}


# Puts.


class Put(NamedTuple):
    """How a command puts: its messages, and what happens when there is no room or no queue."""

    messages: Callable[[Words], list[bytes]]
    unique: bool = False
    creates: bool = True
    # "queue" is as the queue is set, "wait" and "now" whatever it is set to.
    overflow: str = "queue"
    flags: Callable[[Words], int] = lambda words: 0
    reply: Callable[[Queue, int], Reply] = lambda queue, new: new


def _put(world: World, operation: Operation, how: Put, name: str) -> Reply:
    queue = world.queues.get(name)
    if queue is None:
        if not how.creates or operation.waits:
            return _NOQUEUE
        queue = world.create(name)
    if queue.closed:
        return _CLOSED
    may_wait = operation.order is not None and how.overflow != "now"
    if may_wait and not operation.waits and _others_wait(world, operation, name):
        return WAITS
    messages, flags = how.messages(operation.words), how.flags(operation.words)
    if how.overflow == "overfill" or not (may_wait and (queue.blocks or how.overflow == "wait")):
        fresh = (
            list(dict.fromkeys(m for m in messages if m not in queue.messages)) if how.unique else messages
        )
        if len(fresh) > queue.room and how.overflow != "overfill":
            return _FULL
        for message in fresh:
            queue.push(message, flags)
        return how.reply(queue, len(fresh))
    while operation.done < len(messages):
        message = messages[operation.done]
        if not (how.unique and message in queue.messages):
            if not queue.room:
                return WAITS
            queue.push(message, flags)
            operation.new += 1
        operation.done += 1
    reply = how.reply(queue, operation.new)
    # The length after a put that came in parts: others may have taken some meanwhile.
    return AnyOf(int) if operation.waits and len(messages) > 1 and not how.unique else reply


def _others_wait(world: World, operation: Operation, name: str) -> bool:
    """Whether a put of the same server waits for room there: nobody puts before it."""
    return any(
        COMMANDS[other.words[0]].put is not None and COMMANDS[other.words[0]].names(other.words) == [name]
        for other in world.waiting(operation.server)
    )


# Takes.


def _take(
    world: World, operation: Operation, names: list[str], count: int, *, waits: bool, exists: bool = False
) -> tuple[str, list[Item]] | Reply:
    """Take from the first queue that has a message. `exists`: a queue that does not exist is an error."""
    for name in names:
        queue = world.queues.get(name)
        if queue is not None and queue.entries:
            return name, queue.take(count)
    for name in names:
        queue = world.queues.get(name)
        if queue is None and exists:
            return _NOQUEUE
        if queue is not None and queue.closed and (waits or exists):
            return _CLOSED
    return WAITS if waits else None


def _get(reply: Callable[[str, list[Item]], Reply], count: Callable[[Words], int], **how: bool) -> _Does:
    def does(world: World, operation: Operation, names: list[str]) -> Reply:
        wanted = count(operation.words)
        taken = _take(
            world, operation, names, wanted, waits=how.get("waits", False), exists=how.get("exists", False)
        )
        return reply(*taken) if type(taken) is tuple else taken

    return does


def _messages(items: list[Item]) -> list[bytes]:
    return [item.message for item in items]


def _move(world: World, operation: Operation, names: list[str]) -> Reply:
    """LMOVE and its like."""
    words = operation.words
    source, sink = words[1], words[2]
    origin = world.queues.get(source)
    if origin is None or not origin.entries:
        if COMMANDS[words[0]].waits_for_messages:
            return _CLOSED if origin is not None and origin.closed else WAITS
        return None
    message = origin.entries[0][0]
    if source == sink:
        if origin.closed:
            return _CLOSED
        origin.take(1)
        origin.push(message)
        return message
    refusal = _put_one(world, operation, sink, message, unique=False)
    if refusal is None:
        origin.take(1)
        return message
    return refusal


def _smove(world: World, operation: Operation, names: list[str]) -> Reply:
    _, source, sink, message = operation.words
    origin = world.queues.get(source)
    if origin is None or message not in origin.messages:
        return 0
    if source == sink:
        return 1
    refusal = _put_one(world, operation, sink, message, unique=True)
    if refusal is None:
        origin.remove(message)
        return 1
    return refusal


def _put_one(world: World, operation: Operation, name: str, message: bytes, *, unique: bool) -> Reply:
    """Put a message that is moved. Return None if it has been put."""
    queue = world.queues.get(name)
    if queue is None:
        queue = world.create(name)
    if queue.closed:
        return _CLOSED
    if not (unique and message in queue.messages):
        if not queue.room:
            if not queue.blocks or operation.order is None:
                return _FULL
            # A server that is told of the message may find out a little later that there is no room.
            operation.seen.setdefault(name, (queue.born, queue.born - operation.waits))
            return WAITS
        queue.push(message)
    return None


# Questions, and queues as a whole.


def _ask(missing: Reply, answer: Callable[[Queue, Words], Reply]) -> _Does:
    def does(world: World, operation: Operation, names: list[str]) -> Reply:
        queue = world.queues.get(names[0])
        return missing if queue is None else answer(queue, operation.words)

    return does


def _create(world: World, operation: Operation, names: list[str]) -> Reply:
    """PRESSURE.CREATE q BOUND n OVERFLOW how."""
    if names[0] in world.queues:
        return Error("EXISTS")
    world.create(names[0], operation.words[3], blocks=operation.words[5] == "BLOCK")
    return OK


def _native_create(world: World, operation: Operation, names: list[str]) -> Reply:
    if names[0] in world.queues:
        return Error("EXISTS")
    world.create(names[0], operation.words[2])
    return OK


def _close(world: World, _operation: Operation, names: list[str]) -> Reply:
    queue = world.queues.get(names[0])
    if queue is None:
        return _NOQUEUE
    if queue.closed:
        return _CLOSED
    queue.closed = True
    return OK


def _delete(done: Reply, missing: Reply) -> _Does:
    def does(world: World, _operation: Operation, names: list[str]) -> Reply:
        return missing if world.queues.pop(names[0], None) is None else done

    return does


def _del(world: World, _operation: Operation, names: list[str]) -> Reply:
    return sum(world.queues.pop(name, None) is not None for name in names)


def _exists(world: World, _operation: Operation, names: list[str]) -> Reply:
    return sum(name in world.queues for name in names)


def _flush(world: World, _operation: Operation, names: list[str]) -> Reply:
    queue = world.queues.get(names[0])
    if queue is not None:
        queue.take(len(queue.entries))
    return []


def _srem(queue: Queue, words: Words) -> Reply:
    return sum(queue.remove(message) for message in words[2:])


def _range(queue: Queue, words: Words) -> Reply:
    first, last = words[2], words[3]
    length = len(queue.entries)
    first = max(0, first + length if first < 0 else first)
    last = last + length if last < 0 else last
    return queue.messages[first : last + 1] if last >= 0 else []


def _index(queue: Queue, words: Words) -> Reply:
    place = words[2] + len(queue.entries) if words[2] < 0 else words[2]
    return queue.messages[place] if 0 <= place < len(queue.entries) else None


def _algebra(combine: Callable[[list[bytes], list[list[bytes]]], list[bytes]]) -> _Does:
    def does(world: World, _operation: Operation, names: list[str]) -> Reply:
        contents = [world.queues[name].messages if name in world.queues else [] for name in names]
        return list(dict.fromkeys(combine(contents[0], contents[1:])))

    return does


def _get_many(world: World, names: list[str]) -> list[Item]:
    """memcached's get."""
    return [item for name in names if name in world.queues for item in world.queues[name].take(1)]


def _peek(queue: Queue, _words: Words) -> Reply:
    return copy(queue).take(1)


# The table.

_Does = Callable[[World, Operation, list[str]], Reply]


class Command(NamedTuple):
    """What a command does, on which queues, and its reply if it has waited in vain or may not wait."""

    does: _Does
    names: Callable[[Words], list[str]] = lambda words: [words[1]]
    nothing: Reply = None
    put: Put | None = None
    # One of several queues is enough for it.
    is_choice: bool = False
    # A move that waits for messages too.
    waits_for_messages: bool = False
    timeout: Callable[[Words], float] = lambda words: 0


def _putting(put: Put, timeout: Callable[[Words], float] = lambda words: 0) -> Command:
    def does(world: World, operation: Operation, names: list[str]) -> Reply:
        return _put(world, operation, put, names[0])

    return Command(does, nothing=_FULL, put=put, timeout=timeout)


def _one(_name: str, items: list[Item]) -> Reply:
    return items[0].message


def _many(_name: str, items: list[Item]) -> Reply:
    return _messages(items)


def _named(name: str, items: list[Item]) -> Reply:
    return [name.encode(), items[0].message]


def _named_many(name: str, items: list[Item]) -> Reply:
    return [name.encode(), _messages(items)]


def _items(_name: str, items: list[Item]) -> Reply:
    return items


def _rest(words: Words) -> list[bytes]:
    return list(words[2:])


def _third(words: Words) -> list[bytes]:
    return [words[2]]


def _taking(
    reply: Callable[[str, list[Item]], Reply],
    *,
    names: Callable[[Words], list[str]] = lambda words: [words[1]],
    count: Callable[[Words], int] = lambda words: 1,
    timeout: Callable[[Words], float] = lambda words: 0,
    nothing: Reply = None,
    **how: bool,
) -> Command:
    does = _get(reply, count, **how)
    if nothing is None:
        return Command(does, names, is_choice=True, timeout=timeout)

    def not_none(world: World, operation: Operation, names: list[str]) -> Reply:
        taken = does(world, operation, names)
        return nothing if taken is None else taken

    return Command(not_none, names, nothing, is_choice=True, timeout=timeout)


def _spop(world: World, operation: Operation, names: list[str]) -> Reply:
    """SPOP and LPOP, with a count or without."""
    words = operation.words
    queue = world.queues.get(names[0])
    with_count = len(words) > 2
    if with_count:
        missing: Reply = [] if words[0] == "SPOP" else None
        if queue is None or (not queue.entries and (words[0] == "SPOP" or words[2])):
            return missing
        return _messages(queue.take(words[2]))
    return queue.take(1)[0].message if queue is not None and queue.entries else None


def _last(words: Words) -> float:
    return float(words[-1])


def _lmpop_count(words: Words) -> int:
    return int(words[-1]) if "COUNT" in words else 1


_LENGTH = Command(_ask(0, lambda queue, words: len(queue.entries)))
_SPOP = Command(_spop)
_PUSH = _putting(Put(_rest, reply=lambda queue, new: len(queue.entries)))
_BLPOP = _taking(_named, names=lambda words: list(words[1:-1]), timeout=_last, waits=True)
_LMOVE = Command(_move, names=lambda words: list(words[1:3]))
_BLMOVE = Command(
    _move,
    names=lambda words: list(words[1:3]),
    nothing=Either((None, _FULL)),
    waits_for_messages=True,
    timeout=_last,
)
_SET_REPLY = b"STORED"

COMMANDS: dict[str, Command] = {
    "SADD": _putting(Put(_rest, unique=True)),
    "SPOP": _SPOP,
    "SCARD": _LENGTH,
    "SISMEMBER": Command(_ask(0, lambda queue, words: int(words[2] in queue.messages))),
    "SREM": Command(_ask(0, _srem)),
    "SMEMBERS": Command(_ask([], lambda queue, words: queue.messages)),
    "SMOVE": Command(_smove, names=lambda words: list(words[1:3]), nothing=_FULL),
    "SINTER": Command(
        _algebra(lambda first, others: [m for m in first if all(m in other for other in others)]),
        names=lambda words: list(words[1:]),
    ),
    "SUNION": Command(
        _algebra(lambda first, others: first + [m for other in others for m in other]),
        names=lambda words: list(words[1:]),
    ),
    "SDIFF": Command(
        _algebra(lambda first, others: [m for m in first if not any(m in other for other in others)]),
        names=lambda words: list(words[1:]),
    ),
    "LPUSH": _PUSH,
    "RPUSH": _PUSH,
    "LPOP": _SPOP,
    "RPOP": _SPOP,
    "LLEN": _LENGTH,
    "LRANGE": Command(_ask([], _range)),
    "LINDEX": Command(_ask(None, _index)),
    "BLPOP": _BLPOP,
    "BRPOP": _BLPOP,
    # LMPOP n q… LEFT COUNT n, and BLMPOP with a timeout before that.
    "LMPOP": _taking(_named_many, names=lambda words: list(words[2 : 2 + words[1]]), count=_lmpop_count),
    "BLMPOP": _taking(
        _named_many,
        names=lambda words: list(words[3 : 3 + words[2]]),
        count=_lmpop_count,
        timeout=lambda words: float(words[1]),
        waits=True,
    ),
    "LMOVE": _LMOVE,
    "RPOPLPUSH": _LMOVE,
    "BLMOVE": _BLMOVE,
    "BRPOPLPUSH": _BLMOVE,
    "DEL": Command(_del, names=lambda words: list(words[1:])),
    "EXISTS": Command(_exists, names=lambda words: list(words[1:])),
    "PRESSURE.CREATE": Command(_create),
    "PRESSURE.EXISTS": Command(_exists),
    "PRESSURE.LENGTH": Command(_ask(_NOQUEUE, lambda queue, words: len(queue.entries))),
    "PRESSURE.CLOSED": Command(_ask(_NOQUEUE, lambda queue, words: int(queue.closed))),
    "PRESSURE.CLOSE": Command(_close),
    "PRESSURE.DELETE": Command(_delete(OK, _NOQUEUE)),
    # Forms of PRESSURE.PUT and PRESSURE.GET: see `sent` in wires.py.
    "PUT": _putting(Put(_third, creates=False, reply=lambda queue, new: 1)),
    "PUT NX": _putting(Put(_third, unique=True, creates=False)),
    "PUT NOWAIT": _putting(Put(_third, creates=False, overflow="now", reply=lambda queue, new: 1)),
    "PUT OVERFILL": _putting(Put(_third, creates=False, overflow="overfill", reply=lambda queue, new: 1)),
    "PUT TIMEOUT": _putting(
        Put(_third, creates=False, overflow="wait", reply=lambda queue, new: 1), timeout=_last
    ),
    "GET": _taking(_one, waits=True, exists=True),
    "GET NOWAIT": _taking(_one, exists=True),
    "GET TIMEOUT": _taking(_one, waits=True, exists=True, timeout=_last),
    # memcached's.
    "set": _putting(
        Put(
            lambda words: [words[3]],
            overflow="now",
            flags=lambda words: int(words[2]),
            reply=lambda queue, new: _SET_REPLY,
        )
    ),
    "add": _putting(
        Put(
            lambda words: [words[3]],
            unique=True,
            overflow="now",
            flags=lambda words: int(words[2]),
            reply=lambda queue, new: _SET_REPLY if new else b"NOT_STORED",
        )
    ),
    "get": Command(lambda world, _, names: _get_many(world, names), names=lambda words: list(words[1:])),
    "get peek": Command(_ask([], _peek)),
    "get t": _taking(_items, waits=True, timeout=_last, nothing=[]),
    "scard": Command(_ask(b"0", lambda queue, words: b"%d" % len(queue.entries))),
    "sismember": Command(_ask(b"0", lambda queue, words: b"%d" % (words[2] in queue.messages))),
    "delete": Command(_delete(b"DELETED", b"NOT_FOUND")),
    "flush": Command(_flush),
    # Native clients'.
    "native create": Command(_native_create),
    "native put": _putting(Put(_third, creates=False, overflow="now", reply=lambda queue, new: OK)),
    "native get": _taking(_one, exists=True),
    "native length": Command(_ask(_NOQUEUE, lambda queue, words: len(queue.entries))),
    "native delete": Command(_delete(OK, _NOQUEUE)),
}


def matches(expected: Reply, found: Reply) -> bool:
    """Whether a reply is one that is expected."""
    if isinstance(expected, AnyOf):
        return isinstance(found, expected.type_)
    if isinstance(expected, Either):
        return any(matches(one, found) for one in expected.replies)
    if isinstance(expected, Item) and isinstance(found, Item):
        return expected.message == found.message and expected.flags in (None, found.flags)
    if type(expected) is list and type(found) is list:
        return len(expected) == len(found) and all(map(matches, expected, found))
    return type(expected) is type(found) and bool(expected == found)
