"""hotqueue: `work` runs the worker, `put WORD …` puts jobs."""

import sys

from hotqueue import HotQueue
from work import PORT, work

queue = HotQueue("mails", host="127.0.0.1", port=PORT, socket_timeout=None)

if sys.argv[1] == "work":
    queue.worker(work)()
else:
    queue.put(*sys.argv[2:])
