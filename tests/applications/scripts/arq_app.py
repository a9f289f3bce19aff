"""arq: `arq arq_app.WorkerSettings` runs the worker, `put WORD …` puts jobs."""

import asyncio
import sys
from typing import ClassVar

from arq import create_pool
from arq.connections import RedisSettings
from work import PORT, work

SERVER = RedisSettings("127.0.0.1", PORT)


async def run(context: object, word: str) -> None:
    work(word)


class WorkerSettings:
    functions: ClassVar = [run]
    redis_settings = SERVER


async def put(words: list[str]) -> None:
    pool = await create_pool(SERVER)
    for word in words:
        await pool.enqueue_job("run", word)


if __name__ == "__main__":
    asyncio.run(put(sys.argv[2:]))
