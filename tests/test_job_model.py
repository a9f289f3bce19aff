"""Jobs over RESP, beanstalk and memcached, with native clients between any two of their commands.

A plain model (tests/support/job_model.py) predicts every reply, and where each job is. Time passes only where
the test says so: it lets a delay or a reservation end by changing its time in the backend, which is all that
the script looks at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.job_model import (
    BURIED,
    DELAYED,
    READY,
    RESERVED,
    STATES,
    Job,
    Model,
    RefusedError,
)
from tests.support.job_world import PREFIX, Keys, World, base_of, read_keys
from tests.support.model_settings import model_settings
from tests.support.native import NativeError, NativeSteps, Steps
from tests.support.programs import Valkey

SETTINGS = settings(
    model_settings("PRESSURE_MODEL_EXAMPLES", 40),
    stateful_step_count=40,
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
numbers = itertools.count()

messages = st.sampled_from(MESSAGES)
several = st.lists(messages, min_size=1, max_size=4)
roles = st.sampled_from("qqqr")  # of the queues: most happens in one of them
pairs = st.sampled_from([("q", "r"), ("r", "q"), ("q", "d"), ("q", "r", "d")])
resp = st.sampled_from(World.RESP)
beanstalk = st.sampled_from(World.BEANSTALK)
clients = st.sampled_from([*World.RESP, *World.BEANSTALK])
tokens = st.sampled_from(["", "", "", "one", "two"])  # most reservations belong to their connection
priorities = st.sampled_from([0, 1, 1023, 1024, 1024, 4294967295])
maybe_priority = st.none() | priorities
which = st.integers(0, 12)
kinds = st.sampled_from(["put", "put", "put_nb", "get", "get_nb", "get_nb", "close"])


def in_pairs(words: Sequence[Any]) -> dict[Any, Any]:
    """Return names and values as a dictionary."""
    return dict(zip(words[::2], words[1::2], strict=True))


class Native:
    """A native operation that has begun; it may wait for a key."""

    def __init__(self, kind: str, steps: Steps[Any]) -> None:
        self.kind = kind
        self.steps = steps


class JobMachine(RuleBasedStateMachine):
    """Two queues and one for dead letters, clients of two servers, and up to three native operations."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.direct = world.direct
        self.model = Model(int(self.direct.get(f"{PREFIX}!last_block") or 0))
        example = next(numbers)
        self.names = {role: f"{role}{example}" for role in "qrd"}
        self.native: list[Native] = []
        # Native clients alone can leave a token for room on a full queue. It is tolerated until it is right.
        self.tolerates_token = False
        # Delays differ, so that their order does not depend on the clock.
        self.later = itertools.count(LONG)
        self.due = 0
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
            queue = self.model.queues.get(name)
            if queue:
                queue.messages = list(keys.messages)
                queue.is_closed = keys.is_closed
                queue.produced = keys.produced
                queue.roles.producer_free = keys.producer_free > 0
                queue.roles.consumer_free = keys.consumer_free > 0
                queue.roles.not_full = keys.not_full

    def check(self) -> None:
        """Compare the keys with the model."""
        self.read()
        for name, keys in self.keys.items():
            queue = self.model.queues.get(name)
            if not queue or not queue.exists:
                assert not keys.exists, name
                assert not keys.jobs, name
                continue
            assert keys.exists, name
            assert keys.has_jobs == queue.has_jobs, name
            assert keys.messages == queue.messages, name
            assert keys.is_closed == queue.is_closed, name
            found = {state: [j for j in ids if j in queue.jobs] for state, ids in keys.states.items()}
            assert found == keys.states, f"{name}: jobs that are not in the model"
            expected = {state: [job.id for job in queue.in_state(state)] for state in STATES}
            found[RESERVED].sort()
            assert found == expected, name
            assert keys.jobs == {job.id: job.message for job in queue.jobs.values()}, name
            assert keys.produced == queue.produced, name
        self.is_consistent = True

    @invariant()
    def statistics_and_tokens_are_right_when_no_native_operation_is_unfinished(self) -> None:
        if self.native:
            return
        for name, keys in self.keys.items():
            if not keys.exists:
                continue
            queue = self.model.queues[name]
            left = keys.messages + (list(keys.jobs.values()) if queue.has_jobs else [])
            assert keys.produced - keys.consumed == len(left), name
            assert keys.produced_bytes - keys.consumed_bytes == sum(map(len, left)), name
            assert (keys.producer_free, keys.consumer_free) == (1, 1), name
            if keys.not_full == (1 if queue.has_room else 0):
                self.tolerates_token = False
            assert self.tolerates_token or keys.not_full == (1 if queue.has_room else 0), name

    # Commands

    def expect(self, command: Callable[[], Any]) -> Any:
        """Return the reply of the model, or the code of its error."""
        self.sync()
        try:
            return command()
        except RefusedError as error:
            return str(error)

    def send(self, client: str, *words: Any, expected: Any) -> Any:
        """Send a command, and compare its reply. Return it."""
        reply = self.world.client(client)(*words)
        found = str(reply).split(" ", 1)[0] if isinstance(reply, hiredis.ReplyError) else reply
        assert found == expected, f"{words}: {reply!r} should be {expected!r}"
        self.check()
        return reply

    def send_line(
        self, client: str, line: str, expected: Any, message: bytes | None = None, queue: str = ""
    ) -> Any:
        """Send a command, and compare its reply: `expected` may be the code of an error.

        A command on a job that the connection does not know may not come to its `queue`: then ask for its
        length, so that the server does what is due.
        """
        reply = self.world.client(client)(line, message)
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

    def pick(self, name: str, place: int, *states: str) -> int:
        """Return the id of one of the queue's jobs, or one that does not exist."""
        queue = self.model.queues.get(name)
        some = sorted(j.id for j in queue.jobs.values() if not states or j.state in states) if queue else []
        return some[place % len(some)] if some else 999_999_999

    # Lives of queues

    @initialize(
        options=st.sampled_from(
            [
                (),
                (),
                ("TYPE", "JOBS"),
                ("TYPE", "FIFO"),
                ("BOUND", 2),
                ("BOUND", 3, "TYPE", "JOBS"),
                ("UNIQUE", "QUEUED"),
                ("UNIQUE", "UNFINISHED"),
                ("MAX-DELIVERIES", 2),
                ("MAX-DELIVERIES", 1, "DEAD-LETTER"),
                ("BOUND", 1, "UNIQUE", "QUEUED"),
            ]  # fmt: skip
        ),
        dead=st.sampled_from([None, (), ("TYPE", "JOBS")]),
        is_made=st.booleans(),
    )
    def begin(self, options: tuple[Any, ...], dead: tuple[Any, ...] | None, is_made: bool) -> None:
        if dead is not None:
            self.create("d", dead)
        if is_made:
            self.create("q", options)

    def create(self, role: str, options: tuple[Any, ...]) -> None:
        if options and options[-1] == "DEAD-LETTER":
            options = (*options, self.names["d"])
        given = in_pairs(options)
        expected = self.expect(
            lambda: self.model.create(
                self.names[role], given.get("BOUND", 0), given.get("TYPE", "").lower(),
                given.get("UNIQUE", "").lower(), given.get("MAX-DELIVERIES", 0), given.get("DEAD-LETTER", ""),
            )
        )  # fmt: skip
        self.send("resp-0", "PRESSURE.CREATE", self.names[role], *options, expected=expected)

    @rule(role=roles, client=resp)
    def create_again(self, role: str, client: str) -> None:
        name = self.names[role]
        self.send(client, "PRESSURE.CREATE", name, expected=self.expect(lambda: self.model.create(name)))

    @precondition(lambda self: not self.native)
    @rule(role=roles, client=resp, sure=st.integers(0, 3))
    def delete(self, role: str, client: str, sure: int) -> None:
        if not sure:
            name = self.names[role]
            self.send(client, "DEL", name, expected=self.expect(lambda: self.model.delete(name)))

    @rule(role=roles, client=resp, sure=st.integers(0, 3))
    def close(self, role: str, client: str, sure: int) -> None:
        if not sure:
            name = self.names[role]
            self.send(client, "PRESSURE.CLOSE", name, expected=self.expect(lambda: self.model.close(name)))

    # Puts

    @rule(
        role=roles,
        client=resp,
        message=messages,
        priority=maybe_priority,
        is_delayed=st.booleans(),
        ttr=st.sampled_from([None, 0, LONG]),
        unique=st.sampled_from([None, None, None, "UNIQUE", b"x", b"a"]),
    )
    def put_job(
        self, role: str, client: str, message: bytes, priority: int | None, is_delayed: bool,
        ttr: int | None, unique: str | bytes | None,
    ) -> None:  # fmt: skip
        words: list[Any] = ["PRESSURE.PUT", self.names[role], message]
        options: dict[str, int] = {}
        for name, value in (
            ("priority", priority),
            ("delay", next(self.later) if is_delayed else None),
            ("ttr", ttr),
        ):
            if value is not None:
                options[name] = value
                words += [name.upper(), value]
        is_unique, by = unique == "UNIQUE", unique if isinstance(unique, bytes) else None
        words += ["UNIQUE"] if is_unique else ["UNIQUE-BY", by] if by is not None else []
        if len(words) == 3:
            words += ["PRIORITY", 1024]
        expected = self.expect(
            lambda: self.model.put_job(
                self.names[role], message, creates=False, is_unique=is_unique, by=by, **options
            )
        )
        self.check_put(client, words, expected)

    def check_put(self, client: str, words: list[Any], expected: Any) -> None:
        if isinstance(expected, list):
            reply = self.world.client(client)(*words)
            assert reply in expected, f"{words}: {reply!r} should be one of {expected!r}"
            self.check()
        else:
            self.send(client, *words, expected=expected)

    @rule(role=roles, client=beanstalk, message=messages, priority=priorities, is_delayed=st.booleans())
    def put_over_beanstalk(
        self, role: str, client: str, message: bytes, priority: int, is_delayed: bool
    ) -> None:
        name, delay = self.names[role], next(self.later) if is_delayed else 0
        self.use(client, name)
        expected = self.expect(
            lambda: self.model.put_job(name, message, creates=True, priority=priority, delay=delay, ttr=LONG)
        )
        if isinstance(expected, list):
            expected = b"INSERTED %d" % expected[0]
        self.send_line(client, f"put {priority} {delay} {LONG}", expected, message)

    @rule(role=roles, client=resp, some=several, command=st.sampled_from(["SADD", "RPUSH", "LPUSH"]))
    def put_plainly(self, role: str, client: str, some: list[bytes], command: str) -> None:
        name = self.names[role]
        put = self.model.add if command == "SADD" else self.model.put
        self.send(client, command, name, *some, expected=self.expect(lambda: put(name, some)))

    @rule(role=roles, client=resp, message=messages, is_new=st.booleans())
    def put_over_pressure(self, role: str, client: str, message: bytes, is_new: bool) -> None:
        name = self.names[role]
        put = self.model.add if is_new else self.model.put
        expected = self.expect(lambda: put(name, [message], creates=False))
        if isinstance(expected, int) and not is_new:
            expected = 1
        self.send(client, "PRESSURE.PUT", name, message, *(["NX"] if is_new else []), expected=expected)

    @rule(role=roles, message=messages)
    def put_over_memcached(self, role: str, message: bytes) -> None:
        name = self.names[role]
        expected = self.expect(lambda: self.model.put(name, [message]))
        reply = self.world.client("memcached").store(name.encode(), message)
        assert (reply == b"STORED") if isinstance(expected, int) else (expected.encode() in reply), reply
        self.check()

    # Takes

    @rule(
        role=roles,
        client=resp,
        command=st.sampled_from(["SPOP", "LPOP", "RPOP", "GET"]),
        count=st.none() | st.integers(1, 3),
    )
    def take(self, role: str, client: str, command: str, count: int | None) -> None:
        name = self.names[role]
        if command == "GET":
            expected = self.expect(lambda: self.model.get(name))
            words: list[Any] = ["PRESSURE.GET", name, "NOWAIT"]
            count = None
        else:
            expected = self.expect(lambda: self.model.take(name, count or 1))
            words = [command, name] if count is None else [command, name, count]
        if isinstance(expected, list):
            if count is None:
                expected = expected[0] if expected else None
            elif not expected and command != "SPOP":
                expected = None
        self.send(client, *words, expected=expected)

    @rule(role=roles)
    def take_over_memcached(self, role: str) -> None:
        name = self.names[role]
        expected = self.expect(lambda: self.model.take(name))
        reply = self.world.client("memcached")(b"get " + name.encode())
        if isinstance(expected, str):
            assert expected.encode() in reply, reply
        elif not expected:
            assert reply == b"END", reply
        else:
            assert reply.startswith(b"VALUE ") and reply.endswith(b"\r\n" + expected[0] + b"\r\nEND"), reply
        self.check()

    @rule(role=roles, client=resp, some=st.lists(messages, min_size=1, max_size=2, unique=True))
    def remove(self, role: str, client: str, some: list[bytes]) -> None:
        name = self.names[role]
        self.send(client, "SREM", name, *some, expected=self.expect(lambda: self.model.remove(name, some)))

    @rule(role=roles, sure=st.integers(0, 2))
    def flush(self, role: str, sure: int) -> None:
        if not sure:
            name = self.names[role]
            expected = self.expect(lambda: self.model.flush(name))
            reply = self.world.client("memcached")(b"flush " + name.encode())
            assert reply == b"END" if expected is None else expected.encode() in reply, reply
            self.check()

    # Reservations

    @rule(
        role=roles,
        client=resp,
        count=st.none() | st.integers(1, 3),
        ttr=st.sampled_from([None, None, 0, LONG]),
        token=tokens,
    )
    def reserve(self, role: str, client: str, count: int | None, ttr: int | None, token: str) -> None:
        name = self.names[role]
        found = self.expect(lambda: self.model.reserve(name, token or client, count or 1, ttr))
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

    @rule(some=pairs, client=clients, token=tokens)
    def reserve_from_several(self, some: tuple[str, ...], client: str, token: str) -> None:
        names = [self.names[role] for role in some]
        self.sync()
        heads = self.model.heads(names)
        is_beanstalk = client in World.BEANSTALK
        owner = client if is_beanstalk else token or client
        blocked = [
            name for name in heads
            if not self.model.queues[name].has_jobs and not self.model.queues[name].roles.consumer_free
        ]  # fmt: skip
        if is_beanstalk:
            self.watch(client, names)
            reply = self.world.client(client)("reserve-with-timeout 0")
            taken = reply[0] if isinstance(reply, tuple) else None
        else:
            words = ["DETACHED", token] if token else []
            reply = self.world.client(client)("PRESSURE.RESERVE", *names, *words)
            taken = reply[1] if isinstance(reply, list) else None
        if not heads:
            assert reply == (b"TIMED_OUT" if is_beanstalk else None), reply
            self.check()
            return
        if blocked and taken is None:
            # A message of a fifo would be next, but a native client holds the role.
            assert min(heads[name][0] for name in heads) == heads[blocked[0]][0], reply
            self.check()
            return
        assert taken is not None, f"{reply!r}, but there are {heads}"
        self.read()
        made = {name: self.keys[name].made.get(heads[name][1], 0) for name in heads}
        best = min((heads[name][0], made[name]) for name in heads)
        candidates = [name for name in heads if (heads[name][0], made[name]) == best]
        for name in candidates:
            queue = self.model.queues[name]
            head = queue.takeable[0].id if queue.has_jobs else self.model.next_id(queue)
            if head == taken:
                (job,) = self.model.reserve(name, owner)
                expected = (
                    (job.id, job.message) if is_beanstalk else self.reserved(name, [job], is_list=False)
                )
                assert reply == expected, f"{reply!r} should be {expected!r}"
                break
        else:
            raise AssertionError(f"{reply!r} is not the best of {heads}, put at {made}")
        self.check()

    @rule(role=roles, client=beanstalk)
    def reserve_over_beanstalk(self, role: str, client: str) -> None:
        name = self.names[role]
        self.watch(client, [name])
        found = self.expect(lambda: self.model.reserve(name, client))
        if isinstance(found, list):
            found = (found[0].id, found[0].message) if found else b"TIMED_OUT"
        self.send_line(client, "reserve-with-timeout 0", found)

    @rule(role=roles, client=beanstalk, place=which)
    def reserve_one(self, role: str, client: str, place: int) -> None:
        name = self.names[role]
        number = self.pick(name, place)
        job = self.expect(lambda: self.model.reserve_job(name, number, client))
        self.send_line(
            client, f"reserve-job {number}", (job.id, job.message) if job else b"NOT_FOUND", queue=name
        )

    def owner_words(self, client: str, token: str) -> tuple[str, list[str]]:
        return token or client, ["TOKEN", token] if token else []

    @rule(role=roles, client=resp, places=st.lists(which, min_size=1, max_size=2), token=tokens)
    def acknowledge(self, role: str, client: str, places: list[int], token: str) -> None:
        name = self.names[role]
        owner, words = self.owner_words(client, token)
        ids = [self.pick(name, place) for place in places]
        expected = self.expect(lambda: self.model.acknowledge(name, ids, owner))
        self.send(client, "PRESSURE.ACK", name, *ids, *words, expected=expected)

    @rule(role=roles, client=resp, places=st.lists(which, min_size=1, max_size=2), token=tokens)
    def touch(self, role: str, client: str, places: list[int], token: str) -> None:
        name = self.names[role]
        owner, words = self.owner_words(client, token)
        ids = [self.pick(name, place, RESERVED) for place in places]
        expected = self.expect(lambda: self.model.touch(name, ids, owner))
        self.send(client, "PRESSURE.TOUCH", name, *ids, *words, expected=expected)

    def own(self, name: str, place: int) -> tuple[int, str]:
        """Return a reserved job, and its owner if that is a client."""
        queue = self.model.queues.get(name)
        some = queue.in_state(RESERVED) if queue else []
        if not some:
            return 999_999_999, "resp-0"
        job = some[place % len(some)]
        return job.id, job.owner

    @rule(
        role=roles, client=resp, place=which, token=tokens,
        priority=maybe_priority, is_delayed=st.booleans(), is_own=st.integers(0, 4),
    )  # fmt: skip
    def release(
        self, role: str, client: str, place: int, token: str, priority: int | None, is_delayed: bool,
        is_own: int,
    ) -> None:  # fmt: skip
        name, delay = self.names[role], next(self.later) if is_delayed else 0
        number, owner, client, words = self.by(name, place, client, token, is_own)
        expected = self.expect(lambda: self.model.release(name, number, owner, priority, delay))
        words += ["PRIORITY", priority] if priority is not None else []
        words += ["DELAY", delay] if delay else []
        self.send(client, "PRESSURE.RELEASE", name, number, *words, expected=expected)

    def by(
        self, name: str, place: int, client: str, token: str, is_own: int
    ) -> tuple[int, str, str, list[Any]]:
        """Return a job, an owner, the client that acts and the words for the owner: mostly its real owner."""
        number, owner = self.own(name, place)
        if is_own and owner in World.RESP:
            return number, owner, owner, []
        if is_own and owner not in World.BEANSTALK:
            return number, owner, client, ["TOKEN", owner]
        owner, words = self.owner_words(client, token)
        return number, owner, client, words

    @rule(
        role=roles, client=resp, place=which, token=tokens, priority=maybe_priority, is_own=st.integers(0, 4)
    )
    def bury(self, role: str, client: str, place: int, token: str, priority: int | None, is_own: int) -> None:
        name = self.names[role]
        number, owner, client, words = self.by(name, place, client, token, is_own)
        expected = self.expect(lambda: self.model.bury(name, number, owner, priority))
        words += ["PRIORITY", priority] if priority is not None else []
        self.send(client, "PRESSURE.BURY", name, number, *words, expected=expected)

    @rule(
        role=roles, client=beanstalk, place=which, is_own=st.integers(0, 4), priority=priorities,
        event=st.sampled_from(["delete", "release", "release", "bury", "touch", "kick-job"]),
        is_delayed=st.booleans(),
    )  # fmt: skip
    def change_over_beanstalk(
        self, role: str, client: str, place: int, is_own: int, priority: int, event: str, is_delayed: bool
    ) -> None:
        name, delay = self.names[role], next(self.later) if is_delayed else 0
        number, owner = self.own(name, place)
        if event == "kick-job" or not is_own:
            number = self.pick(name, place)
        elif owner in World.BEANSTALK:
            client = owner
        commands: dict[str, tuple[str, bytes, Callable[[], int]]] = {
            "delete": ("", b"DELETED", lambda: self.model.acknowledge(name, [number], client)),
            "release": (
                f" {priority} {delay}", b"RELEASED",
                lambda: self.model.release(name, number, client, priority, delay),
            ),
            "bury": (f" {priority}", b"BURIED", lambda: self.model.bury(name, number, client, priority)),
            "touch": ("", b"TOUCHED", lambda: self.model.touch(name, [number], client)),
            "kick-job": ("", b"KICKED", lambda: self.model.kick_job(name, number)),
        }  # fmt: skip
        words, done, command = commands[event]
        expected = self.expect(command)
        if not isinstance(expected, str):
            expected = done if expected else b"NOT_FOUND"
        self.send_line(client, f"{event} {number}{words}", expected, queue=name)

    @rule(role=roles, client=clients, count=st.integers(0, 3))
    def kick(self, role: str, client: str, count: int) -> None:
        name = self.names[role]
        expected = self.expect(lambda: self.model.kick(name, count))
        if client in World.RESP:
            self.send(client, "PRESSURE.KICK", name, count, expected=expected)
        else:
            self.use(client, name)
            # In beanstalkd every tube exists that a client uses.
            self.send_line(client, f"kick {count}", b"KICKED %d" % (0 if expected == "NOQUEUE" else expected))

    @rule(role=roles, client=clients, is_paused=st.booleans())
    def pause(self, role: str, client: str, is_paused: bool) -> None:
        name, seconds = self.names[role], 1000 if is_paused else 0
        if client in World.RESP:
            expected = self.expect(lambda: self.model.pause(name, is_paused=is_paused))
            self.send(client, "PRESSURE.PAUSE", name, seconds, expected=expected)
        elif name in self.model.queues and self.model.queues[name].exists:
            expected = self.expect(lambda: self.model.pause(name, is_paused=is_paused))
            self.send_line(
                client, f"pause-tube {name} {seconds}", b"PAUSED" if expected == b"OK" else expected
            )

    # Time, and connections

    def end(self, name: str, place: int, state: str) -> None:
        queue = self.model.queues.get(name)
        some = [job for job in queue.in_state(state) if not job.is_due] if queue else []
        if state == RESERVED:
            some = [job for job in some if job.time_to_run]
        if some:
            job = some[place % len(some)]
            job.is_due = True
            self.due += 1
            # The order in which delays end is that of their times.
            job.place = self.due - 1_000_000_000
            assert (
                self.direct.zadd(f"{base_of(name)}:ext:{state}", {b"%013x" % job.id: self.due}, xx=True) == 0
            )

    @rule(role=roles, place=which)
    def a_delay_ends(self, role: str, place: int) -> None:
        self.end(self.names[role], place, DELAYED)

    @rule(role=roles, place=which)
    def a_time_to_run_ends(self, role: str, place: int) -> None:
        self.end(self.names[role], place, RESERVED)

    @rule(client=clients, reset=st.booleans())
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

    @rule(role=roles, client=resp)
    def ask(self, role: str, client: str) -> None:
        name = self.names[role]
        self.sync()
        queue = self.model.queue(name)
        length, visible = (queue.length, queue.visible) if queue.exists else (0, [])
        self.send(client, "SCARD", name, expected=length)
        self.send(client, "LLEN", name, expected=length)
        self.send(client, "LRANGE", name, 0, -1, expected=visible)
        self.send(client, "LRANGE", name, 1, 2, expected=visible[1:3])
        self.send(client, "LRANGE", name, -2, -1, expected=visible[-2:])
        self.send(client, "LINDEX", name, 1, expected=visible[1] if len(visible) > 1 else None)
        self.send(client, "SMEMBERS", name, expected=visible)
        found = [int(message in visible) for message in MESSAGES]
        self.send(client, "SMISMEMBER", name, *MESSAGES, expected=found)

    @rule(role=roles, client=resp)
    def describe_all(self, role: str, client: str) -> None:
        name = self.names[role]
        self.sync()
        queue = self.model.queue(name)
        call = self.world.client(client)
        for number in [*queue.jobs, 999_999_999]:
            reply = call("PRESSURE.JOB", name, number)
            expected = self.model.describe(name, number)
            about = reply and in_pairs(reply)
            found = about and {key: about[key] for key in expected or {}}
            assert found == expected, f"{number}: {reply!r} should be {expected!r}"
        if queue.exists:
            expected = self.model.info(name)
            about = in_pairs(call("PRESSURE.INFO", name))
            assert {key: about[key] for key in expected} == expected
        self.check()

    @rule(role=roles, client=clients, wanted=st.sampled_from([READY, DELAYED, BURIED, "one"]), place=which)
    def peek(self, role: str, client: str, wanted: str, place: int) -> None:
        name = self.names[role]
        target: int | str = self.pick(name, place) if wanted == "one" else wanted
        expected = self.expect(lambda: self.model.peek(name, target))
        if client in World.RESP:
            self.send(
                client, "PRESSURE.PEEK", name, target if isinstance(target, int) else target.upper(),
                expected=expected and [*expected],
            )  # fmt: skip
        else:
            self.use(client, name)
            line = f"peek {target}" if isinstance(target, int) else f"peek-{target}"
            self.send_line(client, line, expected or b"NOT_FOUND", queue=name)

    # Native clients

    @precondition(lambda self: len(self.native) < MAX_NATIVE)
    @rule(role=roles, kind=kinds, message=messages, count=st.integers(1, 12))
    def begin_native(self, role: str, kind: str, message: bytes, count: int) -> None:
        steps = NativeSteps(self.direct, self.names[role], f"native-{kind}")
        operations: dict[str, Callable[[], Steps[Any]]] = {
            "put": lambda: steps.put(message),
            "put_nb": lambda: steps.put_non_blocking(message),
            "get": steps.get,
            "get_nb": steps.get_non_blocking,
            "close": steps.close,
        }
        self.native.append(Native(kind, operations[kind]()))
        self.step(self.native[-1], count)

    @precondition(lambda self: self.native)
    @rule(place=st.integers(0, MAX_NATIVE - 1), count=st.integers(1, 12))
    def step_native(self, place: int, count: int) -> None:
        self.step(self.native[place % len(self.native)], count)

    def step(self, native: Native, count: int) -> None:
        """Take so many steps of an operation. A step that waits is the last."""
        for _ in range(count):
            try:
                waits_for = next(native.steps)
            except (StopIteration, NativeError):
                self.native.remove(native)
                break
            if waits_for is not None:
                break
        self.tolerates_token = True
        self.read()
        self.sync()
        self.check()

    @precondition(lambda self: self.native)
    @rule()
    def finish_native(self) -> None:
        for native in list(self.native):
            self.step(native, 20)

    def teardown(self) -> None:
        """End all connections: a failure before is not hidden by another one here."""
        for client in World.CLIENTS:
            if self.world.is_open(client):
                if self.is_consistent:
                    self.close_connection(client)
                else:
                    self.world.close_client(client)
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
