"""Commands on the connection: PING, login, the choice of a database, and CLIENT."""

from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from handlers.resp import table
from handlers.resp.arguments import integer_of
from handlers.resp.parser import Words
from handlers.resp.replies import OK, Text, bulk, encode, too_many_arguments, wrong_arity
from handlers.resp.session import Caller, RespSession, TransactionCaller
from handlers.resp.table import FOLLOWED_VERSION
from pressure_server.auth.users import DEFAULT, NOBODY
from pressure_server.errors import CommandError
from pressure_server.net.client_facts import ClientFacts, facts_of
from pressure_server.net.pipeline import ReplyMode
from pressure_server.queues.broker import DatabaseNumberError
from pressure_server.words import integer_from, syntax_error

command = partial(table.command, group="connection")
container = partial(table.container, group="connection")

_REPLY_MODES = {b"ON": ReplyMode.ON, b"OFF": ReplyMode.OFF, b"SKIP": ReplyMode.SKIP}
# Redis's types of clients. All clients of this server are normal ones.
_TYPES = (b"normal", b"master", b"replica", b"slave", b"pubsub")
# The most queues in the field `waiting`.
_MAX_WAITING = 16
# In bytes. Redis has no limit, but the server keeps each name, and CLIENT LIST shows it to other clients.
_MAX_NAME_BYTES = 1024


@command("PING [message]", needs="nothing", flags="fast")
def ping(client: Caller, words: Words) -> None:
    """Returns PONG, or the message."""
    if len(words) > 2:
        raise wrong_arity("ping")
    client.reply(b"+PONG\r\n" if len(words) == 1 else bulk(words[1]))


@command("ECHO message", needs="nothing", flags="fast")
def echo(client: Caller, words: Words) -> None:
    """Returns the message."""
    client.reply(bulk(words[1]))


@command("QUIT [ignored ...]", needs="nothing", flags="fast no_auth")
def quit_(client: Caller, _words: Words) -> None:
    """Returns OK and closes the connection."""
    client.reply(encode(OK, client.session.protocol))
    client.session.acknowledge_pops()
    client.session.close_when_replied()


@command("RESET", needs="nothing", flags="fast no_auth")
async def reset(client: Caller, _words: Words) -> str:
    """Resets the connection to its initial state."""
    # The database becomes the one that the backend's URL names.
    session = client.session
    session.protocol = 2
    session.name = b""
    session.user = session.clients.access.users.initial
    session.end_transaction()
    session.transaction_id = None
    if session.reply_mode is ReplyMode.OFF:
        session.reply_mode = ReplyMode.ON
    session.clients.end_monitor(session)
    session.reserved_jobs.give_up_all(session.job_owner, at_once=True)
    session.database = session.context.broker.default_database
    return "RESET"


@command("SELECT index", needs="nothing", flags="fast")
async def select(client: Caller, words: Words) -> str:
    """Selects a database of the backend by its number."""
    # Native clients with REDIS_DB set to this number use the same database.
    number = integer_of(words[1])
    if not -(2**31) <= number < 2**31:
        raise CommandError("ERR value is out of range, value must between -2147483648 and 2147483647")
    try:
        client.session.database = await client.session.context.broker.database(number)
    except DatabaseNumberError as error:
        raise CommandError(f"ERR {error}") from error
    return OK


@command("AUTH [username] password", needs="nothing", flags="fast no_auth")
async def auth(client: Caller, words: Words) -> str:
    """Logs in as the named user, or as the user default."""
    # The replies to wrong passwords are delayed: see pressure_server.auth.logins.
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
    "HELLO [protover] [AUTH username password] [SETNAME clientname]", needs="nothing", flags="fast no_auth"
)
async def hello(client: Caller, words: Words) -> dict[str | bytes, object]:
    """Selects the RESP version (2 or 3), and describes the server. AUTH logs in, SETNAME names the
    connection.
    """
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
                raise CommandError(f"ERR Syntax error in HELLO option '{_text_of(rest[0])}'")
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


def _checked_name(name: bytes, kind: str = "Client names") -> bytes:
    if any(byte < ord("!") or byte > ord("~") for byte in name):
        raise CommandError(f"ERR {kind} cannot contain spaces, newlines or special characters.")
    if len(name) > _MAX_NAME_BYTES:
        raise CommandError(f"ERR {kind} cannot be longer than {_MAX_NAME_BYTES} bytes.")
    return name


def _text_of(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


container("CLIENT", "Shows and manages connections.")


@command("CLIENT|ID", needs="nothing", flags="fast")
async def client_id(client: Caller, _words: Words) -> int:
    """Returns the id of this connection."""
    return client.session.id


@command("CLIENT|GETNAME", needs="nothing", flags="fast")
async def client_getname(client: Caller, _words: Words) -> bytes | None:
    """Returns the name of this connection."""
    return client.session.name or None


@command("CLIENT|SETNAME connection-name", needs="nothing", flags="fast")
async def client_setname(client: Caller, words: Words) -> str:
    """Names this connection."""
    client.session.name = _checked_name(words[2])
    return OK


@command("CLIENT|SETINFO attribute value", needs="nothing", flags="fast")
async def client_setinfo(client: Caller, words: Words) -> str:
    """Sets the name or version of the client library."""
    attribute = words[2].upper()
    if attribute not in (b"LIB-NAME", b"LIB-VER"):
        raise CommandError(f"ERR Unrecognized option '{_text_of(words[2])}'")
    value = _checked_name(words[3], attribute.decode().lower())
    name, version = client.session.library or (b"", b"")
    client.session.library = (value, version) if attribute == b"LIB-NAME" else (name, value)
    return OK


@command("CLIENT|REPLY ON|OFF|SKIP", needs="nothing")
def client_reply(client: Caller, words: Words) -> None:
    """Sends replies to later commands, or none, or none to the next command. Only ON has a reply itself."""
    mode = _REPLY_MODES.get(words[2].upper())
    if mode is None:
        raise syntax_error()
    if isinstance(client, TransactionCaller):
        # In Redis, the reply to EXEC lacks some of the elements that it announces.
        raise CommandError("ERR CLIENT REPLY is not allowed in a transaction")
    if mode is not ReplyMode.SKIP or client.reply_mode is not ReplyMode.OFF:
        client.reply_mode = mode
    if mode is ReplyMode.ON:
        client.reply(encode(OK, client.protocol))


def _client_line(facts: ClientFacts) -> bytes:
    """Return the client's line in CLIENT LIST, without the line break.

    Fields of Redis without a meaning here have the value that they have for an idle client of Redis.
    """
    commands = facts.details.get("multi", -1)  # since MULTI
    flags = "O" * facts.is_monitor + "x" * (commands >= 0) + "b" * facts.is_waiting or "N"
    events = "r" * facts.is_read + "w" * bool(facts.unsent_bytes)
    # Names of queues without spaces and commas, and how many more there are.
    waiting = [quote(queue, safe="") for queue in facts.waits_on[:_MAX_WAITING]]
    if more := len(facts.waits_on) - len(waiting):
        waiting.append(f"+{more}")
    return (
        f"id={facts.id} addr={facts.address} laddr={facts.local_address} fd={facts.file_descriptor} "
        f"name={facts.name} age={facts.age} idle={facts.idle} flags={flags} db={facts.database} sub=0 psub=0 "
        f"ssub=0 multi={commands} qbuf={facts.unparsed_bytes} qbuf-free=0 argv-mem=0 "
        f"multi-mem={facts.details.get('multi-mem', 0)} rbs=0 rbp=0 obl={facts.unsent_bytes} oll=0 omem=0 "
        f"tot-mem={facts.held_bytes} events={events} cmd={facts.command or 'NULL'} user={facts.user} "
        f"redir=-1 resp={facts.details.get('resp', 2)} lib-name={facts.library_name} "
        f"lib-ver={facts.library_version} protocol={facts.protocol} waiting={','.join(waiting)}"
    ).encode()


@command("CLIENT|INFO", needs="nothing")
async def client_info(client: Caller, _words: Words) -> Text:
    """Describes this connection."""
    return Text(_client_line(facts_of(client.session)) + b"\n")


def _of_type(word: bytes) -> bool:
    """Return whether a client of this server has the type. Raise CommandError if Redis has no such type."""
    if word.lower() not in _TYPES:
        raise CommandError(f"ERR Unknown client type '{_text_of(word)}'")
    return word.lower() == _TYPES[0]


@command("CLIENT|LIST [TYPE client-type] [ID client-id [client-id ...]]", needs="administer")
async def client_list(client: Caller, words: Words) -> Text:
    """Describes the connections of all protocols, one on each line."""
    # All connections are of type normal.
    options, found = words[2:], await client.session.context.workers.clients()
    if options and options[0].upper() == b"TYPE" and len(options) == 2:
        found = found if _of_type(options[1]) else []
    elif options and options[0].upper() == b"ID" and len(options) > 1:
        wanted = {integer_from(word) for word in options[1:]}
        if None in wanted:
            raise CommandError("ERR Invalid client ID")
        found = [other for other in found if other.id in wanted]
    elif options:
        raise syntax_error()
    return Text(b"".join(_client_line(other) + b"\n" for other in found))


@command("CLIENT|UNBLOCK client-id [TIMEOUT|ERROR]", needs="administer")
async def client_unblock(client: Caller, words: Words) -> int:
    """Ends what a client of any protocol waits for, as if its time were up, or with -UNBLOCKED. Returns 1, or
    0 if the client does not wait, or gets something at this moment.
    """
    # This waits for the backend if the client's operation is in flight.
    if len(words) > 4:
        raise too_many_arguments(words)
    how = words[3].upper() if len(words) > 3 else b"TIMEOUT"
    if how not in (b"TIMEOUT", b"ERROR"):
        raise CommandError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    number = integer_of(words[2])
    if isinstance(client, TransactionCaller):
        # Two transactions could wait for each other.
        raise CommandError("ERR CLIENT UNBLOCK is not allowed in a transaction")
    return int(await client.context.workers.unblock(number, with_error=how == b"ERROR"))


def _kill_filter(words: list[bytes], client: RespSession) -> tuple[Callable[[ClientFacts], bool], bool]:
    """Return the filter for the words after CLIENT KILL, and whether it spares the client's connection."""
    if len(words) == 1:
        words = [b"ADDR", *words, b"SKIPME", b"no"]
    if len(words) % 2:
        raise syntax_error()
    tests: list[Callable[[ClientFacts], bool]] = []
    skip_me = True
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name.upper() == b"SKIPME" and value.lower() in (b"yes", b"no"):
            skip_me = value.lower() == b"yes"
        else:
            tests.append(_test(name.upper(), value, client))
    return (lambda one: all(test(one) for test in tests)), skip_me


def _test(name: bytes, value: bytes, client: RespSession) -> Callable[[ClientFacts], bool]:
    text, number = _text_of(value), integer_from(value)
    match name:
        case b"ID":
            if number is None or number < 1:
                raise CommandError("ERR client-id should be greater than 0")
            return lambda one: one.id == number
        case b"ADDR":
            return lambda one: one.address == text
        case b"LADDR":
            return lambda one: one.local_address == text
        case b"TYPE":
            is_normal = _of_type(value)
            return lambda _: is_normal
        case b"USER":
            if text not in client.clients.access.users.by_name:
                raise CommandError(f"ERR No such user '{text}'")
            return lambda one: one.user == text
        case b"MAXAGE":
            if number is None:
                raise CommandError("ERR maxage is not an integer or out of range")
            if number < 1:
                raise CommandError("ERR maxage should be greater than 0")
            return lambda one: one.age >= number
        case _:
            raise syntax_error()


@command(
    "CLIENT|KILL [addr] [ID client-id] [TYPE client-type] [USER username] [ADDR ip:port] [LADDR "
    "ip:port] [MAXAGE seconds] [SKIPME yes/no]",
    needs="administer",
)
async def client_kill(client: Caller, words: Words) -> object:
    """Closes the connections, of any protocol, that match all filters."""
    if len(words) == 2:
        raise wrong_arity("client|kill")
    me = client.session
    matches, skip_me = _kill_filter(words[2:], me)
    workers = me.context.workers
    found = [one.id for one in await workers.clients() if matches(one) and not (skip_me and one.id == me.id)]
    if len(words) == 3 and not found:
        raise CommandError("ERR No such client")
    killed = await workers.disconnect([one for one in found if one != me.id], "CLIENT KILL")
    if me.id in found:
        killed += 1
        me.close_when_replied("CLIENT KILL")
    return OK if len(words) == 3 else killed
