"""`python -m tests.simulate`: play random programs for some minutes, and print the differences.

The exit status is 0 if servers and reference agree; otherwise 1.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from pressure_server.queues.lanes import lane
from tests.interleavings.world import World as Interleaved
from tests.simulate.play import REPLY_TIMEOUT, Difference, Player, shown
from tests.simulate.programs import FLAVOURS, Program, make
from tests.simulate.stand import Stand

# Seconds between lines of progress, and for which a program that differs is shrunk.
_PROGRESS_INTERVAL = 60.0
_SHRINK_TIME = 60.0
_MAX_DIFFERENCES = 5
# The number of programs of a seed.
PROGRAMS = 1_000_000


async def search(
    player: Player, arguments: argparse.Namespace, first: int, programs: int, most: int = _MAX_DIFFERENCES
) -> list[int]:
    """Play programs. Return the numbers of the programs with different replies."""
    seed, end, report = (
        arguments.seed,
        time.monotonic() + 60 * arguments.minutes,
        time.monotonic() + _PROGRESS_INTERVAL,
    )
    differing: list[int] = []
    for number in range(first, first + programs):
        program = make(seed * PROGRAMS + number, tuple(arguments.only.split(",")))
        try:
            await player.play(program)
        except Difference as difference:
            differing.append(number)
            print(f"\ndifference: seed {seed}, program {number}, step {difference.number}")
            print(shown(program, difference.steps))
            print(difference)
            print(
                f"again: python -m tests.simulate --seed {seed} --program {number} --only {arguments.only} "
                f"--backend {arguments.backend}",
                flush=True,
            )
            if arguments.most > 1:
                await shrink(player, program._replace(steps=tuple(difference.steps)))
        if time.monotonic() > report:
            print(f"{time.strftime('%H:%M:%S')} {player.tally}", flush=True)
            report = time.monotonic() + _PROGRESS_INTERVAL
        if time.monotonic() > end or len(differing) >= most:
            break
    return differing


async def shrink(player: Player, program: Program) -> None:
    """Leave out steps as long as servers and reference still differ. Print the remaining steps."""
    steps, text = list(program.steps), ""
    end, size = time.monotonic() + _SHRINK_TIME, max(1, len(steps) // 2)
    player.reply_timeout = REPLY_TIMEOUT / 4
    while time.monotonic() < end:
        at, before = 0, len(steps)
        while at < len(steps) and time.monotonic() < end:
            try:
                await player.play(program._replace(steps=(*steps[:at], *steps[at + size :])))
                at += size
            except Difference as difference:
                steps, text = difference.steps, str(difference)
        if size == 1 and len(steps) == before:
            break
        size = max(1, size // 2)
    player.reply_timeout = REPLY_TIMEOUT
    if text:
        print(f"shrunk to {len(steps)} steps:\n{shown(program, steps, len(steps))}\n{text}", flush=True)
    else:
        print("the steps could not be shrunk", flush=True)


async def _main(arguments: argparse.Namespace, stand: Stand) -> int:
    player = Player(stand)
    programs = arguments.programs if arguments.program is None else 1
    differing = await search(player, arguments, arguments.program or 0, programs, arguments.most)
    await player.close()
    print(f"{player.tally}\n{len(differing)} programs differ{': ' if differing else ''}{differing or ''}")
    if not stand.is_clean():
        print("errors in the logs of the servers")
    return 1 if differing or not stand.is_clean() else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="time to play")
    parser.add_argument("--seed", type=int, default=1, help="decides all programs")
    parser.add_argument("--program", type=int, help="play only the program of this number")
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="the most programs to play")
    parser.add_argument("--only", default=",".join(FLAVOURS), help="only these flavours, with commas")
    parser.add_argument(
        "--backend", choices=("valkey", "redis", "cluster", "memory"), default="valkey", help="the backend"
    )
    parser.add_argument(
        "--most", type=int, default=_MAX_DIFFERENCES, help="the number of differences after which to stop"
    )
    parser.add_argument("--folder", type=Path, help="new folder for logs and data; default: a temporary one")
    return parser.parse_args()


def _play_in_memory(arguments: argparse.Namespace) -> int:
    """Play interleavings of lanes and the courier. Return the exit status."""
    end = time.monotonic() + 60 * arguments.minutes
    first = arguments.program or 0
    last = first + (arguments.programs if arguments.program is None else 1)
    for number in range(first, last):
        # Few operations meet. In half of the worlds, blocks leave ahead of replies if two are pending.
        lane._ENOUGH_TO_SEND = 2 if number % 2 else 16  # type: ignore[misc]
        try:
            Interleaved(arguments.seed * PROGRAMS + number).play()
        except Exception as error:
            error.add_note(f"again: --backend memory --seed {arguments.seed} --program {number}")
            raise
        if time.monotonic() > end:
            break
    print(f"{number - first + 1} worlds in memory")
    return 0


def main() -> int:
    """Return the exit status."""
    arguments = _arguments()
    if arguments.backend == "cluster":
        arguments.only = "waits,pops,readers"  # the others look into the backend, or need ids of jobs
    if arguments.backend == "memory":
        return _play_in_memory(arguments)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="simulate-"))
    print(f"seed {arguments.seed}, logs and data in {folder}", flush=True)
    # End the servers on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    stand = Stand(folder, arguments.backend)
    try:
        return asyncio.run(_main(arguments, stand))
    finally:
        stand.close()


if __name__ == "__main__":
    sys.exit(main())
