"""Each protocol says the same errors in its own words: they come from one list, pressure_server/errors.py."""

import pytest

from handlers.beanstalk.handler import BeanstalkHandler
from handlers.memcached.handler import MemcachedHandler
from handlers.resp.handler import RespHandler
from pressure_server import errors
from pressure_server.net.handler import Handler
from pressure_server.net.listener import ListenerUrl
from tests.unit.net.fake_server import FakeTransport, Server

HANDLERS: dict[str, type[Handler]] = {
    "resp": RespHandler,
    "memcached": MemcachedHandler,
    "beanstalk": BeanstalkHandler,
}


async def _replies(server: Server, error: Exception) -> list[bytes]:
    """Return the first two words of each protocol's reply."""
    found = []
    for scheme, handler in HANDLERS.items():
        connection = handler(server.context, ListenerUrl(scheme)).connect()
        connection.connection_made(FakeTransport())
        found.append(b" ".join(connection.session.error_reply(error).split()[:2]))
    return found


@pytest.mark.parametrize(
    ("error", "code", "beanstalk"),
    [
        (errors.QueueFullError("q"), b"FULL", b"OUT_OF_MEMORY"),
        (errors.QueueFullError("q").after(2), b"FULL", b"OUT_OF_MEMORY"),
        (errors.BufferLimitError(2, 1), b"OOM", b"OUT_OF_MEMORY"),
        (errors.BackendError("the backend answered: OOM command not allowed"), b"BACKEND", b"OUT_OF_MEMORY"),
        (errors.QueueClosedError("q"), b"CLOSED", b"DRAINING"),
        (errors.StoppingError(), b"STOPPING", b"DRAINING"),
        (errors.DrainingError(), b"STOPPING", b"DRAINING"),
        (errors.DeniedError(), b"DENIED", b"DENIED"),
        (errors.BackendAwayError("the backend is away"), b"BACKEND", b"INTERNAL_ERROR"),
        (errors.UnblockedError(), b"UNBLOCKED", b"INTERNAL_ERROR"),
        (errors.QueueDoesNotExistError("q"), b"NOQUEUE", b"INTERNAL_ERROR"),
        (errors.QueueTypeError("OOM", "not-unique"), b"TYPE", b"INTERNAL_ERROR"),
        (errors.WaitLimitError(1), b"OVERLOAD", b"INTERNAL_ERROR"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_words_of_errors(server: Server, error: Exception, code: bytes, beanstalk: bytes) -> None:
    resp, memcached, other = await _replies(server, error)
    assert resp.split()[0] == b"-" + code
    assert memcached == b"SERVER_ERROR " + code
    assert other == beanstalk


async def test_a_name_that_is_not_allowed_is_the_client_s_error(server: Server) -> None:
    replies = await _replies(server, errors.QueueNameError("the name is not allowed"))
    assert replies == [b"-ERR the", b"CLIENT_ERROR the", b"INTERNAL_ERROR"]


async def test_an_unexpected_error_is_logged_and_not_shown(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    replies = await _replies(server, ValueError("secret"))
    assert replies == [b"-ERR internal", b"SERVER_ERROR ERR", b"INTERNAL_ERROR"]
    assert caplog.text.count("unexpected error in a command") == 3
