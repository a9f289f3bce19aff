"""Random sessions of three to five clients on beanstalkd and on a server: they wait, release, kick and leave.

PRESSURE_BEANSTALK_SESSIONS is the number of sessions, PRESSURE_BEANSTALK_SEED the first one's seed. A program
is played step by step on both. After each step each client has received what tests/support/beanstalk_world.py
expects of its side: for both sides the same, but for the two rules that differ on purpose.
"""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.beanstalk_sessions import Played, differs_again, minimized, play
from tests.support.beanstalkd import running_beanstalkd
from tests.support.programs import Server, Valkey

pytestmark = pytest.mark.clients

SESSIONS = int(os.environ.get("PRESSURE_BEANSTALK_SESSIONS", "30"))
SEED = int(os.environ.get("PRESSURE_BEANSTALK_SEED", "1"))
# How many sessions are played on the same servers, and how many differences are told in full.
_ON_SAME_SERVERS, _TOLD = 250, 5


def compared(folder: Path, seeds: range) -> tuple[dict[int, Played], list[str]]:
    """Play the sessions on new servers. Return them, and what differed."""
    folder.mkdir()
    valkey = Valkey(folder)
    server = Server(folder / "log", "--backend", valkey.url, "--listen", "beanstalk://127.0.0.1:0")
    try:
        with running_beanstalkd() as theirs:
            ports = (theirs, server.port_of("beanstalk"))
            sessions = asyncio.run(play(ports, seeds))
            different = [
                (seed, each)
                for seed, each in sorted(sessions.items())
                if each.difference and asyncio.run(differs_again(ports, each))
            ]
            told = [told_of(ports, *each, is_short=at >= _TOLD) for at, each in enumerate(different)]
        server.end_well()
    finally:
        server.stop()
        valkey.stop()
    return sessions, told


def told_of(ports: tuple[int, int], seed: int, played: Played, *, is_short: bool) -> str:
    """Return the difference, with a program as short as possible."""
    found = f"PRESSURE_BEANSTALK_SEED={seed}: {played.difference}"
    if is_short:
        return found
    least = asyncio.run(minimized(ports, played))
    steps = "\n".join(f"    {step}" for step in least.steps)
    return f"{found}\n  {least.difference}, after these steps (client: command):\n{steps}"


@pytest.mark.timeout(300 + SESSIONS)
def test_several_clients_receive_what_beanstalkd_replies(tmp_path: Path) -> None:
    sessions: dict[int, Played] = {}
    told: list[str] = []
    for first in range(SEED, SEED + SESSIONS, _ON_SAME_SERVERS):
        seeds = range(first, min(first + _ON_SAME_SERVERS, SEED + SESSIONS))
        some, differences = compared(tmp_path / f"{first}", seeds)
        sessions |= some
        told += differences
    steps = sum(len(each.steps) for each in sessions.values())
    print(f"{len(sessions)} sessions, {steps} steps; {len(told)} sessions differ")
    # A session whose times follow each other too closely can be played on no machine.
    assert len(sessions) >= SESSIONS - SESSIONS // 100
    assert not told, "\n" + "\n".join(told)
