"""The core in memory, in many interleavings: operations, replies, news, times, faults, clients that leave.

`PRESSURE_INTERLEAVINGS=20000` plays that many instead of the usual number. A world that fails is played again
by its seed: `World(seed, _calm_of(seed)).play()`.
"""

from __future__ import annotations

import os

import pytest

from pressure_server.queues import known_queues
from tests.model.world import Calm, World

_WORLDS = int(os.environ.get("PRESSURE_INTERLEAVINGS", "2000"))
_PARTS = 8


def _calm_of(seed: int) -> Calm:
    """In every other world nothing disturbs, so that the order of all messages can be checked."""
    is_calm = seed % 2 == 1
    return Calm(faults=is_calm, natives=is_calm, leavers=is_calm)


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_interleaving_loses_doubles_or_forgets(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_queues, "_SLOTS", 64)  # each world has its own
    for seed in range(part, _WORLDS, _PARTS):
        try:
            World(seed, _calm_of(seed)).play()
        except Exception as error:
            error.add_note(f"in the world of seed {seed}")
            raise
