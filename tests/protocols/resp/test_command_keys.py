"""COMMAND GETKEYS: the keys in a command, as a cluster's clients ask for them."""

import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS
from tests.support.programs import Client
from tests.support.side_by_side import Pair, compare, split
from tests.support.waiters import Waiter, is_refused

COUNTED = """
LMPOP 2 a b LEFT|LMPOP 2 a b|LMPOP 1 a LEFT COUNT 3|LMPOP 1 a NONSENSE|lmpop 3 a a b|LMPOP 0 a LEFT
LMPOP -1 a LEFT|LMPOP x a LEFT|LMPOP 3 a LEFT|LMPOP 9223372036854775808 a LEFT|LMPOP 1 a|BLMPOP 0 2 a b LEFT
BLMPOP x 1 a LEFT|BLMPOP 0 1 a LEFT COUNT 3|BLMPOP 0 0 a LEFT|BLMPOP 0 4 a LEFT|BLMPOP 0 1 a
SINTERCARD 1 a|SINTERCARD 2 a a|SINTERCARD 2 a b LIMIT 3|SINTERCARD 3 a LIMIT 3|SINTERCARD 4 a LIMIT 3
SINTERCARD 0 a|SINTERCARD -1 a LIMIT 3
"""
NAMED = """
BLPOP a 0|BLPOP a b 0|BRPOP a b c 0|LMOVE a b LEFT RIGHT|BLMOVE a b LEFT RIGHT 0|RPOPLPUSH a b
BRPOPLPUSH a b 0
SMOVE a b c|SINTER a|SINTER a b|SUNION a b c|SDIFF a b|WATCH a|WATCH a b|SADD a b c|DEL a b|SPOP a 3|LPUSH a b
MEMORY USAGE a|memory usage a SAMPLES 3|OBJECT IDLETIME a|OBJECT NONSENSE a|OBJECT IDLETIME|CLIENT ID|CLIENT
"""
# Redis accepts a number with trailing text, a sign, or leading zeros.
STRICTER = split("LMPOP 1.0 a LEFT|LMPOP 01 a LEFT|LMPOP +1 a LEFT|BLMPOP 0 1x a LEFT|SINTERCARD 1.0 a")


@pytest.mark.clients
@pytest.mark.parametrize("line", split(COUNTED + NAMED))
def test_the_keys_in_a_command_are_the_same_as_in_redis(pair: Pair, line: str) -> None:
    compare(pair, [f"COMMAND GETKEYS {line}"], 2)


@pytest.mark.parametrize("line", STRICTER)
def test_getkeys_refuses_a_number_of_keys_that_the_command_refuses(waiter: Waiter, line: str) -> None:
    assert is_refused(waiter("COMMAND", "GETKEYS", *line.split()), "ERR")
    assert is_refused(waiter(*line.split()), "ERR")


def test_every_command_on_queues_has_key_positions_or_movable_keys(client: Client) -> None:
    commands.load()
    described = client.command()
    on_queues = [name.decode().lower() for name, spec in COMMANDS.items() if spec.names_queues]
    movable = {name for name in on_queues if "movablekeys" in described[name]["flags"]}
    assert movable == {"lmpop", "blmpop", "sintercard"}
    assert {name for name in on_queues if described[name]["first_key_pos"] == 0} == movable
