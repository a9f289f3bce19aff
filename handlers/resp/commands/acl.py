"""ACL: who one is, and which users there are. The users file sets them: docs/guides/security.md."""

from __future__ import annotations

from handlers.resp.client import Caller
from handlers.resp.parser import Command
from handlers.resp.table import command, container

container("ACL", "Says who the users are.", group="server")


@command("ACL|WHOAMI", "Says which user this connection acts as.", group="server", needs="nothing")
async def acl_whoami(client: Caller, _words: Command) -> bytes:
    """As Redis."""
    return client.connection.user_name.encode()


@command("ACL|USERS", "Lists the names of the users.", group="server", needs="administer", flags="admin")
async def acl_users(client: Caller, _words: Command) -> list[bytes]:
    """As Redis: by name."""
    return [name.encode() for name in sorted(client.connection.clients.access.users.by_name)]


@command(
    "ACL|LIST",
    "Lists the users with their queues and rights; passwords are not shown.",
    group="server",
    needs="administer",
    flags="admin",
)
async def acl_list(client: Caller, _words: Command) -> list[bytes]:
    """Nearly as Redis; a hash would help who wants to guess."""
    lines = []
    for name, user in sorted(client.connection.clients.access.users.by_name.items()):
        words = ["user", name, "on", "nopass" if user.needs_none else "#(hidden)"]
        words += [f"~{pattern}" for pattern in user.queues] + [f"+{right}" for right in sorted(user.may)]
        lines.append(" ".join(words).encode())
    return lines
