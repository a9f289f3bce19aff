"""Pipelines of puts with transaction ids: one run of the library, and the replies of single commands."""

from itertools import count
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.model_settings import model_settings
from tests.support.programs import Client
from tests.support.waiters import Waiter, Words, create, wait_for_blocked

_names = count()
_ids = st.sampled_from([f"t{number}" for number in range(6)])
_messages = st.sampled_from(["a", "b", "c"])
# A command: what it puts, its options before the id, and the id; a SADD has several messages.
_puts = st.tuples(_messages, st.sampled_from(["", "OFFSET", "NX", "OVERFILL"]), _ids)
_adds = st.tuples(st.lists(_messages, min_size=1, max_size=3), _ids)
_kinds = st.sampled_from(
    [
        ("TYPE", "LOG"),
        ("TYPE", "FIFO"),
        ("TYPE", "JOBS"),
        ("TYPE", "LOG", "BOUND", 3, "OVERFLOW", "ERROR"),
        ("TYPE", "LOG", "BOUND", 3, "OVERFLOW", "OVERWRITE"),
    ]
)


def _commands(queue: str, program: list[Any]) -> list[Words]:
    commands: list[Words] = []
    for step in program:
        if len(step) == 3:
            message, option, transaction = step
            options = (option,) if option else ()
            commands.append(("PRESSURE.PUT", queue, message, *options, "TXN", transaction))
        else:
            messages, transaction = step
            commands += [("PRESSURE.TXN", transaction), ("SADD", queue, *messages)]
    return commands


def _as_told(reply: Any, queue: str) -> Any:
    return str(reply).replace(queue, "QUEUE") if isinstance(reply, Exception) else reply


def test_a_pipeline_is_answered_like_one_command_after_the_other(waiter: Waiter, client: Client) -> None:
    @model_settings("PRESSURE_MODEL_EXAMPLES", 60)
    @given(
        kind=_kinds,
        program=st.lists(st.one_of(_puts, _puts, _adds), min_size=2, max_size=12),
        is_closed=st.sampled_from([False, False, False, True]),
        repeats=st.booleans(),
    )
    @example(kind=("TYPE", "LOG", "BOUND", 3), program=[("a", "", "t0")] * 2, is_closed=True, repeats=True)
    def compare(kind: tuple[str | int, ...], program: list[Any], *, is_closed: bool, repeats: bool) -> None:
        number = next(_names)
        one, other = f"one{number}", f"other{number}"
        for queue in (one, other):
            create(client, queue, *kind)
        rounds = [program, program] if repeats else [program]
        for at, some in enumerate(rounds):
            if at and is_closed:
                for queue in (one, other):
                    client.execute_command("PRESSURE.CLOSE", queue)
                some = [*some, ("d", "", "new"), *some]
            expected = [_as_told(waiter(*words), one) for words in _commands(one, some)]
            commands = _commands(other, some)
            for words in commands:
                waiter.send(*words)
            assert [_as_told(waiter.reply(), other) for _ in commands] == expected
            assert client.lrange(other, 0, -1) == client.lrange(one, 0, -1)
        client.delete(one, other)

    compare()


def test_a_bad_id_is_refused_alone(waiter: Waiter, client: Client) -> None:
    create(client, "q")
    for transaction in ("x", "y", "", "z") * 2:
        waiter.send("PRESSURE.PUT", "q", "m", "TXN", transaction)
    replies = [waiter.reply() for _ in range(8)]
    assert [str(reply)[:11] for reply in replies] == ["1", "1", "ERR a token", "1"] * 2
    assert client.llen("q") == 3


def test_commands_that_wait_for_room_are_done_in_their_order(waiter: Waiter, client: Client) -> None:
    create(client, "q", "BOUND", 2, "OVERFLOW", "BLOCK")
    for number in range(5):
        waiter.send("PRESSURE.PUT", "q", number, "TXN", f"t{number}")
    wait_for_blocked(client, 1)
    taken = [client.execute_command("PRESSURE.GET", "q", "TIMEOUT", 5) for _ in range(5)]
    assert taken == [b"%d" % number for number in range(5)]
    assert [waiter.reply() for _ in range(5)] == [1] * 5
    assert waiter("PRESSURE.PUT", "q", "again", "TXN", "t4") == 1
    assert client.llen("q") == 0
