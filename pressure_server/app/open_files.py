"""The limit on open files, and how many connections of each kind it allows.

A server that has no file left cannot accept a client, and cannot tell it. So the kinds of connections have
fixed shares, and clients that exceed theirs are refused with an error.
"""

from __future__ import annotations

import logging
import resource
import sys
from dataclasses import dataclass, replace

from pressure_server.app.settings import Settings
from pressure_server.errors import StartError
from pressure_server.net.listener import MAX_HANDSHAKES
from pressure_server.text import counted
from pressure_server.web.http_settings import MAX_CONNECTIONS

logger = logging.getLogger(__name__)

# File descriptors that are no client's: listeners, backend connections, the interpreter's own.
_OTHER_FILES = 64
# File descriptors of a client over TLS, its socket and a copy (see tcp_info.TlsRecords), and of an HTTP
# connection, which may act as a client.
_FILES_OF_TLS = _FILES_OF_HTTP = 2
# A server for fewer clients, if more are allowed, is not what its operator wants.
FEWEST_CLIENTS = 32


@dataclass(frozen=True)
class Connections:
    """How many connections of each kind may be open; `handshakes` counts for each TLS listener."""

    clients: int
    handshakes: int = MAX_HANDSHAKES
    http: int = MAX_CONNECTIONS


@dataclass(frozen=True)
class Demand:
    """What a process wants to open: clients with `files_each`, and files for connections beside them."""

    clients: int
    files_each: int = 1
    files_beside: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Demand:
        """Return the demand of a process with these settings. The supervisor of workers has no clients."""
        serves, http = settings.workers == 1, settings.http
        tls_listeners = sum(listen.tls for listen in settings.listen) if serves else 0
        handshakes = MAX_HANDSHAKES * (tls_listeners + (http is not None and http.tls))
        return cls(
            settings.max_clients if serves else 0,
            _FILES_OF_TLS if tls_listeners else 1,
            handshakes + (0 if http is None else _FILES_OF_HTTP * MAX_CONNECTIONS),
        )

    @property
    def files(self) -> int:
        """All files."""
        return self.clients * self.files_each + self.files_beside + _OTHER_FILES

    def within(self, limit: int) -> Connections:
        """Return how many connections this number of open files allows. Raise StartError.

        If there are too few, clients get at least half of them.
        """
        if limit >= self.files:
            return Connections(self.clients)
        left = max(0, limit - _OTHER_FILES)
        beside = min(self.files_beside, max(left // 2, left - self.clients * self.files_each))
        clients = min(self.clients, (left - beside) // self.files_each)
        if clients < min(self.clients, FEWEST_CLIENTS):
            raise StartError(
                f"the limit on open files, {limit}, leaves room for {counted(clients, 'client')} only: raise "
                f"it (ulimit -n, LimitNOFILE= of systemd), to {self.files} for {self.clients} clients"
            )
        share = beside / self.files_beside if self.files_beside else 1.0
        return Connections(clients, max(1, int(share * MAX_HANDSHAKES)), max(1, int(share * MAX_CONNECTIONS)))


def take_files(settings: Settings) -> Connections:
    """Raise the soft limit on open files if necessary. Return how many connections there may be.

    Raise StartError if the hard limit is too low for a useful number of clients.
    """
    demand = Demand.of(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if settings.workers > 1:
        # Workers take their files themselves, within the same limit. Raise their error before they start.
        Demand.of(settings.of_worker()).within(most)
    allowed = demand.within(most)
    wanted = min(demand.files, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < demand.files:
        clients = counted(allowed.clients, "client")
        http = f", {counted(allowed.http, 'HTTP connection')}" if settings.http is not None else ""
        logger.warning("serving %s%s at most: the hard limit on open files is %d", clients, http, hard)
    return replace(allowed, clients=settings.max_clients) if settings.workers > 1 else allowed
