"""MONITOR: shows the commands of the clients of all protocols."""

from __future__ import annotations

from handlers.resp.parser import Words
from handlers.resp.replies import OK, CommandError
from handlers.resp.session import Caller
from handlers.resp.table import command


@command(
    "MONITOR",
    "Shows the commands that clients of any protocol send, without logins, until the connection ends.",
    group="server",
    needs="administer",
    flags="admin",
)
async def monitor(client: Caller, _words: Words) -> str:
    """Reply as Redis does, also in a transaction. RESET ends it; a second MONITOR has no effect."""
    if client is not client.session:
        raise CommandError("ERR MONITOR isn't allowed for DENY BLOCKING client")
    client.session.clients.monitor(client.session)
    return OK
