"""Celery with its defaults: `celery --app celery_app worker` runs the worker, `put WORD …` puts jobs."""

import sys

from celery import Celery
from work import PORT, work

app = Celery("celery_app", broker=f"redis://127.0.0.1:{PORT}/0")


@app.task(name="run")
def run(word: str) -> None:
    work(word)


if __name__ == "__main__":
    for word in sys.argv[2:]:
        run.delay(word)
