"""What the jobs of all applications do."""

import os
import threading

PORT = int(os.environ.get("QUEUE_PORT", "4000"))


def work(word: str) -> None:
    """Note that the job is done. The job `stuck` goes on until its worker is killed."""
    with open(os.environ["DONE"], "a", encoding="utf-8") as done:
        done.write(f"{word}\n")
    if word == "stuck":
        threading.Event().wait()
