"""Gets become pops, and pops gets, when the library says what the queue does with what is popped."""

from pressure_server.queues.operations import batch, verbs
from pressure_server.queues.operations.flagged import Popped
from pressure_server.queues.operations.operation import Operation
from pressure_server.queues.operations.options import DEFAULT, WAITS, Options
from tests.unit.queues.operations_of import Recorder, get, put


class Client(Recorder):
    """A client that has finished a job each time when it pops."""

    def begin_pop(self, name: bytes) -> tuple[bytes, list[bytes]]:
        return b"=7", [b"1 =7 of %b" % name]


def of_client(size: int = 1, options: Options = DEFAULT) -> Operation:
    return get(size, owner=Client(), options=options)


def test_a_get_reserves_for_its_client_and_ends_what_it_has_finished() -> None:
    one, other = of_client(2), of_client()
    assert batch.adapt_pops([one, other], b"q", keeps=True) == [b"1 =7 of q"] * 2
    assert (one.verb, one.messages, other.messages) == (verbs.POP, [b"=7"], [b"=7"])


def test_a_pop_that_is_sent_again_ends_nothing_more() -> None:
    one = of_client()
    batch.adapt_pops([one], b"q", keeps=True)
    assert batch.adapt_pops([one], b"q", keeps=True) == []
    assert one.verb is verbs.POP


def test_gets_that_stay_gets() -> None:
    final, without_client, begun = of_client(options=Options(final=True)), get(), of_client(2)
    begun.results = [b"m"]
    some = put(b"m", owner=Client())
    assert batch.adapt_pops([final, without_client, begun, some], b"q", keeps=True) == []
    assert [one.verb for one in (final, without_client, begun)] == [verbs.GET] * 3
    assert all(one.options.final for one in (final, without_client, begun))
    assert some.verb is verbs.PUT


def test_a_pop_becomes_a_get_again() -> None:
    one = of_client(2)
    batch.adapt_pops([one], b"q", keeps=True)
    assert batch.adapt_pops([one], b"q", keeps=False) == []
    assert (one.verb, one.messages, one.wanted) == (verbs.GET, [], 2)


def test_a_pop_that_has_taken_some_ends_with_these() -> None:
    one = of_client(2)
    batch.adapt_pops([one], b"q", keeps=True)
    one.results = [Popped.of(b"%013x 0 0 1 m" % 1)]
    assert batch.adapt_pops([one], b"q", keeps=False) == []
    assert (one.verb, one.messages_left()) == (verbs.POP, 0)


def test_a_pop_with_a_message_ends_also_if_it_has_waited_as_a_get() -> None:
    one, other = of_client(options=WAITS), of_client(options=WAITS)
    progress = batch.distribute([[one, other]], [[2, 0, b"due -1", 0, b"keeps 1"], []])
    assert progress is not None
    assert progress.resend == [one, other]
    batch.adapt_pops([one, other], b"q", keeps=True)
    progress = batch.distribute([[one, other]], [[0, 0, b"due -1"], [b"%013x 0 0 1 m" % 1]])
    assert progress is not None
    assert (progress.ended, progress.must_wait) == ([one], [other])
