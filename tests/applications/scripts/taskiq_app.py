"""taskiq: `taskiq worker taskiq_app:broker` runs the worker, `put WORD …` puts jobs."""

import asyncio
import sys

from taskiq_redis import ListQueueBroker
from work import PORT, work

broker = ListQueueBroker(f"redis://127.0.0.1:{PORT}", socket_timeout=None)


@broker.task(task_name="run")
def run(word: str) -> None:
    work(word)


async def put(words: list[str]) -> None:
    await broker.startup()
    for word in words:
        await run.kiq(word)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(put(sys.argv[2:]))
