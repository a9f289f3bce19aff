"""Replies of Redis and of the server to the same requests, byte by byte.

DIFFERENCES lists the requests with intended differences, and the reasons.
"""

import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS
from tests.support.side_by_side import Pair, compare, split, words
from tests.unit.handlers.resp.test_parser import LIMITS

pytestmark = pytest.mark.clients

STRICTER = "invalid arguments are refused whether or not the key exists"
NOT_TEXT = "bytes that are not UTF-8 are shown escaped, and a zero byte does not end a text"
LATER = "CLIENT SETINFO came with Redis 7.2, and client libraries send it"
OTHER_SET = "the server has other commands and parameters than Redis"
BOUNDED = "the size of a reply is bounded"

DIFFERENCES = {
    "LINDEX q x": STRICTER,
    "LINDEX q ''": STRICTER,
    **dict.fromkeys(
        [
            "SSCAN q -1", "SSCAN q ''", "SSCAN q 01", "SSCAN q 0 COUNT", "SSCAN q 0 COUNT x",
            "SSCAN q 0 COUNT 0", "SSCAN q 0 COUNT -5",
            "SSCAN q 0 MATCH", "SSCAN q 0 NONSENSE 1", "SSCAN q 0 TYPE set", "SCAN -1",
        ],
        STRICTER,
    ),
    "SRANDMEMBER q -9223372036854775808": BOUNDED,
    "SRANDMEMBER q -9223372036854775807": BOUNDED,
    "HELLO 2 NONSENSE\\xff": NOT_TEXT,
    "CLIENT nonsense\\xff": NOT_TEXT,
    "CLIENT NON\\x00SENSE": NOT_TEXT,
    "nonsense \\x00\\x01": NOT_TEXT,
    "nonsense\\xff": NOT_TEXT,
    "nonsense a\\xffb": NOT_TEXT,
    "nonsense\\x00x": NOT_TEXT,
    "CLIENT SETINFO LIB-NAME a": LATER,
    "CLIENT SETINFO NONSENSE a": LATER,
    "COMMAND INFO client": OTHER_SET,
    "CONFIG GET maxmemory*": OTHER_SET,
    "GETSET": OTHER_SET,
}  # fmt: skip


ARGUMENTS = """
SPOP q x|SPOP q -1|SPOP q 1.5|SPOP q ''|SPOP q 99999999999999999999|SPOP q +1|SPOP q 01|SPOP q 1 2|SPOP q -0
SRANDMEMBER q x|SRANDMEMBER q 1 2|SRANDMEMBER q -9223372036854775808|SRANDMEMBER q 9223372036854775808
SRANDMEMBER q -9223372036854775807|LPOP q x|LPOP q -1|LPOP q 1 2|RPOP q -1|RPOP q 1.0|LRANGE q a 1
LRANGE q 0 b|LINDEX q x|LINDEX q ''|SSCAN q x|SSCAN q -1|SSCAN q 1.5|SSCAN q 0 COUNT|SSCAN q 0 COUNT x
SSCAN q 0 COUNT 0|SSCAN q 0 COUNT -5|SSCAN q 0 MATCH|SSCAN q 0 NONSENSE 1|SSCAN q 0 TYPE set
SSCAN q 99999999999999999999|SSCAN q ''|SSCAN q 01|SCAN x|SCAN -1|SCAN 0 COUNT x|SCAN 0 COUNT 0|SCAN 0 MATCH
SCAN 0 NONSENSE 1|SCAN 0 TYPE|SCAN 99999999999999999999|SCAN 0 TYPE list|SCAN 0 TYPE nonsense|SCAN 0
SCAN 0 COUNT 100000|SCAN 0 MATCH * COUNT 10 TYPE set|SELECT x|SELECT -1|SELECT 16
SELECT 99999999999999999999|SELECT 2147483648|SELECT ''|SELECT 0|SELECT 1 2|SELECT 1.5|FLUSHDB NOW
FLUSHDB ASYNC SYNC|FLUSHALL NOW|FLUSHDB SYNC|FLUSHALL ASYNC|HELLO 4|HELLO x|HELLO 1|HELLO 3 NONSENSE
HELLO 3 AUTH x|HELLO 3 AUTH nobody y|HELLO 3 SETNAME|HELLO 2 SETNAME a\\x20b|HELLO -1
HELLO 99999999999999999999|HELLO 3 AUTH default|HELLO 3 SETNAME|HELLO AUTH default x|HELLO 2 AUTH default
HELLO 2 NONSENSE\\xff|HELLO 2 Nonsense\\x0aline|AUTH x|AUTH default x|AUTH nobody x|AUTH a b c|AUTH ''
AUTH '' ''|AUTH default ''|COMMAND NONSENSE|COMMAND GETKEYS|COMMAND GETKEYS PING|COMMAND GETKEYS SADD
COMMAND GETKEYS NONSENSE a|COMMAND GETKEYS SADD k a|COMMAND GETKEYS DEL a b c|COMMAND GETKEYS EXISTS a
COMMAND GETKEYS ECHO a|COMMAND INFO nonsense|COMMAND DOCS nonsense|COMMAND COUNT x|COMMAND INFO client
nonsense|CONFIG NONSENSE|CONFIG GET|CONFIG GET nonsense|CONFIG GET nonsense other*|CONFIG
CONFIG GET maxmemory|CONFIG GET MaxMemory|CONFIG GET save|CONFIG GET appendonly|CONFIG GET maxmemory*
CONFIG GET timeout|CONFIG GET timeou[t]|CONFIG GET nonsense*|CLIENT|CLIENT NONSENSE|CLIENT NONSENSE a b
CLIENT nonsense\\xff|CLIENT SETNAME|CLIENT SETNAME a b|CLIENT SETNAME a\\x20b|CLIENT SETNAME a\\x0ab
CLIENT SETNAME \\xff|CLIENT SETNAME ''|CLIENT GETNAME|CLIENT SETNAME me|CLIENT GETNAME|RESET|CLIENT GETNAME
CLIENT GETNAME x|CLIENT ID x|CLIENT INFO x|CLIENT LIST x|CLIENT LIST TYPE nonsense|CLIENT LIST TYPE
CLIENT LIST ID|CLIENT LIST ID x|CLIENT LIST TYPE pubsub|CLIENT LIST TYPE normal x|CLIENT LIST ID 0
CLIENT LIST TYPE replica|CLIENT KILL|CLIENT KILL nonsense|CLIENT KILL ID|CLIENT KILL ID x|CLIENT KILL ID 0
CLIENT KILL ID 987654321|CLIENT KILL ADDR 1.2.3.4:5|CLIENT KILL NONSENSE x
CLIENT KILL ADDR 1.2.3.4:5 SKIPME maybe|CLIENT KILL ADDR 1.2.3.4:5 ID|CLIENT KILL ID -1
CLIENT KILL SKIPME no ID 987654321|CLIENT SETINFO LIB-NAME a|CLIENT SETINFO NONSENSE a
CLIENT UNBLOCK|CLIENT UNBLOCK x|CLIENT UNBLOCK 987654321|CLIENT UNBLOCK 987654321 timeout|CLIENT UNBLOCK 0
CLIENT UNBLOCK -1 ERROR|CLIENT UNBLOCK 1.5|CLIENT UNBLOCK 99999999999999999999|CLIENT UNBLOCK 1 NONSENSE
CLIENT UNBLOCK x NONSENSE|CLIENT UNBLOCK 987654321 TIMEOUT x|CLIENT UNBLOCK '' ERROR
CLIENT LIST ID 99999999999999999999|CLIENT LIST ID -1|PING a b|PING a|PING|PING ''|ping|PiNg|ECHO|ECHO a b
ECHO ''|ECHO \\x00\\xff\\x0d\\x0a|TIME x|DBSIZE x|DBSIZE|KEYS|KEYS a b|KEYS *|KEYS nothing|KEYS ''|KEYS [
KEYS [^|RANDOMKEY|RANDOMKEY x|nonsense|nonsense a b c|nonsense a\\x0ab|NonSense 'x'|nons\\x0d\\x0aense|''
'' ''|nonsense \\x00\\x01|GETSET|nonsense\\xff|nonsense a\\xffb|nonsense \\xc3\\xa9|nonsense\\x00x
CLIENT NON\\x0aSENSE|CLIENT NON\\x00SENSE
BLPOP q 1e-320|BLPOP q 1e-400|BLPOP q 1.9e-4951|BLPOP q 1.8e-4951
BLPOP q 1e-9999|BLPOP q -1e-9999|BRPOP q r 1e-9999|BLMOVE q r LEFT LEFT 1e-9999|BLMPOP 1e-9999 1 q LEFT
WAIT 0 0|WAIT -1 0|WAIT x 0|WAIT 1 -1|WAIT 1 x|WAIT 1 10|WAIT 99999999999 1|WAIT 1 1.5|WAIT 1 1 1
WAIT 1 99999999999999999999|WAIT 99999999999999999999 1
"""

LONG = f"nonsense {'a' * 90} {'b' * 30} {'c' * 50} d"

MISSING = """
SPOP q|SPOP q 0|SPOP q 1|SPOP q 10|SCARD q|SISMEMBER q a|SMISMEMBER q a|SMISMEMBER q a b c|SMEMBERS q
SREM q a|SREM q a b|SSCAN q 0|SSCAN q 0 MATCH a* COUNT 5|SSCAN q 7|SRANDMEMBER q|SRANDMEMBER q 0
SRANDMEMBER q 3|SRANDMEMBER q -3|LPOP q|LPOP q 0|LPOP q 1|LPOP q 5|RPOP q|RPOP q 0|RPOP q 2|LLEN q
LRANGE q 0 -1|LRANGE q 5 2|LINDEX q 0|LINDEX q -1|TYPE q|TTL q|PTTL q|EXISTS q|EXISTS q q r|DEL q|DEL q q r
UNLINK q|UNLINK q r|KEYS *|RANDOMKEY|DBSIZE|SCAN 0
"""


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("line", [*split(ARGUMENTS + MISSING), LONG])
def test_a_command_without_data_is_answered_as_in_redis(pair: Pair, line: str, protocol: int) -> None:
    compare(pair, [line], protocol, ignored=DIFFERENCES)


# Redis reads their arguments before it counts them, or they end the connection.
ARITY_ELSEWHERE = {b"QUIT", b"HELLO", b"AUTH", b"RESET", b"COMMAND", b"INFO"}
SUBCOMMANDS = """
CLIENT ID a b c d|CLIENT GETNAME a b c d|CLIENT SETNAME|CLIENT SETNAME a b c d|CLIENT INFO a b c d
COMMAND COUNT a b c d|COMMAND GETKEYS|CONFIG GET
"""


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_wrong_number_of_arguments_gets_redis_s_error(pair: Pair, protocol: int) -> None:
    commands.load()
    compared = {name.decode(): COMMANDS[name].arity for name in COMMANDS.keys() - ARITY_ELSEWHERE}
    arities = {name: compared[name] for name in sorted(compared) if "." not in name}
    bare = [name for name in arities if arities[name] not in (1, -1)]
    assert len(bare) > 20
    many = [f"{name} {' '.join('a' * 9)}" for name in arities if arities[name] > 0]
    lines = [*bare, *map(str.lower, bare), *many, *split(SUBCOMMANDS)]
    compare(pair, lines, protocol, ignored=DIFFERENCES)


ONE_MEMBER = """
SADD q a|SADD q a|SADD q a a|SCARD q|SISMEMBER q a|SISMEMBER q b|SMISMEMBER q a b a|SMEMBERS q|SRANDMEMBER q
SRANDMEMBER q 1|SRANDMEMBER q 5|SRANDMEMBER q -3|SRANDMEMBER q 0|SSCAN q 0|SSCAN q 0 MATCH b*
SSCAN q 0 MATCH a COUNT 5|TYPE q|TTL q|PTTL q|EXISTS q|EXISTS q q nothing|KEYS *|KEYS q|KEYS [a-q]|KEYS x
RANDOMKEY|DBSIZE|SCAN 0 COUNT 1000|SCAN 0 MATCH q COUNT 1000|SCAN 0 TYPE set COUNT 1000
SCAN 0 TYPE string COUNT 1000|SPOP q 0|SREM q b|SREM q a a|SCARD q|SADD q ''|SADD q \\x00\\xff\\x0d\\x0a
SREM q ''|SPOP q|SPOP q|SADD q a|SPOP q 1|SPOP q 1|SADD q a|SPOP q 10|SADD q a|DEL q|DEL q|SADD q a
UNLINK q q|SADD q a|FLUSHDB|EXISTS q|SADD q a|FLUSHALL|EXISTS q|DBSIZE
"""

SEVERAL_MEMBERS = """
SADD q a b c d|SADD q a b e|SCARD q|SMEMBERS q|SINTER q q|SUNION q r q r|SDIFF q q|SDIFF q r r
SINTER q r q|SINTERCARD 3 q q q|SINTERCARD 2 r r|SMISMEMBER q a x e|SREM q a x|SRANDMEMBER q 100
SSCAN q 0 COUNT 100|SSCAN q 0 COUNT 100 MATCH [cd]|SADD r 1 2 3|SADD s 4|KEYS *|KEYS [rs]|KEYS ?|KEYS s*
EXISTS r s q|SCAN 0 COUNT 1000|SCAN 0 MATCH [^r] COUNT 1000|DEL r s nothing|SPOP q 100|SPOP q 100
"""

LISTS = """
RPUSH q a|RPUSH q b c|LLEN q|LRANGE q 0 -1|LRANGE q 1 1|LRANGE q -2 -1|LRANGE q 5 9|LRANGE q 2 1|LINDEX q 0
LRANGE q -100 0|LRANGE q 2 100|LRANGE q 3 100|LRANGE q 0 -9223372036854775808|LINDEX q 9223372036854775807
LINDEX q -1|LINDEX q 3|LINDEX q -4|LINDEX q x|LRANGE q x 1|LRANGE q -9223372036854775808 9223372036854775807
LPOP q|LPOP q 0|LPOP q 1|LPOP q 9|LLEN q|RPUSH q a a a|LLEN q|LRANGE q 0 99|LPOP q 2|RPUSH q ''|LPUSH r x
RPOP r|LPUSH r x|RPOP r 5|LPUSH r a b c|LLEN r
"""

# Redis reads options from the left: the first error counts, and of a repeated option the last value.
OPTIONS = """
RPUSH q a b a|LPOS q a RANK 9223372036854775807|LPOS q a RANK -9223372036854775807|LPOS q a RANK 1 RANK 2
LPOS q a RANK 3 RANK -1 COUNT 1 COUNT 0|LPOS q a MAXLEN 1 MAXLEN 3 COUNT 0|LPOS q a RANK 0 NONSENSE
LPOS q a NONSENSE RANK 0|LPOS q a RANK 1 RANK 0|LPOS q a COUNT -1 RANK 0|LPOS q a COUNT 1 COUNT
LPOS q a MAXLEN 9223372036854775807 COUNT 9223372036854775807|LPOS q a RANK 9223372036854775808
LMPOP 1 q LEFT COUNT 0 x|LMPOP 1 q LEFT COUNT x COUNT 1|LMPOP 1 q LEFT COUNT 1 COUNT x|LMPOP 1 q LEFT 1 COUNT
BLMPOP 0.1 1 q LEFT COUNT 0 x|BLMPOP 0.1 1 q LEFT COUNT 1 x|BLMPOP x 1 q LEFT COUNT 0 x|LLEN q
SADD s a|SINTERCARD 1 s LIMIT x y|SINTERCARD 1 s LIMIT 1 LIMIT 0|SINTERCARD 1 s LIMIT 1 LIMIT x
SINTERCARD 1 s LIMIT 1 LIMIT|SSCAN s 0 COUNT x MATCH|SSCAN s 0 COUNT 0 MATCH|SSCAN s 0 MATCH b MATCH a
SSCAN s 0 MATCH a MATCH b COUNT 9|SSCAN s 0 COUNT 9 COUNT x|SSCAN s 0 COUNT 9 COUNT|SSCAN s 0 TYPE x
SCAN 0 COUNT x MATCH|SCAN 0 COUNT 99 MATCH [rs] TYPE list TYPE set|SCAN 0 TYPE set TYPE
"""

CONNECTION = """
PING|PING hello|ECHO hello|CLIENT SETNAME me|CLIENT GETNAME|CLIENT SETNAME ''|CLIENT GETNAME|SELECT 1
SELECT 0|AUTH default anything|HELLO 4|CLIENT SETNAME me|HELLO 9 SETNAME you|CLIENT GETNAME|RESET
CLIENT GETNAME|PING
"""


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize(
    "table",
    [ONE_MEMBER, SEVERAL_MEMBERS, LISTS, OPTIONS, CONNECTION],
    ids=["one member", "several", "lists", "options", "connection"],
)
def test_a_sequence_of_commands_is_answered_as_in_redis(pair: Pair, table: str, protocol: int) -> None:
    compare(pair, split(table), protocol, unordered=True, ignored=DIFFERENCES)


QUIT = b"*1\r\n$4\r\nQUIT\r\n"
# The limits differ, Redis does not search for line ends after a zero byte, or the reply depends on how many
# bytes arrive at once.
NOT_COMPARED = {
    "count, too large", "length, too large", "element, binary",
    "count, never ends", "length, never ends", "inline, never ends", "inline, too long",
}  # fmt: skip
RAW = {name: stream for name, stream, _ in LIMITS if name not in NOT_COMPARED} | {
    "nothing": b"",
    "inline": b"PING\r\nECHO a\nECHO \"b c\"\r\n  ECHO\t'd'  \r\n",
    "inline, empty lines": b"\r\n\n   \r\nPING\r\n",
    "inline, escapes": rb"""ECHO "a\n\r\t\b\a\"\\\z\x41\xzz\x4" """ + b"\r\n",
    "inline, single quotes": rb"""ECHO 'a\'b\n"\x41'""" + b"\r\n",
    "inline, backslashes in single quotes": rb"""ECHO 'a\\'b'""" + b"\r\n",
    "inline, backslash before the quote": rb"""ECHO 'a\\'""" + b"\r\n",
    "inline, empty words": b"ECHO ''\r\nECHO \"\"\r\n",
    "inline, quotes in a word": b"ECHO a\"b c\"\r\nECHO a'b c'\r\n",
    "inline, vertical tab": b"ECHO a\vb\r\nECHO\v\r\n",
    "inline, form feed": b"ECHO a\fb\r\n",
    "inline, spaces of all kinds": b"ECHO\t \v\f a\r\n",
    "inline, carriage return in the middle": b"ECHO a\rb\r\n",
    "inline, vertical tab after quotes": b'ECHO "a"\v\r\n',
    "inline, unknown": b"nonsense a b\r\n",
    "inline, arity": b"ECHO\r\n",
    "inline, unbalanced between commands": b"PING\r\nECHO 'a\r\nPING\r\n",
    "inline, unbalanced double": b'ECHO "a\\"\r\n',
    "inline, too big": b"A" * 1_000_000,
    "count, zero": b"*0\r\n*0\r\n",
    "count, negative": b"*-1\r\n*-99\r\n",
    "count, beyond 32 bits": b"*4294967296\r\n",
    "count, long": b"*" + b"1" * 1_000_000,
    "length, too large": b"*1\r\n$4294967296\r\n",
    "length, long": b"*1\r\n$" + b"1" * 1_000_000,
    "element, not ASCII": b"*1\r\n\xff\r\n",
    "element, control character": b"*1\r\n\x01\r\n",
    "payload longer than announced": b"*1\r\n$4\r\nPINGPONG\r\n",
    "payload without CRLF": b"*2\r\n$4\r\nECHOxx$1\r\nayy*1\r\n$4\r\nPINGzz",
    "line feed only after a count": b"*1\n$4\nPING\n",
    "commands before an error": b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$1\r\na\r\n*x\r\n",
    "commands after QUIT": QUIT + b"*1\r\n$4\r\nPING\r\n",
    "QUIT with words": b"QUIT now please\r\n",
    "RESP3 types": b"%1\r\n~1\r\n>1\r\n#t\r\n,1.5\r\n(1\r\n",
    "HTTP": b"GET / HTTP/1.1\r\n",
    "HTTP POST": b"POST / HTTP/1.1\r\nPING\r\n",
    "HTTP host": b"hOsT: localhost\r\nPING\r\n",
    "HTTP POST as an array": b"*1\r\n$4\r\npost\r\n*1\r\n$4\r\nPING\r\n",
    "empty command": b"*1\r\n$0\r\n\r\n",
    "pipeline": b"SADD q a\r\nSPOP q\r\nSPOP q\r\n",
}
RAW_DIFFERENCES = {
    "element, not ASCII": NOT_TEXT,
    "element, control character": NOT_TEXT,
    "element, empty line": NOT_TEXT,
    "HTTP": OTHER_SET,
}


@pytest.mark.parametrize("name", RAW)
def test_invalid_requests_and_inline_commands_are_answered_as_in_redis(pair: Pair, name: str) -> None:
    connections = pair.connect()
    for connection in connections:
        connection.send(RAW[name] + QUIT)
    expected, found = (connection.rest() for connection in connections)
    assert (found == expected) != (name in RAW_DIFFERENCES), (expected, found)


def test_every_listed_difference_still_exists(pair: Pair) -> None:
    equal = []
    for line in DIFFERENCES:
        redis, server = pair.connect()
        if redis.do(words(line)) == server.do(words(line)):
            equal.append(line)
    assert equal == []


# For each difference: the commands, the replies of Redis, and the replies of the server.
UNLIKE_REDIS = {
    "lists are first in, first out": (
        "LPUSH q a b|LRANGE q 0 -1|LPOP q",
        b":2\r\n*2\r\n$1\r\nb\r\n$1\r\na\r\n$1\r\nb\r\n",
        b":2\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\na\r\n",
    ),
    "an empty queue exists": (
        "SADD q a|SPOP q|EXISTS q|TYPE q|TTL q|DEL q",
        b":1\r\n$1\r\na\r\n:0\r\n+none\r\n:-2\r\n:0\r\n",
        b":1\r\n$1\r\na\r\n:1\r\n+set\r\n:-1\r\n:1\r\n",
    ),
    "a queue is a set and a list": (
        "SADD q a|RPUSH q a|LLEN q|TYPE q",
        b":1\r\n"
        + b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n" * 2
        + b"+set\r\n",
        b":1\r\n:2\r\n:2\r\n+set\r\n",
    ),
}


@pytest.mark.parametrize("name", UNLIKE_REDIS)
def test_queues_differ_from_keys_of_redis(pair: Pair, name: str) -> None:
    lines, *expected = UNLIKE_REDIS[name]
    found = [b"".join(wire.do(words(line)).raw for line in split(lines)) for wire in pair.connect()]
    assert found == expected
