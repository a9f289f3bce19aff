"""Programs of the simulator with a fixed seed, and tests of its player, its worlds and its shrinker."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.simulate.__main__ import shrink
from tests.simulate.commands import COMMANDS
from tests.simulate.play import Difference, Player, shown
from tests.simulate.programs import FLAVOURS, Program, Step, make
from tests.simulate.stand import Stand
from tests.simulate.world import Error, World

SEED = 7_000_000
# By flavour, how many programs are played: together about a minute of processor time.
PROGRAMS = {
    "waits": 40, "workers": 20, "pops": 25, "readers": 25, "jobs": 40, "lists": 40, "marks": 40, "logs": 25,
}  # fmt: skip


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = Stand(tmp_path_factory.mktemp("simulator") / "stand")
    yield made
    made.close()


def with_player(stand: Stand, do: Callable[[Player], Awaitable[None]]) -> Player:
    async def run() -> Player:
        player = Player(stand)
        await do(player)
        await player.close()
        return player

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_servers_reply_as_the_reference_does(stand: Stand, flavour: str) -> None:
    async def play_all(player: Player) -> None:
        for number in range(PROGRAMS[flavour]):
            program = make(SEED + number, (flavour,))
            try:
                await player.play(program)
            except Difference as difference:
                pytest.fail(f"program {number}\n{shown(program, difference.steps)}\n{difference}")

    player = with_player(stand, play_all)
    assert player.tally.programs == PROGRAMS[flavour]
    assert player.tally.steps > 5 * PROGRAMS[flavour]
    assert flavour != "waits" or player.tally.waits > PROGRAMS[flavour]
    assert stand.is_clean()


def test_a_seed_decides_the_program() -> None:
    assert make(SEED) == make(SEED) != make(SEED + 1)


def test_a_wrong_reply_is_a_difference_that_shrinks_to_its_steps(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = COMMANDS["SCARD"]._replace(action=lambda world, operation, names: 5)
    monkeypatch.setitem(COMMANDS, "SCARD", wrong)
    others = [Step(0, (("SADD", "b", b"m%d" % number),)) for number in range(5)]
    steps = (*others, Step(0, (("SADD", "a", b"m"),)), *others, Step(0, (("SCARD", "a"),)))
    program = Program("waits", (("resp2", 0),), steps)

    async def play_and_shrink(player: Player) -> None:
        with pytest.raises(Difference, match="client 0 got the reply 1") as found:
            await player.play(program)
        await shrink(player, program._replace(steps=tuple(found.value.steps)))

    with_player(stand, play_and_shrink)
    printed = capsys.readouterr().out
    assert "shrunk to 1 steps" in printed
    assert "client 0 (resp2): SCARD a" in printed


def outcomes(world: World, client: int, *commands: tuple[object, ...]) -> list[World]:
    world = world.copy()
    world.clients[client].pending = list(commands)
    return world.outcomes()


def test_a_world_fixes_the_order_only_within_one_server() -> None:
    def served(*servers: int) -> list[int]:
        world = World(COMMANDS, [*servers, 0])
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


def test_a_wait_ends_when_the_queue_is_deleted() -> None:
    world = World(COMMANDS, [0, 0])
    (world,) = outcomes(world, 0, ("SADD", "q", b"m"), ("SPOP", "q"), ("BLPOP", "q", 0))
    (world,) = outcomes(world, 1, ("DEL", "q"))
    assert world.clients[0].outbox == [1, b"m", Error("NOQUEUE")]


def test_what_a_client_has_reserved_is_given_up_when_it_leaves() -> None:
    world = World(COMMANDS, [0, 0])
    (world,) = outcomes(world, 0, ("RPUSH", "q", b"m"), ("PRESSURE.RESERVE", "q"))
    (waiting,) = outcomes(world, 1, ("BLPOP", "q", 0))
    assert not waiting.clients[1].outbox
    waiting.hang_up(0)
    (served,) = waiting.outcomes()
    assert served.clients[1].outbox == [[b"q", b"m"]]
