"""What the jobs of all applications do."""

import os
import threading
import time
from pathlib import Path

PORT = int(os.environ.get("QUEUE_PORT", "4000"))


def work(word: str) -> None:
    """Note that the job is done. The job `stuck` goes on until its worker is killed."""
    with open(os.environ["DONE"], "a", encoding="utf-8") as done:
        done.write(f"{word}\n")
    print(f"begin {word}", flush=True)
    if word == "stuck":
        threading.Event().wait()
    finish_work(word)


def finish_work(word: str) -> None:
    """End the job when the folder $HELD has no file of its name."""
    while Path(os.environ["HELD"], word).exists():
        time.sleep(0.01)  # between two looks at the file
    print(f"sent {word}", flush=True)
