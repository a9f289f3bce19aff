"""huey: `huey_consumer huey_app.huey` runs the worker, `put WORD …` puts jobs."""

import sys

from huey import RedisHuey
from work import PORT, work

huey = RedisHuey("app", host="127.0.0.1", port=PORT)


@huey.task()
def run(word: str) -> None:
    work(word)


if __name__ == "__main__":
    # The worker knows the task by the name of this module, not as `__main__`.
    from huey_app import run as task

    for word in sys.argv[2:]:
        task(word)
