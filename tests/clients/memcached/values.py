"""Print the lines of values.txt: `values.py PORT pymemcache|memcache` (memcache is python-memcached)."""

import json
import random
import re
import sys
import time
from typing import Any

from tests.clients.memcached.python_clients import CLIENTS, AnyClient


def say(name: str, value: Any) -> None:
    print(name, json.dumps(value, separators=(",", ":")))


def storing(m: AnyClient, other: AnyClient) -> None:
    say("version", re.fullmatch(r"\d+\.\d+\.\d+", m.version()) is not None)
    say("set", [m.set("letters", message) for message in ("a", "b")])
    say("get", [other.get("letters"), other.get("nothing")])
    say("add", [m.add("word", "x"), m.add("word", "y")])
    say("replace", [m.replace("word", "bc"), m.replace("nothing", "x")])
    m.set("word", "ab")
    say("append", [m.append("word", "cd"), other.get("word")])
    say("prepend", [m.prepend("word", ".."), other.get("word")])
    say("append-to-nothing", [m.append("nothing", "x"), m.get("nothing")])
    say("get-many", m.get_many(["letters", "nothing", "word"]))


def values(m: AnyClient) -> None:
    # The flags tell a number, an object, and compressed data.
    own = [42, 1.5, True, {"a": [1, 2], "b": None}, "", "long " * 10000]
    say("own-values", [m.set("own", value) and m.get("own") == value for value in own])
    binary = bytes(range(256)) + b"\r\nEND\r\nset q 0 0 1\r\nx\r\n\0 STORED\r\n"
    m.set("binary", binary)
    say("binary", [len(binary), m.get("binary") == binary])
    large = random.randbytes(500_000)
    m.set("large", large)
    say("large", [len(large), m.get("large") == large])


def numbers(m: AnyClient) -> None:
    m.set("number", "10")
    say("incr", [m.incr("number"), m.incr("number")])
    say("decr", [m.decr("number", 2), m.decr("number", 100)])
    say("incr-nothing", [m.incr("nothing"), m.decr("nothing")])
    say("incr-text", m.incr("letters") is False)


def changing(m: AnyClient, other: AnyClient) -> None:
    m.set("cas", "first")
    m.gets("cas")
    changed = m.cas("cas", "second")
    m.gets("cas")
    other.set("cas", "second")
    say("cas", [changed, m.cas("cas", "third"), m.get("cas")])
    m.set("touched", "touched", expire=2)
    say("touch", [m.touch("touched", 100), m.touch("nothing", 100)])
    m.set("soon", "soon", expire=1)
    m.set("later", "later", expire=2)
    m.set("lasting", "lasting", expire=100)
    while m.get("soon") is not None or m.get("later") is not None:
        time.sleep(0.01)  # between checks
    say("expiry", [m.get("soon"), m.get("lasting"), m.get("touched")])
    say("delete", [m.delete("letters"), m.delete("letters"), m.get("letters")])
    m.set("quiet", "quiet", noreply=True)
    say("noreply", m.get("quiet"))
    say("long-key", [m.set("k" * 250, "v"), m.get("k" * 250)])


def server(m: AnyClient) -> None:
    stats = m.stats()
    say("stats", int(stats["cmd_set"]) > 0 and int(stats["get_misses"]) > 0 and int(stats["uptime"]) >= 0)
    say("flush", [m.flush_all(), m.get("word")])


def main(port: int, client: str) -> None:
    m, other = CLIENTS[client](port), CLIENTS[client](port)
    storing(m, other)
    values(m)
    numbers(m)
    changing(m, other)
    server(m)
    m.close()
    other.close()


main(int(sys.argv[1]), sys.argv[2])
