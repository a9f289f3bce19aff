"""`python -m tests.differential`: play random programs for some minutes, and print the differences.

The exit status is 0 if servers and model agree; otherwise 1.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.differential.play import REPLY_TIMEOUT, Difference, Player, Stand, shown
from tests.differential.program import Program, make

# Seconds between lines of progress, and for which a program that differs is shrunk.
_PROGRESS_INTERVAL = 60.0
_SHRINK_TIME = 60.0
_MAX_DIFFERENCES = 5
# The number of programs of a seed.
PROGRAMS = 1_000_000


async def search(player: Player, seed: int, first: int, programs: int, minutes: float) -> list[int]:
    """Play programs. Return the numbers of the programs with different replies."""
    end, report = time.monotonic() + 60 * minutes, time.monotonic() + _PROGRESS_INTERVAL
    differing: list[int] = []
    for number in range(first, first + programs):
        program = make(seed * PROGRAMS + number)
        try:
            await player.play(program)
        except Difference as difference:
            differing.append(number)
            print(f"\ndifference: seed {seed}, program {number}, step {difference.number}")
            print(shown(program, difference.steps))
            print(difference)
            print(f"play it again: python -m tests.differential --seed {seed} --program {number}", flush=True)
            await shrink(player, program._replace(steps=tuple(difference.steps)))
        if time.monotonic() > report:
            print(f"{time.strftime('%H:%M:%S')} {player.tally}", flush=True)
            report = time.monotonic() + _PROGRESS_INTERVAL
        if time.monotonic() > end or len(differing) >= _MAX_DIFFERENCES:
            break
    return differing


async def shrink(player: Player, program: Program) -> None:
    """Leave out steps as long as servers and model still differ. Print the remaining steps."""
    steps = list(program.steps)
    text = ""
    place = len(steps) - 1
    end = time.monotonic() + _SHRINK_TIME
    player.reply_timeout = REPLY_TIMEOUT / 4
    while place >= 0 and time.monotonic() < end:
        fewer = [*steps[:place], *steps[place + 1 :]]
        try:
            await player.play(program._replace(steps=tuple(fewer)))
        except Difference as difference:
            steps, text = difference.steps, str(difference)
            place = min(place, len(steps))
        place -= 1
    player.reply_timeout = REPLY_TIMEOUT
    if text:
        print(f"shrunk to {len(steps)} steps:\n{shown(program, steps, len(steps))}\n{text}", flush=True)
    else:
        print("the steps could not be shrunk", flush=True)


async def _main(arguments: argparse.Namespace, stand: Stand) -> int:
    player = Player(stand)
    programs = PROGRAMS if arguments.program is None else 1
    differing = await search(player, arguments.seed, arguments.program or 0, programs, arguments.minutes)
    await player.close()
    print(f"{player.tally}\n{len(differing)} programs differ{': ' if differing else ''}{differing or ''}")
    if not stand.is_clean():
        print("errors in the logs of the servers")
    return 1 if differing or not stand.is_clean() else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="time to play")
    parser.add_argument("--seed", type=int, default=1, help="decides all programs")
    parser.add_argument("--program", type=int, help="play only the program of this number")
    parser.add_argument("--folder", type=Path, help="new folder for logs and data; default: a temporary one")
    return parser.parse_args()


def main() -> int:
    """Return the exit status."""
    arguments = _arguments()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="differential-"))
    print(f"seed {arguments.seed}, logs and data in {folder}", flush=True)
    # End the servers on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    stand = Stand(folder)
    try:
        return asyncio.run(_main(arguments, stand))
    finally:
        stand.close()


if __name__ == "__main__":
    sys.exit(main())
