"""The Python example of MessageQueue's README, by redis-py."""

import sys

from redis import Redis

r = Redis("localhost", int(sys.argv[1]), decode_responses=True)
print(r.sadd("niki", "12"))
print(r.sadd("niki", "15"))
print(r.scard("niki"))
print(r.sismember("niki", "abc"))
print(r.sismember("niki", "12"))
print(r.spop("niki"))
print(r.spop("niki"))
print(r.spop("niki"))
