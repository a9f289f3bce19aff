"""Celery over the transport of pressure-server, with late acknowledgements; `put WORD …` puts jobs.

`p7-WORD` has the priority 7, `later-WORD` a countdown; `many-N` stands for the jobs 0 to N - 1. The job
`retried` is tried again, `rejected` is rejected, and `deadly` kills its process.
"""

import os
import re
import signal
import sys

from celery import Celery
from celery.exceptions import Reject
from kombu import Queue
from work import PORT, work

import pressure_server.client.kombu  # noqa: F401 # it registers the transport

BROKER = os.environ.get("BROKER", f"pressure://127.0.0.1:{PORT}")
app = Celery("celery_jobs_app", broker=BROKER)
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1
app.conf.worker_lost_wait = 0.1
app.conf.broker_connection_retry_on_startup = True
app.conf.task_queues = [Queue("celery", queue_arguments={"MAX-DELIVERIES": 5, "DEAD-LETTER": "failed"})]


@app.task(name="run", bind=True)
def run(self, word: str) -> None:
    """Do the work."""
    work(word)
    if word == "retried" and not self.request.retries:
        raise self.retry(countdown=0.01)
    if word == "rejected":
        raise Reject(requeue=False)
    if word == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    for word in sys.argv[2:]:
        if many := re.fullmatch(r"many-(\d+)", word):
            for number in range(int(many[1])):
                run.delay(str(number))
        elif word.startswith("later-"):
            run.apply_async((word,), countdown=1)
        else:
            priority = re.match(r"p(\d)-", word)
            run.apply_async((word,), priority=int(priority[1]) if priority else 0)
