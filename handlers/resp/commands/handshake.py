"""Commands on the connection: PING, login, the choice of a database, and CLIENT."""

from __future__ import annotations

from functools import partial

from handlers.resp import table
from handlers.resp.arguments import integer_of
from handlers.resp.commands.client_list import client_line, kill_filter, of_type
from handlers.resp.parser import Words
from handlers.resp.replies import OK, Text, bulk, encode
from handlers.resp.session import Caller, RespSession, TransactionCaller
from handlers.resp.table import FOLLOWED_VERSION
from pressure_server.auth.users import DEFAULT, NOBODY
from pressure_server.errors import CommandError
from pressure_server.net.client_facts import facts_of
from pressure_server.net.pipeline import ReplyMode
from pressure_server.queues.broker import DatabaseNumberError
from pressure_server.words import integer_from, syntax_error

command = partial(table.command, group="connection")
container = partial(table.container, group="connection")

_REPLY_MODES = {b"ON": ReplyMode.ON, b"OFF": ReplyMode.OFF, b"SKIP": ReplyMode.SKIP}
_PONG = b"+PONG\r\n"
# In bytes. Redis has no limit, but the server keeps each name, and CLIENT LIST shows it to other clients.
_MAX_NAME_BYTES = 1024


@command("PING [message]", "Returns PONG, or the message.", needs="nothing", flags="fast")
def ping(client: Caller, words: Words) -> None:
    """Reply as Redis does."""
    if len(words) > 2:
        raise CommandError("ERR wrong number of arguments for 'ping' command")
    client.reply(_PONG if len(words) == 1 else bulk(words[1]))


@command("ECHO message", "Returns the message.", needs="nothing", flags="fast")
def echo(client: Caller, words: Words) -> None:
    """Reply as Redis does."""
    client.reply(bulk(words[1]))


@command("QUIT [ignored ...]", "Returns OK and closes the connection.", needs="nothing", flags="fast no_auth")
def quit_(client: Caller, _words: Words) -> None:
    """Reply after all earlier commands, then close the connection."""
    client.reply(encode(OK, client.session.protocol))
    client.session.acknowledge_pops()
    client.session.close_when_replied()


@command("RESET", "Resets the connection to its initial state.", needs="nothing", flags="fast no_auth")
async def reset(client: Caller, _words: Words) -> str:
    """Reply as Redis does. Select the database that the backend's URL names."""
    session = client.session
    session.protocol = 2
    session.name = b""
    session.user = session.clients.access.users.initial
    session.end_transaction()
    if session.reply_mode is ReplyMode.OFF:
        session.reply_mode = ReplyMode.ON
    session.clients.end_monitor(session)
    session.reserved_jobs.give_up_all(session.job_owner, at_once=True)
    session.database = session.context.broker.default_database
    return "RESET"


@command("SELECT index", "Selects a database of the backend by its number.", needs="nothing", flags="fast")
async def select(client: Caller, words: Words) -> str:
    """Select the database that native clients use with REDIS_DB set to this number."""
    number = integer_of(words[1])
    if not -(2**31) <= number < 2**31:
        raise CommandError("ERR value is out of range, value must between -2147483648 and 2147483647")
    try:
        client.session.database = await client.session.context.broker.database(number)
    except DatabaseNumberError as error:
        raise CommandError(f"ERR {error}") from error
    return OK


@command(
    "AUTH [username] password",
    "Logs in as the named user, or as the user default.",
    needs="nothing",
    flags="fast no_auth",
)
async def auth(client: Caller, words: Words) -> str:
    """Reply as Redis does, but delay the replies to wrong passwords (pressure_server.auth.logins)."""
    if len(words) > 3:
        raise syntax_error()
    if len(words) == 2 and client.session.clients.access.users.initial is not NOBODY:
        raise CommandError(
            "ERR AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    await _log_in(client.session, words[1] if len(words) == 3 else DEFAULT.encode(), words[-1])
    return OK


async def _log_in(session: RespSession, name: bytes, password: bytes) -> None:
    if not await session.log_in(name, password):
        raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")


@command(
    "HELLO [protover] [AUTH username password] [SETNAME clientname]",
    "Selects the RESP version (2 or 3), and describes the server. "
    "AUTH logs in, SETNAME names the connection.",
    needs="nothing",
    flags="fast no_auth",
)
async def hello(client: Caller, words: Words) -> dict[str | bytes, object]:
    """Reply as Redis does."""
    session = client.session
    protocol, name = session.protocol, session.name
    if len(words) > 1:
        number = integer_from(words[1])
        if number is None:
            raise CommandError("ERR Protocol version is not an integer or out of range")
        if number not in (2, 3):
            raise CommandError("NOPROTO unsupported protocol version")
        protocol = number
    rest = words[2:]
    while rest:
        match rest[0].upper():
            case b"AUTH" if len(rest) >= 3:
                await _log_in(session, rest[1], rest[2])
                rest = rest[3:]
            case b"SETNAME" if len(rest) >= 2:
                name = _checked_name(rest[1])
                rest = rest[2:]
            case _:
                shown = rest[0].decode("utf-8", "backslashreplace")
                raise CommandError(f"ERR Syntax error in HELLO option '{shown}'")
    if session.user is NOBODY:
        raise CommandError(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH "
            "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
            "version at the same time"
        )
    session.protocol = protocol
    session.name = name
    return {
        b"server": b"redis",
        b"version": FOLLOWED_VERSION.encode(),
        b"proto": protocol,
        b"id": session.id,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }


def _checked_name(name: bytes) -> bytes:
    if any(byte < ord("!") or byte > ord("~") for byte in name):
        raise CommandError("ERR Client names cannot contain spaces, newlines or special characters.")
    if len(name) > _MAX_NAME_BYTES:
        raise CommandError(f"ERR Client names cannot be longer than {_MAX_NAME_BYTES} bytes.")
    return name


container("CLIENT", "Shows and manages connections.")


@command("CLIENT|ID", "Returns the id of this connection.", needs="nothing", flags="fast")
async def client_id(client: Caller, _words: Words) -> int:
    """Reply as Redis does."""
    return client.session.id


@command("CLIENT|GETNAME", "Returns the name of this connection.", needs="nothing", flags="fast")
async def client_getname(client: Caller, _words: Words) -> bytes | None:
    """Reply as Redis does: nil if the connection has no name."""
    return client.session.name or None


@command("CLIENT|SETNAME connection-name", "Names this connection.", needs="nothing", flags="fast")
async def client_setname(client: Caller, words: Words) -> str:
    """Reply as Redis does."""
    client.session.name = _checked_name(words[2])
    return OK


@command(
    "CLIENT|SETINFO attribute value",
    "Sets the name or version of the client library.",
    needs="nothing",
    flags="fast",
)
async def client_setinfo(client: Caller, words: Words) -> str:
    """Reply as Redis does. The attributes are LIB-NAME and LIB-VER."""
    attribute = words[2].upper()
    if attribute not in (b"LIB-NAME", b"LIB-VER"):
        shown = words[2].decode("utf-8", "backslashreplace")
        raise CommandError(f"ERR Unrecognized option '{shown}'")
    if any(byte < ord("!") or byte > ord("~") for byte in words[3]):
        shown = attribute.decode().lower()
        raise CommandError(f"ERR {shown} cannot contain spaces, newlines or special characters.")
    if len(words[3]) > _MAX_NAME_BYTES:
        raise CommandError(f"ERR {attribute.decode().lower()} cannot be longer than {_MAX_NAME_BYTES} bytes.")
    name, version = client.session.library or (b"", b"")
    client.session.library = (words[3], version) if attribute == b"LIB-NAME" else (name, words[3])
    return OK


@command(
    "CLIENT|REPLY ON|OFF|SKIP",
    "Sends replies to later commands, or none, or none to the next command. Only ON has a reply itself.",
    needs="nothing",
)
def client_reply(client: Caller, words: Words) -> None:
    """Do as Redis does."""
    mode = _REPLY_MODES.get(words[2].upper())
    if mode is None:
        raise syntax_error()
    if isinstance(client, TransactionCaller):
        # In Redis, the reply to EXEC lacks some of the elements that it announces.
        raise CommandError("ERR CLIENT REPLY is not allowed in a transaction")
    client.set_reply_mode(mode)
    if mode is ReplyMode.ON:
        client.reply(encode(OK, client.protocol))


@command("CLIENT|INFO", "Describes this connection.", needs="nothing")
async def client_info(client: Caller, _words: Words) -> Text:
    """Reply as Redis does, with one line."""
    return Text(client_line(facts_of(client.session)) + b"\n")


@command(
    "CLIENT|LIST [TYPE client-type] [ID client-id [client-id ...]]",
    "Describes the connections of all protocols, one on each line.",
    needs="administer",
)
async def client_list(client: Caller, words: Words) -> Text:
    """Reply as Redis does, with a line for each connection. All connections are of type normal."""
    options, found = words[2:], await client.session.context.workers.clients()
    if options and options[0].upper() == b"TYPE" and len(options) == 2:
        found = found if of_type(options[1]) else []
    elif options and options[0].upper() == b"ID" and len(options) > 1:
        wanted = {integer_from(word) for word in options[1:]}
        if None in wanted:
            raise CommandError("ERR Invalid client ID")
        found = [other for other in found if other.id in wanted]
    elif options:
        raise syntax_error()
    return Text(b"".join(client_line(other) + b"\n" for other in found))


@command(
    "CLIENT|UNBLOCK client-id [TIMEOUT|ERROR]",
    "Ends what a client of any protocol waits for, as if its time were up, or with -UNBLOCKED. Returns 1, or "
    "0 if the client does not wait, or gets something at this moment.",
    needs="administer",
)
async def client_unblock(client: Caller, words: Words) -> int:
    """Reply as Redis does. This waits for the backend if the client's operation is in flight."""
    if len(words) > 4:
        text = words[1].decode("utf-8", "replace")
        raise CommandError(
            f"ERR unknown subcommand or wrong number of arguments for '{text}'. Try CLIENT HELP."
        )
    how = words[3].upper() if len(words) > 3 else b"TIMEOUT"
    if how not in (b"TIMEOUT", b"ERROR"):
        raise CommandError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    number = integer_of(words[2])
    if isinstance(client, TransactionCaller):
        # Two transactions could wait for each other.
        raise CommandError("ERR CLIENT UNBLOCK is not allowed in a transaction")
    return int(await client.context.workers.unblock(number, with_error=how == b"ERROR"))


@command(
    "CLIENT|KILL [addr] [ID client-id] [TYPE client-type] [USER username] [ADDR ip:port] [LADDR ip:port] "
    "[MAXAGE seconds] [SKIPME yes/no]",
    "Closes the connections, of any protocol, that match all filters.",
    needs="administer",
)
async def client_kill(client: Caller, words: Words) -> object:
    """Reply as Redis does: OK for a single address, otherwise the number of closed connections."""
    if len(words) == 2:
        raise CommandError("ERR wrong number of arguments for 'client|kill' command")
    me = client.session
    matches, skip_me = kill_filter(words[2:], me)
    workers = me.context.workers
    found = [one.id for one in await workers.clients() if matches(one) and not (skip_me and one.id == me.id)]
    if len(words) == 3 and not found:
        raise CommandError("ERR No such client")
    killed = await workers.disconnect([one for one in found if one != me.id], "CLIENT KILL")
    if me.id in found:
        killed += 1
        me.close_when_replied("CLIENT KILL")
    return OK if len(words) == 3 else killed
