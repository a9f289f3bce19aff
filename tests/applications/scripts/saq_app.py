"""SAQ: `saq saq_app.settings` runs the worker, `put WORD …` puts jobs."""

import asyncio
import sys

from saq import Queue
from work import PORT, work

queue = Queue.from_url(f"redis://127.0.0.1:{PORT}")


async def run(context: object, *, word: str) -> None:
    work(word)


settings = {"queue": queue, "functions": [run]}


async def put(words: list[str]) -> None:
    await queue.connect()
    for word in words:
        await queue.enqueue("run", word=word)
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(put(sys.argv[2:]))
