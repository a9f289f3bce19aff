"""The handler as the server uses it: options of listeners, new connections, and health checks."""

from handlers.beanstalk import commands
from handlers.beanstalk.listener_state import ListenerState
from handlers.beanstalk.session import BeanstalkSession
from pressure_server.net.connection import Connection
from pressure_server.net.handler import Context, request_line
from pressure_server.net.listener import ListenerUrl, SettingsError

_MAX_JOB_SIZE = "max_job_size"
# beanstalkd's default and its largest possible value, in bytes.
_DEFAULT_JOB_SIZE, _LARGEST_JOB_SIZE = 65535, 1 << 30


def max_job_size_of(listen: ListenerUrl) -> int:
    """Return the limit in the listener's URL, in bytes. Raise SettingsError if it is invalid."""
    text = listen.options_by_name(_MAX_JOB_SIZE).get(_MAX_JOB_SIZE, str(_DEFAULT_JOB_SIZE))
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:20]) <= _LARGEST_JOB_SIZE:
        raise SettingsError(f"{listen}: {_MAX_JOB_SIZE} must be 1 to {_LARGEST_JOB_SIZE} bytes")
    return int(text)


class BeanstalkHandler:
    """See pressure_server.net.handler.Handler."""

    def __init__(self, context: Context, listen: ListenerUrl) -> None:
        commands.load()
        self._context = context
        max_job_size = min(max_job_size_of(listen), context.settings.max_message_bytes)
        self._state = ListenerState(context, max_job_size)

    def connect(self) -> Connection:
        """Return the connection object for a new client."""
        return Connection(self._context.clients, BeanstalkSession(self._context, self._state))

    @staticmethod
    def check(listen: ListenerUrl) -> None:
        """Raise SettingsError if the listener's options are invalid."""
        max_job_size_of(listen)

    @staticmethod
    def ping(listen: ListenerUrl, timeout: float, *, ready: bool) -> None:
        """Send `list-tube-used`, or `ready`. Raise OSError with the reason for a negative reply."""
        reply = request_line(listen, b"ready\r\n" if ready else b"list-tube-used\r\n", timeout)
        # A server that has all its clients is alive.
        alive = ("USING", "UNAUTHENTICATED", "OUT_OF_MEMORY")
        if not reply.startswith(("READY", "UNAUTHENTICATED") if ready else alive):
            raise OSError(reply or "the server closed the connection")
