"""Programs: the commands of several clients, step by step. A seed decides all of a program."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

Words = tuple[Any, ...]

QUEUES = ("a", "b", "c")
_MESSAGES = [b"m%d" % number for number in range(7)]
# Messages that only memcached clients put. Each always has the same flags.
_FLAGGED = [b"f%d" % number for number in range(3)]
# A timeout in seconds, so short that other clients do not act before it ends.
_SHORT = 0.02
_MAX_STEPS = 40


class Step(NamedTuple):
    """Commands that a client sends in one write. Without commands, the client hangs up and reconnects."""

    client: int
    commands: tuple[Words, ...]


class Program(NamedTuple):
    """The clients, each with its kind and its server, and the steps."""

    clients: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]


_Make = Callable[[random.Random], Words]


def _queue(chance: random.Random) -> str:
    return chance.choice(QUEUES)


def _some(chance: random.Random, most: int = 3) -> list[str]:
    return chance.sample(QUEUES, chance.randint(1, most))


def _message(chance: random.Random) -> bytes:
    return chance.choice(_MESSAGES)


def _messages(chance: random.Random, most: int = 4) -> list[bytes]:
    return [_message(chance) for _ in range(chance.randint(1, most))]


def _timeout(chance: random.Random) -> float:
    """Return 0 for no timeout, or a short one."""
    return chance.choice((0, 0, 0, _SHORT))


def _pop(chance: random.Random) -> Words:
    queue = _queue(chance)
    name = chance.choice(("SPOP", "LPOP", "RPOP"))
    return (name, queue) if chance.random() < 0.6 else (name, queue, chance.randint(1, 4))


def _mpop(chance: random.Random) -> Words:
    queues = _some(chance)
    count = () if chance.random() < 0.5 else ("COUNT", chance.randint(1, 4))
    return ("LMPOP", len(queues), *queues, chance.choice(("LEFT", "RIGHT")), *count)


def _create(chance: random.Random) -> Words:
    bound = chance.choice((0, 1, 2, 2, 3, 5))
    queue, overflow = _queue(chance), chance.choice(("BLOCK", "BLOCK", "ERROR"))
    return ("PRESSURE.CREATE", queue, "BOUND", bound, "OVERFLOW", overflow)


def _ends(chance: random.Random) -> Words:
    return chance.choice(("LEFT", "RIGHT")), chance.choice(("LEFT", "RIGHT"))


# Commands with their weights: of Redis clients, those that do not wait for messages and those that do;
# of memcached clients; of native clients.
_RESP: list[tuple[int, _Make]] = [
    (10, lambda c: ("SADD", _queue(c), *_messages(c))),
    (5, lambda c: (c.choice(("LPUSH", "RPUSH")), _queue(c), *_messages(c, 3))),
    (8, _pop),
    (2, lambda c: ("SCARD", _queue(c))),
    (1, lambda c: ("LLEN", _queue(c))),
    (3, lambda c: ("SISMEMBER", _queue(c), _message(c))),
    (3, lambda c: ("SREM", _queue(c), *dict.fromkeys(_messages(c)))),
    (2, lambda c: ("SMEMBERS", _queue(c))),
    (2, lambda c: ("LRANGE", _queue(c), c.randint(-4, 4), c.randint(-4, 4))),
    (1, lambda c: ("LINDEX", _queue(c), c.randint(-4, 4))),
    (3, lambda c: ("SMOVE", _queue(c), _queue(c), _message(c))),
    (1, lambda c: (c.choice(("SINTER", "SUNION", "SDIFF")), *_some(c))),
    (4, _mpop),
    (4, lambda c: ("LMOVE", _queue(c), _queue(c), *_ends(c))),
    (1, lambda c: ("RPOPLPUSH", _queue(c), _queue(c))),
    (2, lambda c: ("DEL", *_some(c, 2))),
    (1, lambda c: ("EXISTS", *_some(c))),
    (5, _create),
    (1, lambda c: ("PRESSURE.EXISTS", _queue(c))),
    (1, lambda c: ("PRESSURE.LENGTH", _queue(c))),
    (1, lambda c: ("PRESSURE.CLOSED", _queue(c))),
    (2, lambda c: ("PRESSURE.CLOSE", _queue(c))),
    (1, lambda c: ("PRESSURE.DELETE", _queue(c))),
    (2, lambda c: (c.choice(("PUT", "PUT NX", "PUT NOWAIT", "PUT OVERFILL")), _queue(c), _message(c))),
    (1, lambda c: ("PUT TIMEOUT", _queue(c), _message(c), _timeout(c))),
    (1, lambda c: ("GET NOWAIT", _queue(c))),
]
_WAITING: list[tuple[int, _Make]] = [
    (6, lambda c: (c.choice(("BLPOP", "BRPOP")), _queue(c), _timeout(c))),
    (5, lambda c: (c.choice(("BLPOP", "BRPOP")), *_some(c), _timeout(c))),
    (5, lambda c: ("BLMPOP", _timeout(c), *_mpop(c)[1:])),
    (5, lambda c: ("BLMOVE", _queue(c), _queue(c), *_ends(c), _timeout(c))),
    (1, lambda c: ("BRPOPLPUSH", _queue(c), _queue(c), _timeout(c))),
    (2, lambda c: ("GET", _queue(c))),
    (1, lambda c: ("GET TIMEOUT", _queue(c), _timeout(c))),
]
_MEMCACHED: list[tuple[int, _Make]] = [
    (8, lambda c: ("set", _queue(c), *_flagged(c))),
    (4, lambda c: ("add", _queue(c), *_flagged(c))),
    (8, lambda c: ("get", *_some(c))),
    (2, lambda c: ("get peek", _queue(c))),
    (4, lambda c: ("get t", _queue(c), _SHORT)),
    (4, lambda c: ("get t", _queue(c), 0)),
    (1, lambda c: ("scard", _queue(c))),
    (1, lambda c: ("sismember", _queue(c), _message(c))),
    (1, lambda c: ("delete", _queue(c))),
    (1, lambda c: ("flush", _queue(c))),
]
_NATIVE: list[tuple[int, _Make]] = [
    (2, lambda c: ("native create", _queue(c), c.choice((0, 1, 2, 3)))),
    (6, lambda c: ("native put", _queue(c), _message(c))),
    (6, lambda c: ("native get", _queue(c))),
    (1, lambda c: ("native length", _queue(c))),
    (1, lambda c: ("native delete", _queue(c))),
]


def _flagged(chance: random.Random) -> Words:
    if chance.random() < 0.5:
        return (0, _message(chance))
    number = chance.randrange(len(_FLAGGED))
    return (number + 5, _FLAGGED[number])


def _pick(table: list[tuple[int, _Make]], chance: random.Random) -> Words:
    make: _Make = chance.choices([make for _, make in table], [weight for weight, _ in table])[0]
    return make(chance)


def _resp_step(chance: random.Random) -> tuple[Words, ...]:
    kind = chance.random()
    every = _RESP + _WAITING
    if kind < 0.35:
        return (_pick(_RESP, chance),)
    if kind < 0.6:
        return (_pick(_WAITING, chance),)
    if kind < 0.75:
        return tuple(_pick(_RESP, chance) for _ in range(chance.randint(2, 5)))
    if kind < 0.8:
        return tuple(_pick(every, chance) for _ in range(chance.randint(2, 4)))
    if kind < 0.85:
        return (("WATCH", *_some(chance, 2)),)
    commands = tuple(_pick(every, chance) for _ in range(chance.randint(1, 5)))
    return (("MULTI",), *commands, ("EXEC",) if chance.random() < 0.9 else ("DISCARD",))


def _memcached_step(chance: random.Random) -> tuple[Words, ...]:
    if chance.random() < 0.7:
        return (_pick(_MEMCACHED, chance),)
    return tuple(_pick(_MEMCACHED, chance) for _ in range(chance.randint(2, 5)))


_STEPS: dict[str, Callable[[random.Random], tuple[Words, ...]]] = {
    "resp2": _resp_step,
    "resp3": _resp_step,
    "memcached": _memcached_step,
    "native": lambda chance: (_pick(_NATIVE, chance),),
    "library": lambda chance: (_pick(_NATIVE, chance),),
}


def make(seed: int) -> Program:
    """Return the program of a seed."""
    chance = random.Random(seed)
    servers = chance.choice((1, 1, 2, 3))
    protocols = ["resp2", "resp3", "memcached"]
    kinds = protocols + chance.choices(protocols, k=chance.randint(1, 3))
    kinds += [kind for kind in ("native", "library") if chance.random() < 0.3]
    clients = tuple((kind, chance.randrange(servers)) for kind in kinds)
    steps = []
    for _ in range(chance.randint(5, _MAX_STEPS)):
        number = chance.randrange(len(clients))
        kind = clients[number][0]
        commands = () if chance.random() < 0.06 else _STEPS[kind](chance)
        if "native" in kinds:
            # By the specification, a native get leaves a token in a queue that is overfilled.
            commands = tuple(
                ("PUT NOWAIT", *words[1:]) if words[0] == "PUT OVERFILL" else words for words in commands
            )
        steps.append(Step(number, commands))
    return Program(clients, tuple(steps))
