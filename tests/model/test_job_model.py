"""Jobs over RESP, beanstalk and memcached, with native clients between any two of their commands.

The reference (tests/support/reference) predicts every reply, and where each job is. Time passes only where
the test says so: it lets a delay or a reservation end by changing its time in the backend, which is all that
the script looks at.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.model.job_world import PREFIX, Keys, World, base_of, read_keys
from tests.model.model_settings import model_settings
from tests.model.replies import code_or_reply, predicted
from tests.support.native import NativeError, NativeSteps, Steps
from tests.support.programs import Valkey
from tests.support.reference.jobs import BURIED, DELAYED, READY, RESERVED, STATES, Job
from tests.support.reference.queue import Marked, RefusedError
from tests.support.reference.queues import Queues

SETTINGS = settings(
    model_settings("PRESSURE_MODEL_EXAMPLES", 50),
    stateful_step_count=50,
    report_multiple_bugs=False,
    phases=[Phase.generate] + ([] if __import__("os").environ.get("NOSHRINK") else [Phase.shrink]),
)
# Only a few, so that they repeat.
MESSAGES = [b"", b"a", b"bb", b"c c", b"\xff\r\n\x00"]
LONG = 100  # seconds: no time to run and no delay ends by itself
MAX_NATIVE = 3
# The errors of the other protocols, by the code that RESP has.
BEANSTALK_ERRORS = {
    "FULL": b"OUT_OF_MEMORY", "CLOSED": b"DRAINING", "TYPE": b"INTERNAL_ERROR", "INUSE": b"INTERNAL_ERROR",
}  # fmt: skip
# The commands of beanstalk, and their replies.
BEANSTALK_EVENTS = {
    "ACK": ("delete {job}", b"DELETED"),
    "RELEASE": ("release {job} {priority} {delay}", b"RELEASED"),
    "BURY": ("bury {job} {priority}", b"BURIED"),
    "TOUCH": ("touch {job}", b"TOUCHED"),
}
numbers = itertools.count()
Method = TypeVar("Method", bound=Callable[..., None])

messages = st.sampled_from(MESSAGES)


class AnyNumber(int):
    """A number that is not known: it equals any other."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __add__(self, other: int) -> AnyNumber:
        return self


several = st.lists(messages, min_size=1, max_size=4)
roles = st.sampled_from("qqqr")  # of the queues: most happens in one of them
job_roles = st.sampled_from("qqqqqqr")  # the other one stays a fifo for some time
pairs = st.sampled_from([("q", "r"), ("r", "q"), ("q", "d"), ("q", "r", "d")])
resp = st.sampled_from(World.RESP)
beanstalk = st.sampled_from(World.BEANSTALK)
clients = st.sampled_from([*World.RESP, *World.BEANSTALK])
tokens = st.sampled_from(["", "", "", "one", "two"])  # most reservations belong to their connection
priorities = st.sampled_from([0, 1, 1023, 1024, 1024, 4294967295])
maybe_priority = st.none() | priorities
creations = st.sampled_from(
    [
        (),
        ("TYPE", "JOBS"),
        ("TYPE", "FIFO"),
        ("BOUND", 2),
        ("BOUND", 3, "TYPE", "JOBS"),
        ("UNIQUE", "QUEUED"),
        ("UNIQUE", "UNFINISHED"),
        ("BOUND", 2, "UNIQUE", "QUEUED"),
        ("MAX-DELIVERIES", 2),
        ("MAX-DELIVERIES", 1, "DEAD-LETTER"),
        ("IN-FLIGHT", 2),
        ("RETRY-DELAY", 100_000_000),
        ("RETRY-DELAY", 100_000_000, "IN-FLIGHT", 1, "ACK", "NEXT"),
        ("ACK", "NEXT"),
        ("BOUND", 3, "ACK", "NEXT"),
        ("ACK", "NEXT", "TYPE", "JOBS"),
        ("ACK", "NEXT", "MAX-DELIVERIES", 2),
    ]
)
which = st.integers(0, 12)
rarely = st.sampled_from([False, False, True])
in_transactions = st.sampled_from(["SADD", "RPUSH", "SPOP", "SREM", "SCARD", "SMEMBERS", "PRESSURE.KICK"])
kinds = st.sampled_from(
    ["put", "put", "put_non_blocking", "get", "get_non_blocking", "get_non_blocking", "close"]
)


def in_pairs(words: Sequence[Any]) -> dict[Any, Any]:
    """Return names and values as a dictionary."""
    return dict(zip(words[::2], words[1::2], strict=True))


def ok_unless(expected: Any) -> Any:
    """Return OK, unless a number or the code of an error is expected."""
    return expected if isinstance(expected, int | str) else b"OK"


class Step(NamedTuple):
    """A method of the machine, and its arguments."""

    name: str
    arguments: dict[str, Any]


# All steps by name, and the names, each as often as its weight. Of several rules, hypothesis would leave
# out some in each example.
STEPS: dict[str, st.SearchStrategy[Step]] = {}
NAMES: list[str] = []


def step(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """Return a decorator that enters a method into the table."""

    def enter(method: Method) -> Method:
        name: str = method.__name__
        STEPS[name] = st.builds(Step, st.just(name), st.fixed_dictionaries(arguments))
        NAMES.extend([name] * weight)
        return method

    return enter


class JobMachine(RuleBasedStateMachine):
    """Two queues and one for dead letters, clients of two servers, and up to three native operations."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.direct = world.direct
        self.model = Queues(int(self.direct.get(f"{PREFIX}!last_block") or 0))
        example = next(numbers)
        self.names = {role: f"{role}{example}" for role in "qrd"}
        self.native: list[Steps[Any]] = []  # operations that have begun; they may wait for a key
        # Native clients alone can leave a token for room on a full queue. It is tolerated until it is right.
        self.tolerated: set[str] = set()
        # Delays differ, so that their order does not depend on the clock.
        self.later = itertools.count(LONG)
        self.ended = itertools.count(-1_000_000)
        self.is_consistent = True  # False while a command is unfinished, or after a difference
        self.keys: dict[str, Keys] = {}
        self.read()

    # The backend

    def read(self) -> None:
        """Read the keys. What native clients have done to the protocol's keys is the truth for the model."""
        self.keys = dict(zip(self.names.values(), read_keys(self.direct, self.names.values()), strict=True))

    def sync(self) -> None:
        """Tell the model what native clients have done, before a command."""
        self.is_consistent = False
        for name, keys in self.keys.items():
            queue = self.model.by_name.get(name)
            if queue:
                now = keys.queue.copy()
                queue.tokens, queue.counters = now.tokens, now.counters
                if now.messages != queue.messages:
                    # Equal messages may swap what is known of them (marks.lua).
                    is_list = not queue.has_jobs
                    queue.messages = [
                        Marked(one, deliveries=AnyNumber()) if is_list else one for one in now.messages
                    ]

    def check(self) -> None:
        """Compare the keys with the model."""
        self.read()
        for name, keys in self.keys.items():
            queue = self.model.by_name.get(name)
            if not queue or not queue.exists:
                assert not keys.queue.exists, name
                assert not keys.jobs, name
                continue
            assert keys.queue.exists, name
            assert keys.has_jobs == queue.has_jobs, name
            assert keys.queue.messages == queue.messages, name
            assert keys.queue.is_closed == queue.is_closed, name
            found = {state: [j for j in ids if j in queue.jobs] for state, ids in keys.states.items()}
            assert found == keys.states, f"{name}: jobs that are not in the model"
            expected = {state: [job.id for job in queue.in_state(state)] for state in STATES}
            found[RESERVED].sort()
            assert found == expected, name
            assert keys.jobs == {job.id: job.message for job in queue.jobs.values()}, name
            assert keys.queue.counters == queue.counters, name
        self.is_consistent = True

    @invariant()
    def statistics_and_tokens_are_right_when_no_native_operation_is_unfinished(self) -> None:
        if self.native:
            return
        for name, keys in self.keys.items():
            if not keys.queue.exists:
                continue
            queue, tokens, counters = self.model.by_name[name], keys.queue.tokens, keys.queue.counters
            left = keys.queue.messages + (list(keys.jobs.values()) if queue.has_jobs else [])
            assert counters.produced - counters.consumed == len(left), name
            assert counters.produced_bytes - counters.consumed_bytes == sum(map(len, left)), name
            assert (tokens.producer_free, tokens.consumer_free) == (1, 1), name
            if tokens.not_full == int(queue.has_room):
                self.tolerated.discard(name)
            assert name in self.tolerated or tokens.not_full == int(queue.has_room), name

    # Commands

    def expect(self, command: Callable[[], Any]) -> Any:
        """Return the reply of the model, or the code of its error."""
        self.sync()
        return predicted(command)

    def send(self, client: str, *words: Any, expected: Any) -> Any:
        """Send a command, and compare its reply. Return it."""
        reply = self.world.client(client)(*words)
        found = code_or_reply(reply)
        assert found == expected, f"{words}: {reply!r} should be {expected!r}"
        self.check()
        return reply

    def send_line(self, client: str, line: str, expected: Any, queue: str = "") -> Any:
        """Send a command, and compare its reply: `expected` may be the code of an error.

        A command on a job that the connection does not know may not come to its `queue`: then ask for its
        length, so that the server does what is due.
        """
        reply = self.world.client(client)(line)
        if queue:
            self.world.observer(client)("SCARD", queue)
        expected = BEANSTALK_ERRORS.get(expected, expected) if isinstance(expected, str) else expected
        assert reply == expected, f"{line}: {reply!r} should be {expected!r}"
        self.check()
        return reply

    def use(self, client: str, name: str) -> None:
        assert self.world.client(client)(f"use {name}") == b"USING " + name.encode()

    def watch(self, client: str, names: list[str]) -> None:
        """Watch exactly these tubes."""
        call = self.world.client(client)
        for name in names:
            assert call(f"watch {name}").startswith(b"WATCHING")
        for name in {*self.names.values(), "default"} - {*names}:
            assert call(f"ignore {name}").startswith(b"WATCHING")

    def jobs(self, *states: str) -> list[tuple[str, Job]]:
        """Return the jobs in these states, each with its queue."""
        return [
            (name, job)
            for name, queue in sorted(self.model.by_name.items())
            for job in sorted(queue.jobs.values(), key=lambda one: one.id)
            if job.state in states
        ]

    def pick(self, place: int, *states: str) -> tuple[str, Job]:
        """Return one of the jobs in these states, of which there must be some, and its queue."""
        some = self.jobs(*states)
        return some[place % len(some)]

    # Lives of queues

    @initialize(
        options=st.none() | creations,
        dead=st.sampled_from([None, (), ("TYPE", "JOBS")]),
        plain=st.lists(messages, max_size=4),
        jobs=st.lists(st.tuples(messages, priorities, rarely), max_size=5),
        is_old=rarely,
    )
    def begin(
        self, options: tuple[Any, ...] | None, dead: tuple[Any, ...] | None, plain: list[bytes],
        jobs: list[tuple[bytes, int, bool]], is_old: bool,
    ) -> None:  # fmt: skip
        if dead is not None:
            self.create("d", dead)
        self.create("r", ())
        if options is not None:
            self.create("q", options)
        if is_old:
            # The next ids are in two blocks.
            self.put("q", "resp-0", [b"old"] * 60, "RPUSH")
            self.remove("q", "resp-0", [b"old"], is_flush=False)
        if plain:
            self.put("q", "resp-0", plain, "RPUSH")
        for message, priority, is_delayed in jobs:
            self.put_job("q", "resp-0", message, priority, is_delayed, LONG, None)

    def create(self, role: str, options: tuple[Any, ...]) -> None:
        if options and options[-1] == "DEAD-LETTER":
            options = (*options, self.names["d"])
        given = in_pairs(options)
        expected = self.expect(
            lambda: self.model.create(
                self.names[role], given.get("TYPE", "").lower(), bound=given.get("BOUND", 0),
                unique=given.get("UNIQUE", "").lower(), max_deliveries=given.get("MAX-DELIVERIES", 0),
                dead_letter=given.get("DEAD-LETTER", ""), keeps="ACK" in given,
                in_flight=given.get("IN-FLIGHT", 0), retry_delay=given.get("RETRY-DELAY", 0),
            )
        )  # fmt: skip
        self.send("resp-0", "PRESSURE.CREATE", self.names[role], *options, expected=ok_unless(expected))

    @step(role=roles, client=resp, how=st.sampled_from(["again", "again", "again", "close", "delete"]))
    def create_close_or_delete(self, role: str, client: str, how: str) -> None:
        name = self.names[role]
        commands: dict[str, tuple[str, Callable[[], Any]]] = {
            "again": ("PRESSURE.CREATE", lambda: self.model.create(name)),
            "close": ("PRESSURE.CLOSE", lambda: self.model[name].close()),
            "delete": ("DEL", lambda: self.model.delete(name)),
        }
        word, command = commands[how]
        # A Delete and unfinished native operations may leave anything (see test_queue_model.py).
        if not (how == "delete" and self.native):
            self.send(client, word, name, expected=ok_unless(self.expect(command)))

    # Puts

    @step(
        4, role=job_roles, client=clients, message=messages, priority=maybe_priority, is_delayed=rarely,
        ttr=st.sampled_from([None, 0, LONG]),
        unique=st.sampled_from([None, None, None, "UNIQUE", b"x", b"a"]),
    )  # fmt: skip
    def put_job(
        self, role: str, client: str, message: bytes, priority: int | None, is_delayed: bool,
        ttr: int | None, unique: str | bytes | None,
    ) -> None:  # fmt: skip
        name, delay = self.names[role], next(self.later) if is_delayed else 0
        if client in World.BEANSTALK:
            self.put_over_beanstalk(client, name, message, priority or 0, delay)
            return
        words: list[Any] = ["PRESSURE.PUT", name, message]
        options: dict[str, int] = {}
        for option, value in (("priority", priority), ("delay", delay or None), ("ttr", ttr)):
            if value is not None:
                options[option] = value
                words += [option.upper(), value]
        is_unique, by = unique == "UNIQUE", unique if isinstance(unique, bytes) else None
        words += ["UNIQUE"] if is_unique else ["UNIQUE-BY", by] if by is not None else []
        if len(words) == 3:
            words += ["PRIORITY", 1024]
        expected = self.expect(
            lambda: self.model[name].put_job(message, is_unique=is_unique, by=by, **options)
        )
        if isinstance(expected, list):
            reply = self.world.client(client)(*words)
            assert reply in expected, f"{words}: {reply!r} should be one of {expected!r}"
            self.check()
        else:
            self.send(client, *words, expected=expected)

    def put_over_beanstalk(self, client: str, name: str, message: bytes, priority: int, delay: int) -> None:
        self.use(client, name)
        expected = self.expect(
            lambda: self.model.opened(name).put_job(message, priority=priority, delay=delay, ttr=LONG)
        )
        replies = (
            [b"INSERTED %d" % one for one in expected]
            if isinstance(expected, list)
            else [BEANSTALK_ERRORS[expected]]
        )
        reply = self.world.client(client)(f"put {priority} {delay} {LONG}", message)
        assert reply in replies, f"{reply!r} should be one of {replies!r}"
        self.check()

    @step(
        3, role=roles, client=resp, some=several,
        command=st.sampled_from(["SADD", "SADD", "RPUSH", "LPUSH", "PRESSURE.PUT", "NX", "set"]),
    )  # fmt: skip
    def put(self, role: str, client: str, some: list[bytes], command: str) -> None:
        name = self.names[role]
        if command not in ("SADD", "RPUSH", "LPUSH"):
            some = some[:1]
        queue_for = self.model.__getitem__ if command in ("PRESSURE.PUT", "NX") else self.model.opened
        expected = self.expect(lambda: queue_for(name).put(some, unique=command in ("SADD", "NX")))
        if command == "set":
            reply = self.world.client("memcached").store(name.encode(), some[0])
            self.check_memcached(reply, expected, b"STORED")
        elif command == "NX":
            self.send(client, "PRESSURE.PUT", name, *some, "NX", expected=expected)
        elif command == "PRESSURE.PUT":
            self.send(client, command, name, *some, expected=1 if isinstance(expected, int) else expected)
        else:
            self.send(client, command, name, *some, expected=expected)

    def check_memcached(self, reply: bytes, expected: Any, done: bytes) -> None:
        """Compare a reply: `expected` may be the code of an error."""
        assert expected.encode() in reply if isinstance(expected, str) else reply == done, reply
        self.check()

    # Takes

    @step(
        3, role=roles, client=resp, command=st.sampled_from(["SPOP", "LPOP", "RPOP", "PRESSURE.GET", "get"]),
        count=st.none() | st.integers(1, 3),
    )  # fmt: skip
    def take(self, role: str, client: str, command: str, count: int | None) -> None:
        name = self.names[role]
        if command == "get":
            expected = self.expect(lambda: self.model.pop(name, "memcached"))
            reply = self.world.client("memcached")(b"get " + name.encode())
            found = expected if isinstance(expected, list) else []
            values = [b"VALUE %b 0 %d\r\n%b\r\n" % (name.encode(), len(one), one) for one in found]
            self.check_memcached(reply, expected, b"".join(values) + b"END")
            return
        if command == "PRESSURE.GET":
            count, words = None, [command, name, "NOWAIT"]
            expected = self.expect(lambda: self.model[name].get())
        else:
            words = [command, name, *([] if count is None else [str(count)])]
            expected = self.expect(lambda: self.model.pop(name, client, count or 1))
        if isinstance(expected, list):
            if count is None:
                expected = expected[0] if expected else None
            elif not expected and command != "SPOP":
                expected = None
        self.send(client, *words, expected=expected)

    @step(role=roles, client=resp, keeps=st.sampled_from([None, None, True, False]))
    def acknowledge_popped(self, role: str, client: str, keeps: bool | None) -> None:
        """Acknowledge what a client has popped; or alter whether the queue keeps that."""
        name = self.names[role]
        if keeps is None:
            expected = self.expect(lambda: self.model.acknowledge_popped(client, name))
            self.send(client, "PRESSURE.ACK", name, expected=expected)
        else:
            expected = self.expect(lambda: self.model[name].keep(keeps=keeps))
            words = ("ACK", "NEXT" if keeps else "FINAL")
            self.send(client, "PRESSURE.ALTER", name, *words, expected=ok_unless(expected))

    @step(
        role=roles, client=resp, some=st.lists(messages, min_size=1, max_size=2, unique=True),
        is_flush=rarely,
    )  # fmt: skip
    def remove(self, role: str, client: str, some: list[bytes], is_flush: bool) -> None:
        name = self.names[role]
        # A flush of a fifo reckons the bytes from the statistics, which a native producer has yet to update.
        if is_flush and not self.native:
            expected = self.expect(lambda: self.model[name].flush())
            self.check_memcached(self.world.client("memcached")(b"flush " + name.encode()), expected, b"END")
        else:
            expected = self.expect(lambda: sum(self.model[name].remove(some)))
            self.send(client, "SREM", name, *some, expected=expected)

    @step(roles=st.sampled_from(["qr", "rq", "qd", "qq"]), client=resp, message=st.none() | messages)
    def move(self, roles: str, client: str, message: bytes | None) -> None:
        """Move the next message to another queue; or all copies of a message."""
        one, other = (self.names[role] for role in roles)
        moved = self.expect(lambda: self.model.move(one, other, message))
        if message is None:
            self.send(client, "LMOVE", one, other, "LEFT", "RIGHT", expected=moved)
        else:
            expected = moved if isinstance(moved, str) else int(moved is not None)
            self.send(client, "SMOVE", one, other, message, expected=expected)

    @step(client=resp, commands=st.lists(st.tuples(roles, in_transactions, messages), min_size=1, max_size=4))
    def transact(self, client: str, commands: list[tuple[str, str, bytes]]) -> None:
        if self.native:
            return  # a transaction needs all roles at once
        call = self.world.client(client)
        assert call("MULTI") == b"OK"
        expected = []
        self.sync()
        for role, command, message in commands:
            name = self.names[role]
            words, predict = self.in_transaction(command, name, message)
            assert call(command, name, *words) == b"QUEUED"
            expected.append(predicted(predict))
        reply = call("EXEC")
        found = [code_or_reply(one) for one in reply] if isinstance(reply, list) else reply
        assert found == expected, f"{commands}: {reply!r} should be {expected!r}"
        self.check()

    def in_transaction(self, command: str, name: str, message: bytes) -> tuple[list[Any], Callable[[], Any]]:
        """Return the arguments of a command, and what does it in the model."""
        queue, opened = self.model.__getitem__, self.model.opened
        commands: dict[str, tuple[list[Any], Callable[[], Any]]] = {
            "SADD": ([message], lambda: opened(name).put([message], unique=True)),
            "RPUSH": ([message], lambda: opened(name).put([message])),
            "SPOP": ([], lambda: next(iter(queue(name).take()), None)),
            "SREM": ([message], lambda: sum(queue(name).remove([message]))),
            "SCARD": ([], lambda: queue(name).length),
            "SMEMBERS": ([], lambda: queue(name).visible),
            "PRESSURE.KICK": ([1], lambda: queue(name).kick(1)),
        }
        return commands[command]

    # Reservations

    @step(
        5, role=roles, client=clients, count=st.none() | st.integers(1, 3),
        ttr=st.sampled_from([None, None, 0, LONG]), token=tokens,
    )  # fmt: skip
    def reserve(self, role: str, client: str, count: int | None, ttr: int | None, token: str) -> None:
        name = self.names[role]
        if client in World.BEANSTALK:
            self.watch(client, [name])
            found = self.expect(lambda: self.model[name].reserve(client))
            if isinstance(found, list):
                found = (found[0].id, found[0].message) if found else b"TIMED_OUT"
            self.send_line(client, "reserve-with-timeout 0", found)
            return
        found = self.expect(lambda: self.model[name].reserve(token or client, count or 1, ttr))
        words = ["PRESSURE.RESERVE", name, *(["COUNT", count] if count else [])]
        words += [*(["TTR", ttr] if ttr is not None else []), *(["DETACHED", token] if token else [])]
        self.send(client, *words, expected=self.reserved(name, found, is_list=count is not None))

    @staticmethod
    def reserved(name: str, found: list[Job] | str, *, is_list: bool) -> Any:
        """Return the reply of PRESSURE.RESERVE."""
        if isinstance(found, str):
            return found
        jobs = [[name.encode(), job.id, job.message, job.counts["reserves"]] for job in found]
        return None if not jobs else jobs if is_list else jobs[0]

    @step(some=pairs, client=clients, token=tokens)
    def reserve_from_several(self, some: tuple[str, ...], client: str, token: str) -> None:
        names = [self.names[role] for role in some]
        self.sync()
        heads = self.model.heads(names)
        is_beanstalk = client in World.BEANSTALK
        if is_beanstalk:
            self.watch(client, names)
            reply = self.world.client(client)("reserve-with-timeout 0")
        else:
            words = ["DETACHED", token] if token else []
            reply = self.world.client(client)("PRESSURE.RESERVE", *names, *words)
        found = code_or_reply(reply)
        self.read()
        # Which of two jobs of equal priority is older, only the backend knows: in milliseconds.
        made = {name: self.keys[name].made[number] if number else 0 for name, (_, number) in heads.items()}
        ages = {name: (priority, made[name]) for name, (priority, _) in heads.items()}
        best = [name for name in heads if ages[name] == min(ages.values())]
        owner, replies = client if is_beanstalk else token or client, {}
        for name in best:
            before = copy.deepcopy(self.model)
            try:
                (job,) = self.model[name].reserve(owner)
                of_resp = self.reserved(name, [job], is_list=False)
                replies[name] = (job.id, job.message) if is_beanstalk else of_resp
            except RefusedError as error:
                replies[name] = BEANSTALK_ERRORS[str(error)] if is_beanstalk else str(error)
            if replies[name] == found:
                break
            self.model = before
        if not heads:
            replies = {"": b"TIMED_OUT" if is_beanstalk else None}
        assert found in replies.values(), f"{reply!r} should be one of {replies!r}"
        self.check()

    @step(
        2, client=clients, place=which, token=tokens,
        event=st.sampled_from(["delete", "delete", "kick-job", "reserve-job", "reserve-job"]),
    )  # fmt: skip
    def change_any(self, client: str, place: int, token: str, event: str) -> None:
        """Delete, kick or reserve a job by its id, whatever its state is."""
        if not self.jobs(*STATES):
            return
        name, job = self.pick(place, *STATES)
        number = job.id
        if client in World.RESP:
            owner, words = token or client, ["TOKEN", token] if token else []
            ids = [number, 999_999_999, number][: 1 + place % 3]
            expected = self.expect(lambda: self.model[name].acknowledge(ids, owner))
            self.send(client, "PRESSURE.ACK", name, *ids, *words, expected=expected)
        elif event == "reserve-job":
            taken = self.expect(lambda: self.model[name].reserve_job(number, client))
            reply = (taken.id, taken.message) if taken else b"NOT_FOUND"
            self.send_line(client, f"{event} {number}", reply, queue=name)
        else:
            commands: dict[str, tuple[bytes, Callable[[], int]]] = {
                "delete": (b"DELETED", lambda: self.model[name].acknowledge([number], client)),
                "kick-job": (b"KICKED", lambda: self.model[name].kick_job(number)),
            }
            done, command = commands[event]
            reply = done if self.expect(command) else b"NOT_FOUND"
            self.send_line(client, f"{event} {number}", reply, queue=name)

    @step(
        6, place=which, client=clients, token=tokens, is_owner=st.sampled_from([True, True, True, False]),
        event=st.sampled_from(["ACK", "RELEASE", "RELEASE", "BURY", "BURY", "TOUCH"]),
        priority=maybe_priority, is_delayed=rarely,
    )  # fmt: skip
    def end_reservation(
        self, place: int, client: str, token: str, is_owner: bool, event: str, priority: int | None,
        is_delayed: bool,
    ) -> None:  # fmt: skip
        """Delete, release, bury or touch a reserved job, mostly for its owner."""
        if not self.jobs(RESERVED):
            self.reserve("q", client, None, LONG, token)
            return
        name, job = self.pick(place, RESERVED)
        number, delay = job.id, next(self.later) if is_delayed else 0
        is_owner = is_owner and job.owner != "memcached"  # it ends what it has popped by its next pop only
        if is_owner and job.owner in World.CLIENTS:
            client, token = job.owner, ""
        elif is_owner and client in World.RESP:
            token = job.owner
        is_beanstalk = client in World.BEANSTALK
        owner = client if is_beanstalk else token or client
        if is_beanstalk and priority is None:
            priority = job.priority
        commands: dict[str, Callable[[], int]] = {
            "ACK": lambda: self.model[name].acknowledge([number], owner),
            "RELEASE": lambda: self.model[name].release(number, owner, priority, delay),
            "BURY": lambda: self.model[name].bury(number, owner, priority),
            "TOUCH": lambda: self.model[name].touch([number], owner),
        }
        expected = self.expect(commands[event])
        if is_beanstalk:
            line, done = BEANSTALK_EVENTS[event]
            reply = expected if isinstance(expected, str) else done if expected else b"NOT_FOUND"
            self.send_line(client, line.format(job=number, priority=priority, delay=delay), reply, queue=name)
            return
        words: list[Any] = ["TOKEN", token] if token else []
        if event in ("RELEASE", "BURY") and priority is not None:
            words += ["PRIORITY", priority]
        if event == "RELEASE" and delay:
            words += ["DELAY", delay]
        self.send(client, f"PRESSURE.{event}", name, number, *words, expected=expected)

    @step(2, role=roles, client=clients, count=st.integers(0, 3))
    def kick(self, role: str, client: str, count: int) -> None:
        name = self.names[role]
        expected = self.expect(lambda: self.model[name].kick(count))
        if client in World.RESP:
            self.send(client, "PRESSURE.KICK", name, count, expected=expected)
        else:
            self.use(client, name)
            # In beanstalkd every tube exists that a client uses.
            self.send_line(client, f"kick {count}", b"KICKED %d" % (0 if expected == "NOQUEUE" else expected))

    @step(role=job_roles, client=clients, is_paused=rarely)
    def pause(self, role: str, client: str, is_paused: bool) -> None:
        name, seconds = self.names[role], 1000 if is_paused else 0
        is_beanstalk = client in World.BEANSTALK

        # In beanstalkd every tube exists that a client uses.
        queue_for = self.model.opened if is_beanstalk else self.model.__getitem__
        expected = ok_unless(self.expect(lambda: queue_for(name).pause(is_paused=is_paused)))
        if is_beanstalk:
            self.use(client, name)
            reply = b"PAUSED" if expected == b"OK" else expected
            self.send_line(client, f"pause-tube {name} {seconds}", reply)
        else:
            self.send(client, "PRESSURE.PAUSE", name, seconds, expected=expected)

    # Time, and connections

    @step(2, place=which)
    def a_time_ends(self, place: int) -> None:
        """Let a delay end, or a reservation that has a time to run."""
        if not self.jobs(DELAYED, RESERVED):
            return
        name, job = self.pick(place, DELAYED, RESERVED)
        if job.is_due or (job.state == RESERVED and not job.time_to_run):
            return
        key = f"{base_of(name)}:ext:{job.state}"
        job.is_due, job.place = True, next(self.ended)
        assert self.direct.zadd(key, {b"%013x" % job.id: self.model_time(job)}, xx=True) == 0

    @staticmethod
    def model_time(job: Job) -> int:
        """Return a time long ago, in the order in which times end."""
        return job.place + 2_000_000

    @step(client=st.sampled_from([*World.CLIENTS]), reset=st.booleans())
    def a_connection_ends(self, client: str, reset: bool) -> None:
        if self.world.is_open(client):
            self.close_connection(client, reset=reset)

    def close_connection(self, client: str, *, reset: bool = False) -> None:
        self.world.close_client(client, reset=reset)
        observer = self.world.observer(client)
        self.sync()
        self.model.give_up(client, self.names.values())
        # What the connection gives up comes before these commands in the server's lanes.
        for _ in range(2):
            for name in self.names.values():
                observer("SCARD", name)
        self.check()

    # Questions

    @step(role=roles, client=resp)
    def ask(self, role: str, client: str) -> None:
        name = self.names[role]
        self.sync()
        length, visible = self.model[name].length, self.model[name].visible
        questions: list[tuple[tuple[Any, ...], Any]] = [
            (("SCARD", name), length),
            (("LLEN", name), length),
            (("LRANGE", name, 0, -1), visible),
            (("LRANGE", name, 1, 2), visible[1:3]),
            (("LRANGE", name, -2, -1), visible[-2:]),
            (("LINDEX", name, 1), visible[1] if len(visible) > 1 else None),
            (("SMEMBERS", name), visible),
            (("SMISMEMBER", name, *MESSAGES), [int(message in visible) for message in MESSAGES]),
        ]
        for words, expected in questions:
            reply = self.world.client(client)(*words)
            assert reply == expected, f"{words}: {reply!r} should be {expected!r}"
        self.check()

    @step(role=roles, client=resp)
    def describe_all(self, role: str, client: str) -> None:
        name = self.names[role]
        self.sync()
        queue = self.model[name]
        call = self.world.client(client)
        for number in [*queue.jobs, 999_999_999]:
            reply = call("PRESSURE.JOB", name, number)
            expected = queue.describe(number)
            about = reply and in_pairs(reply)
            found = about and {key: about[key] for key in expected or {}}
            assert found == expected, f"{number}: {reply!r} should be {expected!r}"
        if queue.exists:
            expected = queue.info()
            about = in_pairs(call("PRESSURE.INFO", name))
            assert {key: about[key] for key in expected} == expected
        self.check()

    @step(role=roles, client=clients, state=st.sampled_from([READY, DELAYED, BURIED]))
    def peek(self, role: str, client: str, state: str) -> None:
        """Peek at the next job in a state, and then at the same job by its id."""
        name, target = self.names[role], state
        expected = self.expect(lambda: self.model[name].peek_job(state))
        for _ in range(2 if expected else 1):
            if client in World.RESP:
                self.send(client, "PRESSURE.PEEK", name, target.upper(), expected=expected and [*expected])
            else:
                self.use(client, name)
                line = f"peek {target}" if target.isdigit() else f"peek-{target}"
                self.send_line(client, line, expected or b"NOT_FOUND", queue=name)
            if expected:
                target = str(expected[0])

    # Native clients

    @step(2, role=roles, kind=kinds, message=messages, count=st.integers(1, 12))
    def begin_native(self, role: str, kind: str, message: bytes, count: int) -> None:
        if len(self.native) == MAX_NATIVE:
            self.finish_native()
            return
        steps = NativeSteps(self.direct, self.names[role], f"native-{kind}")
        self.native.append(steps.begin(kind, message))
        self.advance(self.native[-1], count)

    @step(place=st.integers(0, MAX_NATIVE - 1), count=st.integers(1, 12))
    def step_native(self, place: int, count: int) -> None:
        if self.native:
            self.advance(self.native[place % len(self.native)], count)

    def advance(self, native: Steps[Any], count: int) -> None:
        """Take so many steps of an operation. A step that waits is the last."""
        for _ in range(count):
            try:
                waits_for = next(native)
            except (StopIteration, NativeError):
                self.native.remove(native)
                break
            if waits_for is not None:
                break
        self.tolerated.update(self.names.values())
        self.read()
        self.sync()
        self.check()

    @step()
    def finish_native(self) -> None:
        for native in list(self.native):
            self.advance(native, 20)

    @rule(
        step=st.deferred(
            lambda: st.sampled_from(sorted(NAMES, key=NAMES.count, reverse=True)).flatmap(STEPS.__getitem__)
        )
    )
    def act(self, step: Step) -> None:
        getattr(self, step.name)(**step.arguments)

    def teardown(self) -> None:
        """Look at all jobs, end all connections, and take what is left.

        After a difference, end the connections only: it must not be hidden by another one.
        """
        if self.is_consistent:
            for role in self.names:
                self.describe_all(role, "resp-0")
        for client in World.CLIENTS:
            if self.world.is_open(client):
                if self.is_consistent:
                    self.close_connection(client)
                else:
                    self.world.close_client(client)
        if self.is_consistent:
            self.put("q", "resp-0", MESSAGES, "RPUSH")
            for role in self.names:
                self.ask(role, "resp-0")
                self.take(role, "resp-0", "LPOP", 100)
            self.close_connection("resp-0")
        if found := self.direct.keys(f"{PREFIX}:*"):
            self.direct.delete(*found)


@pytest.fixture
def world(backend: Valkey, tmp_path: Path) -> Iterator[World]:
    made = World(backend, tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_jobs_and_native_clients_act_in_any_order(world: World) -> None:
    machine: Any = lambda: JobMachine(world)  # noqa: E731 # the parameter's type is a class
    run_state_machine_as_test(machine, settings=SETTINGS)
