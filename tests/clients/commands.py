"""Print the lines of tests/clients/commands.txt, by redis-py: `commands.py PORT sync|async RESP-VERSION`."""

import asyncio
import inspect
import json
import random
import sys
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff


def say(name: str, value: Any) -> None:
    print(name, json.dumps(_text(value), separators=(",", ":")))


def _text(value: Any) -> Any:
    """Return messages as text, and the members of a set (a reply of RESP3) sorted."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, set):
        return sorted(_text(one) for one in value)
    return [_text(one) for one in value] if isinstance(value, list) else value


async def done(result: Any) -> Any:
    """Return the result of a call of either client."""
    return await result if inspect.isawaitable(result) else result


async def refusal(result: Any) -> str:
    """Return the error of a command, without its code."""
    try:
        await done(result())
    except redis.RedisError as error:
        return str(error).removeprefix("ERR ")
    return ""


async def scanned(scan: Any, *arguments: Any, **options: Any) -> list[Any]:
    """Return everything that SCAN or SSCAN finds."""
    found: list[Any] = []
    cursor = 0
    while True:
        cursor, some = await done(scan(*arguments, cursor=cursor, **options))
        found += some
        if cursor == 0:
            return found


async def sets_lists_and_keys(r: Any) -> None:
    say("ping", await done(r.ping()))
    say("sadd", await done(r.sadd("letters", "a")))
    say("sadd-several", await done(r.sadd("letters", "a", "b", "c", "d")))
    say("scard", await done(r.scard("letters")))
    say("sismember", [int(await done(r.sismember("letters", member))) for member in ("b", "x")])
    say("smembers", set(await done(r.smembers("letters"))))
    say("srem", await done(r.srem("letters", "b", "x")))
    say("exists", await done(r.exists("letters")))
    say("keys", await done(r.keys("*")))
    say("scan", await scanned(r.scan))
    say("spop", await done(r.spop("letters")))
    say("spop-count", set(await done(r.spop("letters", 5))))
    say("spop-empty", await done(r.spop("letters")))
    say("spop-count-empty", await done(r.spop("letters", 5)))
    say("lpush", await done(r.lpush("numbers", "1", "2", "2")))
    say("rpop", [await done(r.rpop("numbers")) for _ in range(4)])
    say("del", await done(r.delete("letters", "numbers", "nothing")))


async def scans(r: Any) -> None:
    members = [b"member-%d" % i for i in range(250)]
    await done(r.sadd("many", *members))
    found = await scanned(r.sscan, "many", count=20)
    say("sscan", [len(found), sorted(found) == sorted(members)])
    say("sscan-match", await scanned(r.sscan, "many", match="*-249", count=20))
    await done(r.delete("many"))


async def messages(r: Any) -> None:
    binary = bytes(range(256)) + b"\r\n$3\r\n*1\r\n\0\r\n"
    queue = b"bin\r\nary\0"
    await done(r.sadd(queue, binary))
    there = int(await done(r.sismember(queue, binary)))
    say("binary", [len(binary), await done(r.spop(queue)) == binary, there])
    large = random.randbytes(1 << 20)
    await done(r.sadd("large", large))
    say("large", [len(large), await done(r.spop("large")) == large, await done(r.spop("large"))])


async def pipelines(r: Any) -> None:
    pipe = r.pipeline(transaction=False)
    pipe.sadd("pipe", "x").sadd("pipe", "y").sadd("pipe", "x").lpush("pipe", "z")
    pipe.spop("pipe").spop("pipe").spop("pipe").spop("pipe")
    say("pipeline", await done(pipe.execute()))


async def connections(r: Any, other: Any) -> None:
    await done(r.sadd("here", "message"))
    before = await done(other.exists("here"))
    await done(other.sadd("there", "message"))
    put = await done(other.scard("there"))
    deleted = await done(other.delete("there"))
    say("select", [before, put, deleted, await done(r.exists("there"))])
    say("auth", await refusal(lambda: r.execute_command("AUTH", "secret")))
    say("wrong-arity", await refusal(lambda: r.execute_command("SADD", "letters")))


async def main(port: int, kind: str, protocol: int) -> None:
    module: Any = redis.asyncio if kind == "async" else redis
    once = module.retry.Retry(NoBackoff(), 0)  # redis-py would repeat a failed AUTH for seconds
    r = module.Redis(port=port, protocol=protocol, retry=once)
    other = module.Redis(port=port, protocol=protocol, retry=once, db=1)
    await sets_lists_and_keys(r)
    await scans(r)
    await messages(r)
    await pipelines(r)
    await connections(r, other)
    for client in (r, other):
        await done(client.aclose() if kind == "async" else client.close())


asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
