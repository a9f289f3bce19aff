"""Servers as their peers see them: what each says of itself in the backend."""

from __future__ import annotations

import re

from tests.support.programs import Client, Server


def heartbeats(direct: Client) -> dict[bytes, bytes]:
    """Return the last heartbeat of each server, by its identity."""
    found: dict[bytes, bytes] = direct.hgetall("__pressure__!peers")
    return found


def identity(server: Server) -> bytes:
    """Return the name by which a server signs."""
    (found,) = re.findall(r"the name of this server is '(\S+)'", server.log)
    return bytes(found.encode())
