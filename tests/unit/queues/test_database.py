"""A database of several shards in memory: to which shards its work goes, and how their answers are joined."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.errors import CrossShardError
from pressure_server.queues.database import Database
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.operation import Operation, Verb
from pressure_server.queues.operations.owners import Answers, Client, CoroutineOwner
from pressure_server.queues.placement import Placement
from pressure_server.queues.policy import Policy
from pressure_server.queues.shard import Shard

SHARDS = 4


class FakeShard:
    """A shard that numbers the operations that it does, and notes what is asked of it."""

    database_number = 0
    policy = Policy()
    answers = Answers()
    is_away = False

    def __init__(self, number: int, prefix: bytes) -> None:
        self.number = number
        self.prefix = prefix
        self.added: list[bytes] = []
        self.reads_ended = 0
        self.done = 0
        # What a scan returns, step by step.
        self.steps: list[list[bytes]] = [[]]
        self.keys = self

    def add(self, operation: Operation) -> object:
        self.added.append(operation.name)
        return operation.name

    def end_of_read(self) -> None:
        self.reads_ended += 1

    def _answer(self, name: bytes) -> bytes:
        self.done += 1
        return b"%b in %d, %d" % (name, self.number, self.done)

    async def run_each(
        self, _verb: Verb, names: Sequence[bytes], _arguments: list[bytes] | None, _client: Client | None
    ) -> list[Any]:
        return [self._answer(name) for name in names]

    @property
    def ranges(self) -> Self:
        return self

    async def read(self, names: Sequence[bytes], first: int, last: int) -> list[list[bytes] | None]:
        return [[self._answer(name), b"%d" % first, b"%d" % last] for name in names]

    async def scan(self, cursor: bytes, _count: int = 10) -> tuple[bytes, list[bytes]]:
        step = int(cursor)
        return b"%d" % ((step + 1) % len(self.steps)), self.steps[step]


class World:
    """A database of fake shards."""

    def __init__(self, count: int = SHARDS) -> None:
        placement = Placement(b"p", count)
        self.shards = [FakeShard(number, prefix) for number, prefix in enumerate(placement.prefixes)]
        self.database = Database(cast(list[Shard], self.shards), placement)

    def shard_of(self, name: bytes) -> FakeShard:
        return cast(FakeShard, self.database.shard_of(name))

    def answers(self, names: Sequence[bytes]) -> list[bytes]:
        """Return the answers to operations on these names, one after the other."""
        done = dict.fromkeys(range(len(self.shards)), 0)
        answers = []
        for name in names:
            number = self.shard_of(name).number
            done[number] += 1
            answers.append(b"%b in %d, %d" % (name, number, done[number]))
        return answers

    def name_in(self, number: int, but: bytes = b"") -> bytes:
        """Return the name of a queue of that shard; another one than `but`."""
        names = (b"queue-%d" % one for one in range(1000))
        return next(name for name in names if name != but and self.shard_of(name).number == number)

    def scanned(self) -> list[bytes]:
        """Return what a whole scan returns, as a client reads it."""

        async def scan() -> list[bytes]:
            found: list[bytes] = []
            cursor = b"0"
            while True:
                cursor, names = await self.database.scan(cursor)
                found += names
                if cursor == b"0":
                    return found

        return asyncio.run(scan())


# Few names, so that many come twice.
lists_of_names = st.lists(st.integers(0, 9).map(lambda number: b"queue-%d" % number), max_size=20)


@given(lists_of_names)
def test_by_shard_keeps_the_order_of_names_in_each_shard(names: list[bytes]) -> None:
    world = World()
    found = dict(world.database.by_shard(names))
    for shard, some in found.items():
        assert some == [name for name in names if world.database.shard_of(name) is shard]
    assert sum(map(len, found.values())) == len(names)


def test_by_shard_begins_with_the_shard_of_the_first_name() -> None:
    world = World()
    names = [world.name_in(number) for number in (2, 0, 2, 3)]
    assert [cast(FakeShard, shard).number for shard, _ in world.database.by_shard(names)] == [2, 0, 3]


@given(lists_of_names)
def test_results_come_in_the_order_of_names_also_if_one_comes_twice(names: list[bytes]) -> None:
    world = World()
    assert asyncio.run(world.database.run_each(verbs.EXISTS, names)) == world.answers(names)
    found = asyncio.run(World().database.ranges(names, 2, -1))
    assert found == [[answer, b"2", b"-1"] for answer in world.answers(names)]


def test_queues_have_a_common_shard_or_the_error_names_two_that_have_none() -> None:
    world = World()
    first = world.name_in(1)
    same = world.name_in(1, but=first)
    assert world.database.common_shard(first) is world.database.shards[1]
    assert world.database.common_shard(first, same, first) is world.database.shards[1]
    assert world.database.prefix_of(first, same) == world.shards[1].prefix
    other = next(b"%d\n" % one for one in range(1000) if world.shard_of(b"%d\n" % one).number == 2)
    for find in (world.database.common_shard, world.database.prefix_of):
        with pytest.raises(CrossShardError) as refused:
            find(first, same, other)
        assert refused.value.code == "CROSSSLOT"
        assert str(refused.value) == (
            f"'{first.decode()}' and '{other[:-1].decode()}\\n' are in different shards: "
            "give both the same {tag} in their names"
        )


@pytest.mark.parametrize("block", [0, 1, SHARDS - 1, SHARDS, 10 * SHARDS + 2])
def test_a_block_of_job_ids_tells_its_shard(block: int) -> None:
    world = World()
    assert world.database.shard_of_block(block) is world.database.shards[block % SHARDS]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans())
def test_a_scan_returns_the_steps_of_all_shards(steps_of_shards: list[int], are_empty: bool) -> None:
    world = World(len(steps_of_shards))
    for shard, steps in zip(world.shards, steps_of_shards, strict=True):
        shard.steps = [[] if are_empty else [b"%d-%d" % (shard.number, step)] for step in range(steps)]
    assert world.scanned() == [name for shard in world.shards for names in shard.steps for name in names]


async def test_all_queues_come_once_whatever_a_scan_repeats() -> None:
    """Also in a sample, which has some of each shard."""
    world = World(32)
    for shard in world.shards:
        shard.steps = [[b"a-%d" % shard.number], [b"a-%d" % shard.number, b"b-%d" % shard.number]]
    found = [name async for name in world.database.queues()]
    assert found == [b"%b-%d" % (kind, number) for number in range(32) for kind in (b"a", b"b")]
    names, is_complete = await world.database.sample_queues()
    assert ({name[2:] for name in names}, is_complete) == ({b"%d" % number for number in range(32)}, True)


async def test_shards_that_are_away_are_left_out_of_a_sample_and_of_what_is_reachable() -> None:
    world = World()
    for shard in world.shards:
        shard.steps = [[b"%d" % shard.number]]
    world.shards[1].is_away = True
    found = [name async for name in world.database.queues(reachable=True)]
    assert found == [b"0", b"2", b"3"]
    assert await world.database.sample_queues() == (found, False)
    reachable = cast(list[FakeShard], world.database.reachable_shards)
    assert [shard.number for shard in reachable] == [0, 2, 3]


async def test_the_end_of_a_read_is_told_only_to_the_shards_that_it_has_used() -> None:
    world = World()
    first, other = world.name_in(1), world.name_in(3)
    for name in (first, other, first):
        operation = Operation(verbs.LENGTH, name, [], 1, CoroutineOwner(None))
        assert cast(object, world.database.add(operation)) == name
    for _ in range(2):
        world.database.end_of_read()
        assert [shard.reads_ended for shard in world.shards] == [0, 1, 0, 1]
    assert (world.shards[1].added, world.shards[3].added) == ([first, first], [other])
    alone = World(1)
    alone.database.end_of_read()
    assert alone.shards[0].reads_ended == 1
