"""dramatiq: `dramatiq dramatiq_app` runs the worker, `put WORD …` puts jobs."""

import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from work import PORT, work

dramatiq.set_broker(RedisBroker(host="127.0.0.1", port=PORT))
run = dramatiq.actor(work)

if __name__ == "__main__":
    for word in sys.argv[2:]:
        run.send(word)
