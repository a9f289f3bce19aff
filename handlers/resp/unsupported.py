"""Commands of Redis on other data than queues: refused loudly, so that no application loses work in silence.

phpredis answers `-ERR …` to its application with nothing but `false`. Any other word it throws. Words that
Redis does not know, and subcommands that libraries try out, stay `-ERR unknown …`.
"""

from handlers.resp.parser import Words
from handlers.resp.replies import UnknownCommandError

# The title of the page that has the reasons, and applications that work.
PAGE = "Which applications can use it"
_BY_KIND = {
    "strings": "APPEND DECR DECRBY DELEX DELIFEQ DIGEST GET GETDEL GETEX GETRANGE GETSET INCR INCRBY "
    "INCRBYFLOAT LCS MGET MSET MSETEX MSETNX PSETEX SET SETEX SETNX SETRANGE STRLEN SUBSTR",
    "hashes": "HDEL HEXISTS HEXPIRE HEXPIREAT HEXPIRETIME HGET HGETALL HGETDEL HGETEX HINCRBY HINCRBYFLOAT "
    "HKEYS HLEN HMGET HMSET HPERSIST HPEXPIRE HPEXPIREAT HPEXPIRETIME HPTTL HRANDFIELD HSCAN HSET HSETEX "
    "HSETNX HSTRLEN HTTL HVALS",
    "sorted sets": "BZMPOP BZPOPMAX BZPOPMIN ZADD ZCARD ZCOUNT ZDIFF ZDIFFSTORE ZINCRBY ZINTER ZINTERCARD "
    "ZINTERSTORE ZLEXCOUNT ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE "
    "ZRANGESTORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX "
    "ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE ZUNION ZUNIONSTORE",
    "streams": "XACK XACKDEL XADD XAUTOCLAIM XCFGSET XCLAIM XDEL XDELEX XGROUP XINFO XLEN XPENDING XRANGE "
    "XREAD XREADGROUP XREVRANGE XSETID XTRIM",
    "bitmaps": "BITCOUNT BITFIELD BITFIELD_RO BITOP BITPOS GETBIT SETBIT",
    "places": "GEOADD GEODIST GEOHASH GEOPOS GEORADIUS GEORADIUSBYMEMBER GEORADIUSBYMEMBER_RO GEORADIUS_RO "
    "GEOSEARCH GEOSEARCHSTORE",
    "estimates": "PFADD PFCOUNT PFDEBUG PFMERGE PFSELFTEST",
    "channels": "PSUBSCRIBE PUBLISH PUBSUB PUNSUBSCRIBE SPUBLISH SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE "
    "UNSUBSCRIBE",
    "vectors": "VADD VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VREM VSETATTR VSIM",
    "keys to copy, sort or touch": "COPY DUMP MIGRATE RESTORE RESTORE-ASKING SORT SORT_RO SWAPDB TOUCH",
}
_REASONS = {
    "EVAL EVALSHA EVALSHA_RO EVAL_RO FCALL FCALL_RO FUNCTION SCRIPT": "a script would change queues without "
    "the server, and with them what other clients wait for",
    "EXPIRE EXPIREAT EXPIRETIME PERSIST PEXPIRE PEXPIREAT PEXPIRETIME": "a queue with messages does not "
    "expire; PRESSURE.ALTER … TTL deletes queues that nobody uses",
    "MOVE RENAME RENAMENX": "a queue is known by its name to native clients, and to clients that wait",
    "LINSERT LSET": "messages are taken in the order in which they were put, so none is put between others",
    "WAITAOF": "with --durability fsync, each reply says that the change is on the disk",
} | {names: f"this is a queue server, and has no {kind}" for kind, names in _BY_KIND.items()}
# By name: why the command is refused.
UNSUPPORTED = {name.encode(): reason for names, reason in _REASONS.items() for name in names.split()}
# Modules that Redis has since version 8.
_MODULES = (b"BF.", b"CF.", b"CMS.", b"FT.", b"JSON.", b"TDIGEST.", b"TOPK.", b"TS.")
_OF_MODULE = "this is a queue server, and has no documents, series or filters"


def unsupported(command: Words, documentation: str) -> UnknownCommandError | None:
    """Return the error for a command of Redis that is not in the table; None if Redis does not know it.

    The error names the page, and says by `documentation` where it is.
    """
    name = command[0].upper()
    why = _OF_MODULE if name.startswith(_MODULES) else UNSUPPORTED.get(name)
    if why is None:
        return None
    shown = name[:32].decode("ascii", "backslashreplace")
    text = f"UNSUPPORTED '{shown}' is not a queue command: {why}; see '{PAGE}' {documentation}"
    return UnknownCommandError(text, [name[:32]], f"-{text}", loses_work=True)
