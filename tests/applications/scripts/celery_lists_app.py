"""Celery with lists only: no acknowledgements, and no remote control of workers."""

import sys

from celery import Celery
from work import PORT, work

app = Celery("celery_lists_app", broker=f"redis://127.0.0.1:{PORT}/0")
app.conf.broker_transport_options = {"ack_emulation": False}
app.conf.worker_enable_remote_control = False


@app.task(name="run", bind=True)
def run(self, word: str) -> None:
    """Do the work. The job `retried` fails once, and is tried again."""
    work(word)
    if word == "retried" and not self.request.retries:
        raise self.retry(countdown=0.01)


if __name__ == "__main__":
    for word in sys.argv[2:]:
        run.delay(word)
