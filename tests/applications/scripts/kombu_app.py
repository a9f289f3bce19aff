"""kombu's SimpleQueue, with default options: `work` runs a worker, `put WORD …` puts messages.

ACK_EMULATION=no takes without acknowledgements.
"""

import os
import sys

from kombu import Connection
from work import PORT, work

OPTIONS = {"ack_emulation": False} if os.environ.get("ACK_EMULATION") == "no" else {}

with Connection(f"redis://127.0.0.1:{PORT}/0", transport_options=OPTIONS) as connection:
    queue = connection.SimpleQueue("mails")
    if sys.argv[1] == "put":
        for word in sys.argv[2:]:
            queue.put(word)
    else:
        while True:
            message = queue.get(block=True)
            work(message.payload)
            message.ack()
    queue.close()
