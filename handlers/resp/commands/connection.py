"""Commands on the connection: greeting, login, the database, and CLIENT."""

from __future__ import annotations

from handlers.resp.arguments import integer_of
from handlers.resp.client import Caller, RespClient
from handlers.resp.commands.clients import client_line, kill_filter
from handlers.resp.errors import syntax_error
from handlers.resp.parser import Command, integer_from
from handlers.resp.replies import OK, CommandError, Text, bulk, encode
from handlers.resp.table import command, container
from handlers.resp.version import FOLLOWED_VERSION
from pressure_server.auth.users import DEFAULT, NOBODY
from pressure_server.queues.broker import DatabaseNumberError

_PONG = b"+PONG\r\n"
# Redis takes any; ours are kept for as long as the client is there, and listed for everybody.
_LONGEST_NAME = 1024


@command("PING [message]", "Says PONG, or the message.", group="connection", needs="nothing", flags="fast")
def ping(client: Caller, words: Command) -> None:
    """As Redis."""
    if len(words) > 2:
        raise CommandError("ERR wrong number of arguments for 'ping' command")
    client.reply(_PONG if len(words) == 1 else bulk(words[1]))


@command("ECHO message", "Says the message.", group="connection", needs="nothing", flags="fast")
def echo(client: Caller, words: Command) -> None:
    """As Redis."""
    client.reply(bulk(words[1]))


@command(
    "QUIT [ignored ...]",
    "Says OK and closes the connection.",
    group="connection",
    needs="nothing",
    flags="fast no_auth",
)
def quit_(client: Caller, _words: Command) -> None:
    """What was sent before is answered before."""
    client.reply(encode(OK, client.connection.protocol))
    client.connection.close_when_replied()


@command(
    "RESET",
    "Puts the connection into the state it began in.",
    group="connection",
    needs="nothing",
    flags="fast no_auth",
)
async def reset(client: Caller, _words: Command) -> str:
    """As Redis; the database is the one the backend's address names."""
    connection = client.connection
    connection.speak(2)
    connection.name = b""
    connection.user = connection.clients.access.users.initial
    connection.end_transaction()
    connection.database = connection.context.broker.default_database
    return "RESET"


@command(
    "SELECT index",
    "Chooses a database of the backend, by its number.",
    group="connection",
    needs="nothing",
    flags="fast",
)
async def select(client: Caller, words: Command) -> str:
    """The queues there are those a native client finds with REDIS_DB set to that number."""
    number = integer_of(words[1])
    if not -(2**31) <= number < 2**31:
        raise CommandError("ERR value is out of range, value must between -2147483648 and 2147483647")
    try:
        client.connection.database = await client.connection.context.broker.database(number)
    except DatabaseNumberError as error:
        raise CommandError(f"ERR {error}") from error
    return OK


@command(
    "AUTH [username] password",
    "Logs in, as the user default unless another is named.",
    group="connection",
    needs="nothing",
    flags="fast no_auth",
)
async def auth(client: Caller, words: Command) -> str:
    """As Redis; see pressure_server.auth.logins of wrong passwords."""
    if len(words) > 3:
        raise syntax_error()
    if len(words) == 2 and client.connection.clients.access.users.initial is not NOBODY:
        raise CommandError(
            "ERR AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    await client.connection.log_in(words[1] if len(words) == 3 else DEFAULT.encode(), words[-1])
    return OK


@command(
    "HELLO [protover] [AUTH username password] [SETNAME clientname]",
    "Chooses the version of RESP, 2 or 3, and says what server this is.",
    group="connection",
    needs="nothing",
    flags="fast no_auth",
)
async def hello(client: Caller, words: Command) -> dict[str | bytes, object]:
    """As Redis."""
    connection = client.connection
    protocol, name = connection.protocol, connection.name
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
                await connection.log_in(rest[1], rest[2])
                rest = rest[3:]
            case b"SETNAME" if len(rest) >= 2:
                name = _checked_name(rest[1])
                rest = rest[2:]
            case _:
                shown = rest[0].decode("utf-8", "backslashreplace")
                raise CommandError(f"ERR Syntax error in HELLO option '{shown}'")
    if connection.user is NOBODY:
        raise CommandError(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH "
            "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
            "version at the same time"
        )
    connection.speak(protocol)
    connection.name = name
    return {
        b"server": b"redis",
        b"version": FOLLOWED_VERSION.encode(),
        b"proto": protocol,
        b"id": connection.id,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }


def _checked_name(name: bytes) -> bytes:
    if any(byte < ord("!") or byte > ord("~") for byte in name):
        raise CommandError("ERR Client names cannot contain spaces, newlines or special characters.")
    if len(name) > _LONGEST_NAME:
        raise CommandError(f"ERR Client names cannot be longer than {_LONGEST_NAME} bytes.")
    return name


container("CLIENT", "Commands on connections.", group="connection")


@command(
    "CLIENT|ID", "Says the number of this connection.", group="connection", needs="nothing", flags="fast"
)
async def client_id(client: Caller, _words: Command) -> int:
    """As Redis."""
    return client.connection.id


@command(
    "CLIENT|GETNAME", "Says the name of this connection.", group="connection", needs="nothing", flags="fast"
)
async def client_getname(client: Caller, _words: Command) -> bytes | None:
    """As Redis: nil where it has none."""
    return client.connection.name or None


@command(
    "CLIENT|SETNAME connection-name",
    "Names this connection.",
    group="connection",
    needs="nothing",
    flags="fast",
)
async def client_setname(client: Caller, words: Command) -> str:
    """As Redis."""
    client.connection.name = _checked_name(words[2])
    return OK


@command(
    "CLIENT|SETINFO attribute value",
    "Notes the client library's name or version.",
    group="connection",
    needs="nothing",
    flags="fast",
)
async def client_setinfo(client: Caller, words: Command) -> str:
    """As Redis: LIB-NAME or LIB-VER."""
    attribute = words[2].upper()
    if attribute not in (b"LIB-NAME", b"LIB-VER"):
        shown = words[2].decode("utf-8", "backslashreplace")
        raise CommandError(f"ERR Unrecognized option '{shown}'")
    if any(byte < ord("!") or byte > ord("~") for byte in words[3]):
        shown = attribute.decode().lower()
        raise CommandError(f"ERR {shown} cannot contain spaces, newlines or special characters.")
    if len(words[3]) > _LONGEST_NAME:
        raise CommandError(f"ERR {attribute.decode().lower()} cannot be longer than {_LONGEST_NAME} bytes.")
    name, version = client.connection.library or (b"", b"")
    client.connection.library = (words[3], version) if attribute == b"LIB-NAME" else (name, words[3])
    return OK


@command(
    "CLIENT|NO-EVICT ON|OFF",
    "Does nothing: who has most kept may be closed.",
    group="connection",
    needs="nothing",
)
async def client_no_evict(_client: Caller, words: Command) -> str:
    """As Redis answers; see pressure_server/net/memory.py for who is closed."""
    if words[2].upper() not in (b"ON", b"OFF"):
        raise syntax_error()
    return OK


def _resp_clients(connection: RespClient) -> list[RespClient]:
    found = [other for other in connection.clients.connected if isinstance(other, RespClient)]
    return sorted(found, key=lambda other: other.id)


@command("CLIENT|INFO", "Describes this connection.", group="connection", needs="nothing")
async def client_info(client: Caller, _words: Command) -> Text:
    """As Redis: one line."""
    return Text(client_line(client.connection) + b"\n")


@command(
    "CLIENT|LIST [TYPE client-type] [ID client-id [client-id ...]]",
    "Describes all connections.",
    group="connection",
    needs="administer",
)
async def client_list(client: Caller, words: Command) -> Text:
    """As Redis: a line each. All are of type normal."""
    options, found = words[2:], _resp_clients(client.connection)
    if options and options[0].upper() == b"TYPE" and len(options) == 2:
        kind = options[1].lower()
        if kind not in (b"normal", b"master", b"replica", b"slave", b"pubsub"):
            raise CommandError(f"ERR Unknown client type '{options[1].decode('utf-8', 'backslashreplace')}'")
        found = found if kind == b"normal" else []
    elif options and options[0].upper() == b"ID" and len(options) > 1:
        wanted = {integer_from(word) for word in options[1:]}
        if None in wanted:
            raise CommandError("ERR Invalid client ID")
        found = [other for other in found if other.id in wanted]
    elif options:
        raise syntax_error()
    return Text(b"".join(client_line(other) + b"\n" for other in found))


@command(
    "CLIENT|KILL [addr] [ID client-id] [ADDR ip:port] [LADDR ip:port] [SKIPME yes/no]",
    "Closes connections.",
    group="connection",
    needs="administer",
)
async def client_kill(client: Caller, words: Command) -> object:
    """As Redis: OK for one address, else how many were closed."""
    if len(words) == 2:
        raise CommandError("ERR wrong number of arguments for 'client|kill' command")
    matches, skip_me = kill_filter(words[2:])
    me = client.connection
    victims = [other for other in _resp_clients(me) if matches(other) and not (skip_me and other is me)]
    if len(words) == 3 and not victims:
        raise CommandError("ERR No such client")
    for victim in victims:
        if victim is me:
            me.close_when_replied()
        else:
            victim.break_off()
    return OK if len(words) == 3 else len(victims)
