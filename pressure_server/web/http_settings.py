"""The settings of the HTTP listener.

Every server reads them, so this module does without aiohttp: that takes 0.4 seconds and 17 MB.
"""

from dataclasses import dataclass

from pressure_server.keepalive import Keepalive
from pressure_server.net.listener import ListenerUrl, SettingsError

# The most connections: browsers open up to six each. Fewer if the process may open few files.
MAX_CONNECTIONS = 512


@dataclass(frozen=True)
class HttpSettings:
    """The settings of the HTTP listener: options of the server, and the most connections and handshakes."""

    listen: ListenerUrl
    metrics_queues: int
    metrics_match: str
    keepalive: Keepalive
    max_connections: int
    max_handshakes: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names in the URL's options, and the host of the URL; see protection.py."""
        named = [value.lower() for name, value in self.listen.options if name == "host"]
        return (*named, self.listen.host.lower())


def check_http(listen: ListenerUrl) -> None:
    """Raise SettingsError if the URL cannot be that of an HTTP listener."""
    if listen.handler != "http":
        raise SettingsError(f"{listen} must be http://HOST:PORT, https://HOST:PORT or http+unix:///PATH")
    if unknown := sorted({name for name, _ in listen.options} - {"host"}):
        raise SettingsError(f"{listen}: unknown option '{unknown[0]}': the only option is host")
