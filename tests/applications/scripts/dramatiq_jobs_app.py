"""dramatiq over the broker of pressure-server; `put WORD …` puts jobs.

`p9-WORD` is a job of an actor with priority -9, `later-WORD` has a delay; `many-N` stands for the jobs 0 to
N - 1. The job `retried` fails once, `rejected` always.
"""

import os
import re
import sys

import dramatiq
from work import PORT, work

from pressure_server.client.dramatiq import PressureBroker

BROKER = os.environ.get("BROKER", f"redis://127.0.0.1:{PORT}")
dramatiq.set_broker(PressureBroker(BROKER, queue_options={"default": {"BOUND": 5000}}))
failed: set[str] = set()


@dramatiq.actor(max_retries=1, min_backoff=10)
def run(word: str) -> None:
    """Do the work."""
    work(word)
    if word == "rejected" or (word == "retried" and word not in failed):
        failed.add(word)
        raise ValueError(word)


urgent = {
    number: dramatiq.actor(work, actor_name=f"urgent_{number}", priority=-number) for number in (1, 5, 9)
}

if __name__ == "__main__":
    for word in sys.argv[2:]:
        if many := re.fullmatch(r"many-(\d+)", word):
            for number in range(int(many[1])):
                run.send(str(number))
        elif word.startswith("later-"):
            run.send_with_options(args=(word,), delay=1000)
        else:
            priority = re.match(r"p(\d)-", word)
            (urgent[int(priority[1])] if priority else run).send(word)
