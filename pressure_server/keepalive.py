"""TCP keepalive: the kernel notices that the other side of a connection is gone, although nothing tells it.

A machine that loses its power sends no FIN and no RST, and neither does a gateway that forgets a connection.
"""

import socket
from dataclasses import dataclass
from math import ceil
from typing import Any

DEFAULT_SECONDS = 300.0
# The most that Linux accepts.
MAX_SECONDS = 32767.0
_PROBES = 3


@dataclass(frozen=True)
class Keepalive:
    """When the kernel ends a connection whose other side is gone, after the same times as Redis.

    After `seconds` of silence, rounded up, the kernel asks the other side three times, each a third of that
    time after the last. A side that answers nothing is gone after twice the time. So is one that has not
    acknowledged what was sent to it, or takes nothing more, for as long. 0: the kernel does not ask.
    """

    seconds: float = DEFAULT_SECONDS

    @property
    def tcp_options(self) -> dict[int, int]:
        """The socket options that the system knows; none if keepalive is off."""
        if not self.seconds:
            return {}
        idle = ceil(self.seconds)
        between = max(1, idle // _PROBES)
        values = {
            "TCP_KEEPIDLE": idle,
            "TCP_KEEPALIVE": idle,  # its name on macOS
            "TCP_KEEPINTVL": between,
            "TCP_KEEPCNT": _PROBES,
            # In milliseconds. Without it, Linux repeats unacknowledged bytes for a quarter of an hour.
            "TCP_USER_TIMEOUT": 1000 * (idle + _PROBES * between),
        }
        return {getattr(socket, name): value for name, value in values.items() if hasattr(socket, name)}

    def set_on(self, connected: Any) -> None:
        """Set the options of a socket, or of asyncio's substitute for one, if it is a TCP socket.

        Connections that a listening socket accepts inherit its options. Raise OSError.
        """
        if not self.seconds or connected.family == socket.AF_UNIX:
            return
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in self.tcp_options.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


DEFAULT = Keepalive()
