"""Programs: the clients, and what they do step by step. A seed decides all of a program.

A flavour decides the servers, the clients and the tables. In `waits` and `workers`, clients wait for each
other on servers with the default settings, for messages and room, or for jobs, and some steps race with the
next one. All others have one command at a time. In `jobs`, `lists` and `logs`, native clients are stopped
between any two of their steps.
"""

from collections.abc import Callable
from typing import NamedTuple

from tests.simulate.tables import (
    BEANSTALK,
    BEANSTALK_THAT_WAITS,
    FEW,
    GROUPS,
    JOBS_THAT_WAIT,
    KEPT,
    KINDS,
    LISTS,
    LOGS,
    MARKED,
    MARKS_OF_MEMCACHED,
    MARKS_OF_NATIVE,
    MARKS_OF_RESP,
    MEMCACHED,
    NATIVE,
    POPS,
    POPS_OF_MEMCACHED,
    READERS,
    READERS_OF_MEMCACHED,
    RESP,
    SETTINGS,
    STEPPED,
    STEPPED_LIVES,
    STEPPED_PRODUCER,
    STRICT_MEMCACHED,
    STRICT_RESP,
    TOGETHER,
    WAITING,
    Chance,
    Make,
    Table,
    job_options,
    some_bound,
    some_bound_of_log,
)
from tests.simulate.world import Words

# Of steps that no client does, but a native client or the clock.
NOBODY = -1


class Step(NamedTuple):
    """Commands that a client sends in one write. Without commands, the client hangs up and reconnects.

    With `races`, the client of the next step sends at the same time.
    """

    client: int
    commands: tuple[Words, ...]
    races: bool = False


class Program(NamedTuple):
    """The flavour, the clients, each with its kind and its server, and the steps."""

    flavour: str
    clients: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]


def _pick(table: Table, c: Chance) -> Words:
    make: Make = c.choices([make for _, make in table], [weight for weight, _ in table])[0]
    return make(c)


def _one_of(table: Table) -> Callable[[Chance], tuple[Words, ...]]:
    return lambda c: (_pick(table, c),)


def _waiting_step(c: Chance) -> tuple[Words, ...]:
    return (_pick(KINDS, c),) if c.random() < 0.15 else _resp_step(c)


def _resp_step(c: Chance) -> tuple[Words, ...]:
    kind = c.random()
    if kind < 0.35:
        return (_pick(RESP, c),)
    if kind < 0.6:
        return (_pick(WAITING, c),)
    if kind < 0.75:
        return tuple(_pick(RESP, c) for _ in range(c.randint(2, 5)))
    if kind < 0.8:
        return tuple(_pick(RESP + WAITING, c) for _ in range(c.randint(2, 4)))
    return _transaction(c, RESP + WAITING)


def _worker_step(c: Chance) -> tuple[Words, ...]:
    return (_pick(JOBS_THAT_WAIT, c),) if c.random() < 0.5 else _resp_step(c)


def _transaction(c: Chance, table: Table) -> tuple[Words, ...]:
    if c.random() < 0.25:
        return (("WATCH", *c.some(2)),)
    commands = tuple(_pick(table, c) for _ in range(c.randint(1, 5)))
    return (("MULTI",), *commands, ("EXEC",) if c.random() < 0.9 else ("DISCARD",))


def _memcached_step(c: Chance) -> tuple[Words, ...]:
    if c.random() < 0.7:
        return (_pick(MEMCACHED, c),)
    return tuple(_pick(MEMCACHED, c) for _ in range(c.randint(2, 5)))


def _strict_step(c: Chance) -> tuple[Words, ...]:
    kind = c.random()
    if kind < 0.85:
        return (_pick(STRICT_RESP, c),)
    commands = tuple(_pick(TOGETHER, c) for _ in range(c.randint(2, 4)))
    return commands if kind < 0.92 else (("MULTI",), *commands, ("EXEC",))


_STEPS: dict[str, dict[str, Callable[[Chance], tuple[Words, ...]]]] = {
    "waits": {
        "resp2": _waiting_step,
        "resp3": _waiting_step,
        "memcached": _memcached_step,
        "native": _one_of(NATIVE),
        "library": _one_of(NATIVE),
    },
    "workers": {
        "resp2": _worker_step,
        "resp3": _worker_step,
        "memcached": _memcached_step,
        "beanstalk": _one_of(BEANSTALK_THAT_WAITS),
    },
    "pops": {
        "resp2": _one_of(POPS),
        "resp3": _one_of(POPS),
        "memcached": _one_of(POPS_OF_MEMCACHED),
    },
    "readers": {
        "resp2": _one_of(READERS),
        "resp3": _one_of(READERS),
        "memcached": _one_of(READERS_OF_MEMCACHED),
    },
    "jobs": {
        "resp2": _strict_step,
        "memcached": _one_of(STRICT_MEMCACHED),
        "beanstalk": _one_of(BEANSTALK),
        "nobody": _one_of(STEPPED),
    },
    "lists": {
        "resp2": lambda c: tuple(_pick(LISTS, c) for _ in range(c.choice((1, 1, 1, 2, 5)))),
        "nobody": _one_of(STEPPED_LIVES),
    },
    "marks": {
        "resp2": _one_of(MARKS_OF_RESP),
        "memcached": _one_of(MARKS_OF_MEMCACHED),
        "native": _one_of(MARKS_OF_NATIVE),
    },
    "logs": {
        "resp2": _one_of(LOGS),
        "nobody": _one_of(STEPPED_PRODUCER),
    },
}
_QUEUES = {"jobs": ("q", "q", "q", "r"), "lists": ("q",), "marks": ("q",), "logs": ("l",), "readers": ("l",)}
# The flavours, and how much of all programs they are.
_WEIGHTS = {"waits": 5, "workers": 2, "pops": 2, "readers": 2, "jobs": 4, "lists": 3, "marks": 2, "logs": 2}
FLAVOURS = tuple(_WEIGHTS)
# Clients that the backend has itself: by the specification, and with the library.
NATIVE_KINDS = ("native", "library")
# Those with clients that wait for each other.
WITH_WAITS = ("waits", "workers", "pops", "readers")

# The share of steps that race with the next one.
_RACES = 0.25


def _clients(c: Chance, flavour: str) -> list[tuple[str, int]]:
    if flavour == "jobs":
        return [
            ("resp2", 0),
            ("resp2", 0),
            ("resp2", 1),
            ("beanstalk", 0),
            ("beanstalk", 1),
            ("memcached", 0),
        ]
    if flavour == "marks":
        return [("resp2", 0), ("memcached", 0), ("memcached", 1), ("native", 0)]
    if flavour in ("logs", "lists"):
        return [("resp2", 0), ("resp2", 1)]
    servers = c.choice((1, 1, 2, 3))
    protocols = ["resp2", "resp3", "memcached"]
    if flavour in ("pops", "readers"):
        kinds = protocols + c.choices(("resp2", "resp3"), k=c.randint(1, 3))
        return [(kind, c.randrange(servers)) for kind in kinds]
    if flavour == "workers":
        kinds = [*protocols, "beanstalk", *c.choices(("resp2", "beanstalk"), k=c.randint(0, 2))]
        return [(kind, c.randrange(servers)) for kind in kinds]
    kinds = protocols + c.choices(protocols, k=c.randint(1, 3))
    kinds += [kind for kind in NATIVE_KINDS if c.random() < 0.3]
    return [(kind, c.randrange(servers)) for kind in kinds]


def _first_steps(c: Chance, flavour: str) -> list[Step]:
    """Return the steps that create the queues."""
    if flavour == "logs":
        bound, overflow = c.choice(((0, "ERROR"), (3, "ERROR"), (3, "OVERWRITE"), (5, "OVERWRITE")))
        steps = [Step(0, (("PRESSURE.CREATE", "l", "TYPE", "LOG", "BOUND", bound, "OVERFLOW", overflow),))]
        return steps + ([Step(0, (("GROUP CREATE", "l", GROUPS[0], "head"),))] if c.random() < 0.5 else [])
    if flavour == "pops":
        return [Step(0, (("PRESSURE.CREATE", name, "ACK", "NEXT", *c.choice(KEPT)),)) for name in c.queues]
    if flavour == "readers":
        steps = [Step(0, (("PRESSURE.CREATE", "l", "TYPE", "LOG", *some_bound_of_log(c)),))]
        some = [name for name in GROUPS if c.random() < 0.7]
        return steps + [Step(0, (("GROUP CREATE", "l", name, "head"),)) for name in some]
    if flavour == "lists":
        return [Step(0, (("PRESSURE.CREATE", "q", *some_bound(c)),))] if c.random() < 0.7 else []
    if flavour == "marks":
        return [Step(0, (("PRESSURE.CREATE", "q"),))]
    if flavour != "jobs":
        return []
    steps = [Step(0, (("PRESSURE.CREATE", "r", *c.rarely("BOUND", 2)),))]
    if c.random() < 0.7:
        steps.append(Step(0, (("PRESSURE.CREATE", "d", *c.rarely("TYPE", "JOBS")),)))
    if c.random() < 0.9:
        steps.append(Step(0, (("PRESSURE.CREATE", "q", *c.choice(SETTINGS)),)))
    if c.random() < 0.2:  # the next ids are in two blocks
        steps += [Step(0, (("RPUSH", "q", *[b"old"] * 60),)), Step(0, (("SREM", "q", b"old"),))]
    steps += [Step(0, (("RPUSH", "q", *c.several()),))] if c.random() < 0.5 else []
    return steps + [Step(0, (("PUT JOB", "q", c.message, *job_options(c)),)) for _ in range(c.randrange(5))]


def make(seed: int, flavours: tuple[str, ...] = FLAVOURS) -> Program:
    """Return the program of a seed."""
    c = Chance(seed)
    flavour = c.choices(flavours, [_WEIGHTS[one] for one in flavours])[0]
    c.queues = _QUEUES.get(flavour, c.queues)
    if flavour not in WITH_WAITS:
        c.messages = MARKED if flavour == "marks" else FEW
    clients = _clients(c, flavour)
    steps = _first_steps(c, flavour)
    kinds = [kind for kind, _ in clients]
    others = [NOBODY] * (2 if "nobody" in _STEPS[flavour] else 0)
    for _ in range(c.randint(5, 40) if flavour in WITH_WAITS else c.randint(20, 60)):
        number = c.choice([*range(len(clients)), *others])
        kind = "nobody" if number == NOBODY else clients[number][0]
        leaves = number != NOBODY and c.random() < (0.15 if flavour == "pops" else 0.06)
        commands = () if leaves else _STEPS[flavour][kind](c)
        if "native" in kinds:
            # By the specification, a native get leaves a token in a queue that is overfilled.
            commands = tuple(
                ("PUT NOWAIT", *words[1:]) if words[0] == "PUT OVERFILL" else words for words in commands
            )
        races = flavour in WITH_WAITS and c.random() < _RACES and kind not in NATIVE_KINDS
        steps.append(Step(number, commands, races and not leaves))
    return Program(flavour, tuple(clients), tuple(steps))
