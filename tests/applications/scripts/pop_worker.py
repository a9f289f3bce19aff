"""A worker on a queue with ACK NEXT: `pop_worker.py CLIENT PORT QUEUE POP TIMEOUT`.

POP is `poll` or `wait`. TIMEOUT is the client's read timeout in seconds, with which it does not try again
by itself, so that each error is seen; or `default`, for the client's own settings.

Each line of the input is a step, which the worker answers with a line. At the end of the input its script
ends.
"""

import asyncio
import sys
from typing import Any, NoReturn

CLIENT, PORT, QUEUE, POP = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
TIMEOUT = None if sys.argv[5] == "default" else float(sys.argv[5])
WAIT = 60  # seconds


class RedisPy:
    """redis-py."""

    def __init__(self) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = {} if TIMEOUT is None else {"socket_timeout": TIMEOUT, "retry": Retry(NoBackoff(), 0)}
        self.client: Any = redis.Redis(port=PORT, **options)

    def pop(self) -> bytes | None:
        if POP == "poll":
            return self.client.spop(QUEUE)
        found = self.client.blpop(QUEUE, WAIT)
        return found and found[1]

    def work(self, message: bytes | None) -> None:
        self.client.ping()
        self.client.rpush(f"{QUEUE}:done", message)

    def ack(self) -> None:
        self.client.execute_command("PRESSURE.ACK", QUEUE)

    def quit(self) -> None:
        self.client.quit()

    def close(self) -> None:
        self.client.close()


class HotQueue(RedisPy):
    """hotqueue, whose `worker` waits, and whose `get` does not."""

    def __init__(self) -> None:
        from hotqueue import HotQueue

        name = QUEUE.removeprefix("hotqueue:")
        self.queue = HotQueue(name, None, host="127.0.0.1", port=PORT, socket_timeout=TIMEOUT, retry=None)
        self.client = self.queue._HotQueue__redis

    def pop(self) -> bytes | None:
        message: bytes | None = self.queue.get(block=POP == "wait", timeout=WAIT)
        return message


class PyMemcache:
    """pymemcache."""

    def __init__(self) -> None:
        from pymemcache.client.base import Client

        self.client: Any = Client(("127.0.0.1", PORT), timeout=TIMEOUT, default_noreply=False)
        self.close, self.quit = self.client.close, self.client.quit

    def pop(self) -> bytes | str | None:
        message: bytes | str | None = self.client.get(QUEUE if POP == "poll" else f"{QUEUE}/t={WAIT}000")
        return message

    def work(self, message: bytes | str | None) -> None:
        self.client.set(f"{QUEUE}:done", message)


class PythonMemcached(PyMemcache):
    """python-memcached, whose `get` returns None if the server is away."""

    def __init__(self) -> None:
        import memcache

        self.client = memcache.Client([f"127.0.0.1:{PORT}"], socket_timeout=TIMEOUT, dead_retry=0)
        self.close = self.client.disconnect_all


class RedisPyAsyncio(RedisPy):
    """redis-py with asyncio. Its methods return awaitable objects."""

    def __init__(self) -> None:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self.client = redis.asyncio.Redis(port=PORT, socket_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0))

    async def pop(self) -> bytes | None:  # type: ignore[override]
        if POP == "poll":
            return await self.client.spop(QUEUE)
        found = await self.client.blpop(QUEUE, WAIT)
        return found and found[1]

    async def work(self, message: bytes | None) -> None:  # type: ignore[override]
        await self.client.ping()
        await self.client.rpush(f"{QUEUE}:done", message)

    async def ack(self) -> None:  # type: ignore[override]
        await self.client.execute_command("PRESSURE.ACK", QUEUE)

    async def quit(self) -> None:  # type: ignore[override]
        await self.client.execute_command("QUIT")

    async def close(self) -> None:  # type: ignore[override]
        await self.client.aclose()


CLIENTS = {
    "redis-py": RedisPy,
    "redis-py asyncio": RedisPyAsyncio,
    "hotqueue": HotQueue,
    "pymemcache": PyMemcache,
    "python-memcached": PythonMemcached,
}


def fail() -> NoReturn:
    raise ValueError("the work has failed")


async def main() -> None:
    worker = CLIENTS[CLIENT]()
    message: Any = None
    # A worker without asyncio is used as any script would use it: nothing else runs meanwhile.
    is_async = CLIENT == "redis-py asyncio"
    while line := await asyncio.to_thread(sys.stdin.readline) if is_async else sys.stdin.readline():
        step = line.strip()
        if step == "fail":
            fail()
        try:
            done = getattr(worker, step)(*[message] if step == "work" else [])
            answer = await done if is_async else done
        except Exception as error:  # whichever it is, the test asks for it
            print("error", type(error).__name__, error, flush=True)
            continue
        if step == "pop":
            message = answer.decode() if isinstance(answer, bytes) else answer
            print("none" if message is None else f"got {message}", flush=True)
        else:
            print(step, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
