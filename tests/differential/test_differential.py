"""Programs of the differential test with a fixed seed, and tests of its player and its model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.model import COMMANDS, Error, World
from tests.differential.play import Difference, Player, Stand, shown
from tests.differential.program import Program, Step, make

SEED = 7_000_000
PROGRAMS = 40


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "stand")
    yield made
    made.close()


def play(stand: Stand, *programs: Program) -> Player:
    async def play_all() -> Player:
        player = Player(stand)
        for number, program in enumerate(programs):
            try:
                await player.play(program)
            except Difference as difference:
                pytest.fail(f"program {number}\n{shown(program, difference.steps)}\n{difference}")
        await player.close()
        return player

    return asyncio.run(play_all())


@pytest.mark.slow
def test_servers_reply_as_the_model_does(stand: Stand) -> None:
    player = play(stand, *(make(SEED + number) for number in range(PROGRAMS)))
    assert player.tally.programs == PROGRAMS
    assert player.tally.waits > PROGRAMS
    assert stand.is_clean()


def test_a_seed_decides_the_program() -> None:
    assert make(SEED) == make(SEED) != make(SEED + 1)


def test_a_wrong_reply_is_reported_as_a_difference(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = COMMANDS["SCARD"]._replace(action=lambda world, operation, names: 5)
    monkeypatch.setitem(COMMANDS, "SCARD", wrong)
    program = Program((("resp2", 0),), (Step(0, (("SADD", "a", b"m"),)), Step(0, (("SCARD", "a"),))))
    with pytest.raises(pytest.fail.Exception, match="client 0 got the reply 1"):
        play(stand, program)


def outcomes(world: World, client: int, *commands: tuple[object, ...]) -> list[World]:
    world = world.copy()
    world.clients[client].pending = list(commands)
    return world.outcomes()


def test_the_model_fixes_the_order_only_within_one_server() -> None:
    def served(*servers: int) -> list[int]:
        world = World([*servers, 0])
        for client in (0, 1):
            (world,) = outcomes(world, client, ("BLPOP", "q", 0))
        return sorted(
            number
            for world in outcomes(world, 2, ("SADD", "q", b"m"))
            for number in (0, 1)
            if world.clients[number].outbox
        )

    assert served(0, 0) == [0]
    assert served(0, 1) == [0, 1]


def test_the_model_ends_a_wait_when_the_queue_is_deleted() -> None:
    (world,) = outcomes(World([0, 0]), 0, ("SADD", "q", b"m"), ("SPOP", "q"), ("BLPOP", "q", 0))
    (world,) = outcomes(world, 1, ("DEL", "q"))
    assert world.clients[0].outbox == [1, b"m", Error("NOQUEUE")]
