"""Moves, pops that look through several queues, and set algebra: as Redis where it is Redis's; nothing lost.

Replies are compared byte by byte with a real Redis, with the means of tests/test_redis_compatibility.py.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.native import NativeClient, NativeSteps, run
from tests.programs import TIMEOUT, Client, Server, Valkey, wait_for
from tests.test_redis_compatibility import Pair, compare, original, pair, split
from tests.waiters import (
    Waiter,
    Words,
    about,
    create,
    is_refused,
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)

# Fixtures of that file, which are used here by their names.
__all__ = ["original", "pair"]

StartServer = Callable[..., Server]

# ---------------------------------------------------------------- as Redis

# A command with its timeout left out.
BLOCKING = [
    "BLPOP q {}", "BLPOP q r s {}", "BRPOP q {}", "BRPOP q r {}", "BLMOVE q r LEFT RIGHT {}", "BRPOPLPUSH q r {}",
    "BLMPOP {} 1 q LEFT", "BLMPOP {} 2 q r RIGHT COUNT 2",
]  # fmt: skip
NO_TIMEOUTS = ["-1", "-0.001", "-1e300", "nan", "NaN", "-nan", "inf", "-inf", "infinity", "x", "''", "1x", "1e", "1.2.3",
               "0,5", "\\x201", "1\\x20", "0x", "1e400", "1e300", "1e19", "9223372036854775807", "99999999999999999999",
               "\\xff", "--1"]  # fmt: skip
ENDING_TIMEOUTS = ["0.001", "0.02", ".02", "2e-2", "+0.02", "00.02", "1e-9", "0.0000001"]

MOVES = """
LMOVE q r LEFT|LMOVE q r LEFT UP|LMOVE q r UP LEFT|LMOVE q r left right|LMOVE q r LEFT RIGHT|LMOVE q q LEFT RIGHT
LMOVE q r '' LEFT|LMOVE q r LEFT RIGHT LEFT|RPOPLPUSH q|RPOPLPUSH q r|RPOPLPUSH q q|RPOPLPUSH q r s
BLMOVE q r LEFT UP 0.02|BLMOVE q r UP LEFT 0|BLMOVE q r LEFT LEFT|BLMOVE q r LEFT LEFT x|BLMOVE q r UP UP x
BRPOPLPUSH q r|BRPOPLPUSH q r s 1|BLPOP q|BLPOP 0.01|BRPOP|SMOVE q r|SMOVE q r m|SMOVE q q m|SMOVE q r m n
LMPOP|LMPOP 1|LMPOP 1 q|LMPOP 0 q LEFT|LMPOP -1 q LEFT|LMPOP x q LEFT|LMPOP 2 q LEFT|LMPOP 1 q UP|LMPOP 1 q r LEFT
LMPOP 1 q LEFT COUNT|LMPOP 1 q LEFT COUNT 0|LMPOP 1 q LEFT COUNT -1|LMPOP 1 q LEFT COUNT x|LMPOP 1 q LEFT NONSENSE 1
LMPOP 1 q LEFT COUNT 1 COUNT 1|LMPOP 1 q left count 1|LMPOP 2 q r RIGHT|LMPOP 3 q r LEFT|LMPOP 1.5 q LEFT
LMPOP 99999999999999999999 q LEFT|LMPOP 1 q LEFT COUNT 99999999999999999999|LMPOP '' q LEFT|LMPOP 1 q LEFT 1
BLMPOP 0.02|BLMPOP 0.02 1|BLMPOP 0.02 1 q|BLMPOP 0.02 0 q LEFT|BLMPOP 0.02 -1 q LEFT|BLMPOP 0.02 x q LEFT
BLMPOP 0.02 2 q LEFT|BLMPOP 0.02 1 q UP|BLMPOP 0.02 1 q LEFT COUNT 0|BLMPOP 0.02 1 q LEFT COUNT x
BLMPOP x 0 q LEFT|BLMPOP -1 1 q UP|BLMPOP 0.02 1 q LEFT COUNT 1 x|BLMPOP 0.02 2 q r RIGHT
SINTER|SUNION|SDIFF|SINTERCARD|SINTER q|SINTER q r|SUNION q|SUNION q r q|SDIFF q|SDIFF q r|SINTERCARD 1|SINTERCARD 1 q
SINTERCARD 0 q|SINTERCARD -1 q|SINTERCARD x q|SINTERCARD 2 q|SINTERCARD 1 q r|SINTERCARD 2 q r LIMIT|SINTERCARD '' q
SINTERCARD 2 q r LIMIT x|SINTERCARD 2 q r LIMIT -1|SINTERCARD 2 q r LIMIT 0|SINTERCARD 2 q r NONSENSE 1
SINTERCARD 2 q r LIMIT 1 LIMIT 1|SINTERCARD 1 q LIMIT 99999999999999999999|SINTERCARD 1 q limit 1|SINTERCARD 1.0 q
COMMAND GETKEYS LMOVE a b LEFT LEFT|COMMAND GETKEYS BLMOVE a b LEFT LEFT 0|COMMAND GETKEYS BLPOP a b c 0
COMMAND GETKEYS SMOVE a b m|COMMAND GETKEYS RPOPLPUSH a b|COMMAND GETKEYS SINTER a b c
COMMAND GETKEYS LMPOP 2 a b LEFT|COMMAND GETKEYS BLMPOP 0 2 a b LEFT|COMMAND GETKEYS SINTERCARD 2 a b LIMIT 1
"""

LISTS = """
RPUSH q a b c d|LMOVE q r LEFT RIGHT|LRANGE q 0 -1|LRANGE r 0 -1|LMOVE q r LEFT RIGHT|LRANGE r 0 -1
LMOVE q q LEFT RIGHT|LRANGE q 0 -1|LMOVE r q LEFT RIGHT|LRANGE q 0 -1|BLMOVE q r LEFT RIGHT 0|LRANGE r 0 -1
BLMOVE q q LEFT RIGHT 0.5|LRANGE q 0 -1|BLPOP q r 0|BLPOP nothing r 0.5|LMPOP 2 nothing q LEFT|LLEN q
RPUSH q 1 2 3 4 5|LMPOP 1 q LEFT COUNT 2|BLMPOP 0 2 nothing q LEFT COUNT 2|BLMPOP 0.1 1 q LEFT|LLEN q
RPUSH r x|RPOPLPUSH r s|LRANGE s 0 -1|BRPOPLPUSH s r 0|LRANGE r 0 -1|BRPOP r 0|RPUSH r ''|LMOVE r s LEFT RIGHT
LPOP s|RPUSH r \\x00\\xff\\x0d\\x0a|BLMOVE r s LEFT RIGHT 1|BLPOP s 1|BLPOP s s 0.01
"""

SETS = """
SADD q a b c d|SADD r c d e|SADD s d|SINTER q r|SINTER q r s|SINTER q nothing|SINTER q q|SUNION q r s|SUNION nothing q
SDIFF q r|SDIFF q nothing|SDIFF nothing q|SDIFF q q|SDIFF r q s|SINTERCARD 2 q r|SINTERCARD 2 q r LIMIT 1
SINTERCARD 2 q r LIMIT 0|SINTERCARD 2 q r LIMIT 5|SINTERCARD 2 q nothing|SINTERCARD 3 q r s|SINTERCARD 1 q LIMIT 2
SMOVE q r a|SMEMBERS q|SMEMBERS r|SMOVE q r a|SMOVE q r c|SMEMBERS q|SMEMBERS r|SMOVE q nothing x|EXISTS nothing
SMOVE q q b|SMOVE q q x|SMEMBERS q|SMOVE q new b|SMEMBERS new|SCARD q|SINTER q r|SUNION q new|SDIFF r s new
"""


@pytest.mark.clients
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("line", BLOCKING)
def test_timeouts_are_refused_as_by_redis(pair: Pair, line: str, protocol: int) -> None:
    compare(pair, [line.format(timeout) for timeout in NO_TIMEOUTS], protocol)


@pytest.mark.clients
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("line", BLOCKING)
def test_timeouts_end_as_in_redis(pair: Pair, line: str, protocol: int) -> None:
    compare(pair, [line.format(timeout) for timeout in ENDING_TIMEOUTS], protocol)


@pytest.mark.clients
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("table", [MOVES, LISTS, SETS], ids=["without data", "lists", "sets"])
def test_replies_are_those_of_redis(pair: Pair, table: str, protocol: int) -> None:
    compare(pair, split(table), protocol, unordered=table == SETS)
