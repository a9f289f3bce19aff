"""Operations of several clients in one call: each has the answer that it would have alone.

Operations are folded into runs, packed, done by the script, and the replies are distributed, as a lane does.
`PRESSURE_ALL_RUNS=1` tries three times as many calls.
"""

import os
import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import pytest

from pressure_server.errors import PressureError
from pressure_server.queues.operations import batch, verbs
from pressure_server.queues.operations.jobs import job_to_put, owned, owned_between, released, word_of
from pressure_server.queues.operations.operation import Operation, Owner, Verb
from pressure_server.queues.operations.options import DEFAULT, UNIQUE, OnFull, Options
from pressure_server.queues.operations.refusals import exception_for
from tests.support.programs import Client
from tests.support.scripts import RECORDS, Block, Run, call

_IN_FULL = bool(os.environ.get("PRESSURE_ALL_RUNS"))
QUEUE, OTHER, LOG = (f"__pressure__:{name}" for name in ("q", "other", "log"))
TOKEN = b"@t"
# In every world, these jobs have been reserved for TOKEN if there are any; then those that have been buried.
HELD, BURIED = (1, 2, 3, 4), (5, 6)


class Asked(NamedTuple):
    """What one client asks for."""

    verb: Verb
    messages: tuple[bytes, ...] = ()
    options: Options = DEFAULT
    size: int | None = None

    def operation(self) -> Operation:
        """Return a new operation, of a client of its own."""
        size = max(1, len(self.messages)) if self.size is None else self.size
        return Operation(self.verb, b"q", list(self.messages), size, _Client(), options=self.options)


class _Client(Owner):
    def completed(self, operation: Operation) -> None:
        """Nothing waits for the operation."""


def _jobs(verb: Verb, suffix: bytes = b"") -> Iterator[Asked]:
    for job in (*HELD, *BURIED, 99):
        yield Asked(verb, (owned(job, TOKEN) + suffix,))
    yield Asked(verb, tuple(owned(job, TOKEN) + suffix for job in HELD[:2]))
    yield Asked(verb, (owned(HELD[0], b"@stranger") + suffix,))
    if verb in (verbs.DELETE_JOB, verbs.TOUCH):
        yield Asked(verb, (owned(HELD[3], TOKEN), owned_between(HELD[1], 99, TOKEN), owned(HELD[0], TOKEN)))


def _catalog() -> list[Asked]:
    job, flagged = Options(is_job=True), Options(has_flags=True, on_full=OnFull.FAIL)
    return [
        *(Asked(verbs.PUT, (text,)) for text in (b"new", b"m1", b"")),
        Asked(verbs.PUT, (b"x", b"y", b"z")),
        *(Asked(verbs.PUT, (text,), UNIQUE) for text in (b"new", b"m5")),
        *(Asked(verbs.PUT, (job_to_put(text, 7),), job) for text in (b"job", b"other job")),
        *(Asked(verbs.PUT, (text,), flagged) for text in (b"5 0 flagged", b"0 0 plain")),
        *(Asked(verbs.PUT, (text,), Options(has_offset=True)) for text in (b"at", b"at next")),
        *(Asked(verbs.PUT, (text,), Options(must_exist=True)) for text in (b"only", b"if it exists")),
        *(Asked(verbs.PUT, (text,), Options(on_full=OnFull.OVERWRITE)) for text in (b"over", b"written")),
        *(Asked(verbs.GET, size=size) for size in (1, 1, 2)),
        Asked(verbs.GET, options=Options(has_flags=True), size=1),
        *(Asked(verbs.RESERVE, (TOKEN,)) for _ in range(2)),
        *(Asked(verbs.RESERVE_JOB, (word_of(job), TOKEN), size=1) for job in (5, 7, 99)),
        *(Asked(verbs.MOVE, (OTHER.encode(), *some), size=1) for some in ((), (b"m5",), (b"no",))),
        *(Asked(verbs.REMOVE, some) for some in ((b"m5",), (b"no",), (b"m4", b"m5"))),
        *(Asked(verbs.REMOVE_COPIES, (number, b"m5"), size=1) for number in (b"0", b"1", b"-1")),
        *_jobs(verbs.DELETE_JOB),
        *_jobs(verbs.TOUCH),
        *_jobs(verbs.BURY),
        *_jobs(verbs.BURY, b" 7"),
        *(Asked(verbs.RELEASE, (released(job, TOKEN),)) for job in (*HELD, 99)),
        *(Asked(verbs.RELEASE, (released(job, TOKEN, priority=7),)) for job in HELD),
        *(Asked(verbs.RELEASE, (released(job, TOKEN, delay=100),)) for job in HELD[:2]),
        Asked(verbs.RELEASE, tuple(released(job, TOKEN, priority) for job, priority in ((1, None), (2, 7)))),
        Asked(verbs.GIVE_UP, (owned(1, TOKEN),)),
        *(Asked(verbs.KICK_JOB, (word_of(job),)) for job in BURIED),
        Asked(verbs.KICK, (b"1", b"")),
        *(Asked(verbs.CONTAINS, some) for some in ((b"m5",), (b"no", b"m1"))),
        *(Asked(verb) for verb in (verbs.LENGTH, verbs.EXISTS, verbs.PEEK)),
        Asked(verbs.RANGE, (b"0", b"-1"), size=1),
        Asked(verbs.SCAN, (b"0", b"3"), size=1),
        Asked(verbs.POSITIONS, (b"m5", b"1", b"0", b"0"), size=1),
        Asked(verbs.AT, (b"1", b"2", b"1000")),
        Asked(verbs.FROM, (b"1", b"2"), size=1),
        Asked(verbs.FROM, (b"1000", b"2"), size=1),
        Asked(verbs.OUTCOME, (b"id",), size=1),
        *(Asked(verbs.PEEK_JOB, (which,), size=1) for which in (b"ready", b"buried", word_of(1))),
        Asked(verbs.CREATE, (b"0", b"", b""), size=1),
        Asked(verbs.ALTER, (b"max_deliveries", b"3"), size=1),
        *(Asked(verb) for verb in (verbs.CLOSE, verbs.DELETE, verbs.FINISH_DELETE)),
        Asked(verbs.TURN),
        *(Asked(verbs.REDRIVE, (to, b"5", b"0"), size=1) for to in (b"", OTHER.encode())),
        *(Asked(verbs.TRIM, some, size=1) for some in ((b"1", b"-1"), (b"0", b"-2"))),
        *(Asked(verbs.PURGE, some, size=1) for some in ((b"ready",), (b"reserved",), (b"buried",))),
        Asked(verbs.GROUP, (b"create", f"{QUEUE}+g".encode(), b"head"), size=1),
        Asked(verbs.GROUP, (b"delete", f"{QUEUE}+none".encode()), size=1),
        Asked(verbs.PAUSE, (b"0",), size=1),
    ]  # fmt: skip


CATALOG = _catalog()
# What only servers ask for; what describes a queue with times, or picks at random; and what only a queue with
# ACK NEXT answers.
LEFT_OUT = {
    "pop", "put_back", "version", "info", "examine", "repair", "sample", "job_info", "pending", "reserved",
    "claim",
}  # fmt: skip


Made = tuple[str, tuple[Run, ...]]


def _on(base: str, *runs: Run) -> Made:
    return base, runs


def _create(*settings: str, bound: str = "0", base: str = QUEUE) -> Made:
    return _on(base, ("create", bound, "error", "", *settings))


def _fill(base: str = QUEUE) -> Made:
    return _on(base, ("put", "", *(f"m{number}" for number in range(8))))


_CLAIMS = [TOKEN] * (len(HELD) + len(BURIED))
_RESERVE = _on(QUEUE, ("reserve", *_CLAIMS), ("bury", *(owned(job, TOKEN) for job in BURIED)))
_PLAIN = [_create(), _fill()]
_RESERVED = [_create("type", "fifo"), _fill(), _RESERVE]
_JOBS = [_create("type", "jobs"), _fill(), _RESERVE]
_LOG = [_create("type", "log"), _fill()]
# Jobs that the next release would have to bury.
_SPENT = [
    *(_create("type", "jobs"), _fill(), _on(QUEUE, ("reserve", *[TOKEN] * 4))),
    _on(QUEUE, ("release", released(1, TOKEN), released(2, TOKEN))),
    _on(QUEUE, ("reserve", *[TOKEN] * 2), ("alter", "max_deliveries", "2")),
]
# For each world: the blocks that create it, and the keys that are overwritten after them.
WORLDS: dict[str, tuple[list[Made], dict[str, str]]] = {
    "missing": ([], {}),
    "plain": (_PLAIN, {}),
    "reserved": (_RESERVED, {}),
    "reserved closed": ([*_RESERVED, _on(QUEUE, ("close",))], {}),
    "jobs": (_JOBS, {}),
    "lifo": ([_create("type", "lifo"), _fill(), _RESERVE], {}),
    "full": (
        [_create(bound="9"), _fill(), _create(bound="1", base=OTHER), _on(OTHER, ("put", "", "there"))], {},
    ),
    "other closed": ([*_PLAIN, _create(base=OTHER), _on(OTHER, ("close",))], {}),
    "log": (_LOG, {}),
    "log with group": ([*_LOG, _on(QUEUE, ("group", "create", f"{QUEUE}+h", "head"))], {}),
    "group": (
        [
            *(_create("type", "log", base=LOG), _fill(LOG)),
            *(_on(LOG, ("group", "create", QUEUE, "head")), _RESERVE),
        ],
        {},
    ),
    "native producer": (_RESERVED, {":producer_free": "", ":producer": "native-1"}),
    "native consumer": (_RESERVED, {":consumer_free": "", ":consumer": "native-1"}),
    "creating": ([], {":bound": "0"}),
    "wrong marks": (_PLAIN, {":ext:marks": "wrong"}),
    "wrong members": (_PLAIN, {":ext:members": "wrong"}),
    "wrong copies of jobs": (_JOBS, {":ext:equal": "wrong"}),
    "wrong buried jobs": (_SPENT, {":ext:buried": "wrong"}),
    "wrong list": (_PLAIN, {"": "wrong"}),
    "wrong offsets": (_LOG, {":ext:outcomes": "wrong"}),
}  # fmt: skip


def make(direct: Client, world: str) -> None:
    """Make a world on the empty backend."""
    blocks, keys = WORLDS[world]
    for base, runs in blocks:
        for run in runs:
            call(direct, Block([base], [run]))
    for suffix, value in keys.items():
        direct.delete(QUEUE + suffix)
        if value:
            direct.set(QUEUE + suffix, value)


def answer(operation: Operation, *, waits: bool) -> Any:
    """Return what the operation's client is told."""
    if operation.error is not None:
        return type(operation.error).__name__, str(operation.error)
    wait = operation.wait
    results = [str(one) if isinstance(one, PressureError) else one for one in operation.results]
    return ("waits", str(wait and wait.condition), results) if waits else results


def do(direct: Client, asked: Sequence[Operation]) -> list[Any]:
    """Do operations in one block, and then what is left of them. Return their answers."""
    answers: dict[Operation, Any] = {}
    pending = list(asked)
    for number in count(1):
        if not pending:
            break
        assert number < 10
        for operation in pending:
            operation.is_sealed = True
        runs = batch.fold(pending)
        bases = [QUEUE, *(o.messages[0].decode() for o in pending if o.verb.moves)]
        packed: list[Run] = [
            (run[0].verb.name + run[0].options.words, *run[0].verb.pack(run)) for run in runs
        ]
        (reply,) = call(direct, Block(bases, packed), number=number)
        if isinstance(reply, Exception):
            outcome = batch.progress_after_refusal(runs, str(reply))
            for operation in outcome.ended:
                operation.fail(exception_for(b"q", str(reply)))
        else:
            outcome = batch.distribute(runs, reply) or batch.Progress(runs[0])
        answers |= {operation: answer(operation, waits=False) for operation in outcome.ended}
        answers |= {operation: answer(operation, waits=True) for operation in outcome.must_wait}
        pending = list(outcome.resend)
    return [answers[operation] for operation in asked]


def in_order(asked: Sequence[Asked]) -> list[Operation]:
    """Return operations in the order in which one block does them."""
    return [operation for run in batch.fold([one.operation() for one in asked]) for operation in run]


def content(direct: Client) -> dict[str, Any]:
    """Return what is stored, without times, and without what the script derives from the rest."""
    found: dict[str, Any] = {}
    derived = (":made", ":due", ":index", ":members", ":copies", ":equal", ":blocks")
    # The log of a group drops what the group has passed before the group is deleted, or not at all.
    names = [
        name
        for name in map(bytes.decode, sorted(direct.keys("*")))
        if not (name.endswith(derived) or "!" in name or name.startswith(LOG))
    ]
    for name, kind, stored in zip(names, *_types_and_values(direct, names), strict=True):
        if kind == b"list":
            found[name] = stored if ":" not in name[13:] else len(stored)
        elif kind == b"zset":
            has_times = name.endswith((":delayed", ":reserved", ":outcome_times"))
            found[name] = sorted(place for place, _ in stored) if has_times else stored
        elif kind == b"hash" and name.endswith(":ext:jobs"):
            found[name] = {
                field: value if field.endswith(b":") else value.split(b" ", 1)[1]
                for field, value in stored.items()
            }
        elif kind == b"hash":
            left = {b"since", b"buried", b"paused"}
            found[name] = {field: value for field, value in stored.items() if field not in left}
        elif kind == b"string":
            found[name] = stored
    return _each_message_alone(found)


def _types_and_values(direct: Client, names: Sequence[str]) -> tuple[list[bytes], list[Any]]:
    """Return the types of the keys, and what each holds."""
    with direct.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.type(name)
        kinds: list[bytes] = pipeline.execute()
        read = {
            b"list": lambda name: pipeline.lrange(name, 0, -1),
            b"zset": lambda name: pipeline.zrange(name, 0, -1, withscores=True),
            b"hash": pipeline.hgetall,
            b"string": pipeline.get,
            b"set": pipeline.smembers,
        }
        for name, kind in zip(names, kinds, strict=True):
            read[kind](name)
        return kinds, pipeline.execute()


def _each_message_alone(found: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored with a range for each message: which of them are in one range may differ."""
    key = f"{QUEUE}:ext:"
    jobs: dict[bytes, bytes] = found.get(key + "jobs", {})
    counts = {field: int(value[1:].split(b" ")[0]) for field, value in jobs.items() if value.startswith(b"=")}

    def each(job: bytes) -> list[bytes]:
        return [b"%013x" % (int(job, 16) + at) for at in range(counts[job])] if job in counts else [job]

    for job in counts:
        _, size, offset = jobs.pop(job)[1:].split(b" ")
        about = jobs.pop(job + b":")
        for at, one in enumerate(each(job)):
            jobs |= {one: b"= %d" % (int(offset) + at), one + b":": about}
        jobs[b"bytes of ranges"] = b"%d" % (int(size) + int(jobs.get(b"bytes of ranges", 0)))
    if counts:
        offsets, reserved = found[key + "offsets"], found[key + "reserved"]
        found[key + "offsets"] = sorted(
            (one, offset + at) for job, offset in offsets for at, one in enumerate(each(job))
        )
        found[key + "reserved"] = sorted(one for job in reserved for one in each(job))
    assert int(found.get(key + "settings", {}).pop(b"ranged", 0)) == sum(counts.values()) - len(counts)
    return found


def batches(world: str) -> Iterator[list[Asked]]:
    """Yield for each entry of the catalog a call in which it is first, in the middle or last; or all."""
    picked = random.Random(world)
    for number, one in enumerate(CATALOG):
        alike = [other for other in CATALOG if other.verb is one.verb]
        for place in range(3) if _IN_FULL else [number % 3]:
            others = [*picked.choices(alike, k=2), *picked.choices(CATALOG, k=2)]
            picked.shuffle(others)
            if place == 1:
                # In one run, so that the operation is in its middle.
                others = [*picked.choices(alike, k=1), *others]
            at = (0, 1, len(others))[place]
            some = [*others[:at], one, *others[at:]]
            # Messages that go back together do so in the order in which they were put, and one by one in that
            # of the commands.
            back = [asked for asked in some if asked.verb in (verbs.GIVE_UP, verbs.KICK_JOB)]
            # The second step of a deletion waits for the roles of a queue that a native client is creating.
            out = [one for one in some if world == "creating" and one.verb is verbs.DELETE]
            yield [asked for asked in some if asked not in [*back[1:], *out]]


def test_the_catalog_has_all_verbs() -> None:
    everything = {verb.name.decode() for verb in vars(verbs).values() if isinstance(verb, Verb)}
    assert {one.verb.name.decode() for one in CATALOG} | LEFT_OUT == everything


@pytest.mark.parametrize("world", WORLDS)
def test_operations_have_the_same_answers_together_as_one_by_one(direct: Client, world: str) -> None:
    differences: list[str] = []
    direct.hset(RECORDS, "epoch", 1)
    make(direct, world)
    made = {key: direct.dump(key) for key in direct.keys("*")}
    for asked in batches(world):
        seen = []
        for is_together in (True, False):
            with direct.pipeline(transaction=False) as pipeline:
                pipeline.flushall()
                for key, dumped in made.items():
                    pipeline.restore(key, 0, dumped)
                pipeline.execute()
            operations = in_order(asked)
            answers = (
                do(direct, operations)
                if is_together
                else [found for operation in operations for found in do(direct, [operation])]
            )
            call(direct, Block([QUEUE], [("length",)]))  # the queue of a group makes its next job
            seen.append((answers, content(direct)))
        if seen[0] != seen[1]:
            differences.append("\n  ".join([f"{world}:", *_differences(operations, *seen)]))
    assert not differences, "\n".join(differences[:5])


def _differences(operations: Sequence[Operation], one: Any, other: Any) -> Iterator[str]:
    for operation, together, alone in zip(operations, one[0], other[0], strict=True):
        yield f"{operation.verb!r} {operation.messages}: together {together}, alone {alone}"
    for key in sorted({*one[1], *other[1]}):
        if one[1].get(key) != other[1].get(key):
            yield f"{key}: together {one[1].get(key)}, alone {other[1].get(key)}"
