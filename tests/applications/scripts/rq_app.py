"""rq: `rq worker` runs the worker, `put WORD …` puts jobs."""

import sys

from redis import Redis
from rq import Queue
from work import PORT, work

queue = Queue(connection=Redis("127.0.0.1", PORT))
for word in sys.argv[2:]:
    queue.enqueue(work, word)
