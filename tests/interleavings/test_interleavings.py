"""Lanes and the courier in memory, in thousands of interleavings: operations, replies, timers and faults.

`PRESSURE_INTERLEAVINGS=20000` plays more of them. To play a failed one again: `World(seed).play()`, with
`lane._ENOUGH_TO_SEND = 2` if its seed is odd.
"""

import os

import pytest

from pressure_server.queues.lanes import lane
from tests.interleavings.world import World

_WORLDS = int(os.environ.get("PRESSURE_INTERLEAVINGS", "2000"))
_PARTS = 8


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_interleaving_loses_a_message_or_hangs_an_operation(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few operations meet in a world. In half of the parts, blocks leave ahead of replies if two are pending.
    monkeypatch.setattr(lane, "_ENOUGH_TO_SEND", 2 if part % 2 else 16)
    for seed in range(part, _WORLDS, _PARTS):
        try:
            World(seed).play()
        except Exception as error:
            error.add_note(f"in the world of seed {seed}")
            raise
