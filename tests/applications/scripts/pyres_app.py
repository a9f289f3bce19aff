"""pyres: `pyres_worker jobs` runs the worker, `put WORD …` puts jobs."""

import sys

from pyres import ResQ
from work import PORT, work


class Run:
    queue = "jobs"

    @staticmethod
    def perform(word: str) -> None:
        work(word)


if __name__ == "__main__":
    # The worker knows the class by the name of this module, not as `__main__`.
    from pyres_app import Run as Job

    resque = ResQ(f"127.0.0.1:{PORT}")
    for word in sys.argv[2:]:
        resque.enqueue(Job, word)
