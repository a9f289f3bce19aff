"""A connection to the backend: what may be sent on it."""

from pressure_server.backend.resp import BackendConnection
from tests.unit.net.fake_server import FakeTransport


async def test_nothing_more_is_sent_on_a_connection_that_is_being_aborted() -> None:
    """A request that is written before `connection_lost` would count as one that may have been done."""
    connection = BackendConnection(answer_timeout=1.0)
    connection.connection_made(FakeTransport())
    assert connection.is_open
    connection.abort()
    assert not connection.is_open
