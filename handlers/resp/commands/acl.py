"""ACL: shows the users. The users file defines them: docs/guides/security.md."""

from __future__ import annotations

from handlers.resp.parser import Words
from handlers.resp.session import Caller
from handlers.resp.table import command, container

container("ACL", "Shows the users.", group="server")


@command("ACL|WHOAMI", "Returns the name of this connection's user.", group="server", needs="nothing")
async def acl_whoami(client: Caller, _words: Words) -> bytes:
    """Reply as Redis does."""
    return client.session.user_name.encode()


@command("ACL|USERS", "Lists the names of the users.", group="server", needs="administer", flags="admin")
async def acl_users(client: Caller, _words: Words) -> list[bytes]:
    """Reply as Redis does, in the order of the names."""
    return [name.encode() for name in sorted(client.session.clients.access.users.by_name)]


@command(
    "ACL|LIST",
    "Lists the users with their queues and rights, without passwords.",
    group="server",
    needs="administer",
    flags="admin",
)
async def acl_list(client: Caller, _words: Words) -> list[bytes]:
    """Reply almost as Redis does. Hashes of passwords are hidden, as they would help to guess passwords."""
    lines = []
    for name, user in sorted(client.session.clients.access.users.by_name.items()):
        words = ["user", name, "on", "nopass" if user.needs_no_password else "#(hidden)"]
        words += [f"~{pattern}" for pattern in user.queues] + [f"+{right}" for right in sorted(user.rights)]
        lines.append(" ".join(words).encode())
    return lines
