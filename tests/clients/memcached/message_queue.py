"""The memcached example of MessageQueue's README, by python-memcached, with one more get."""

import sys

import memcache  # type: ignore[import-untyped] # it has no types

mc = memcache.Client([f"127.0.0.1:{sys.argv[1]}"])
print(mc.get("niki"))
print(mc.set("niki", 123))
print(mc.get("niki"))
print(mc.get("niki"))
