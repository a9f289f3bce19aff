"""Print the lines of queues.txt: `queues.py PORT pymemcache|memcache` (memcache is python-memcached)."""

import json
import random
import re
import sys
import time
from typing import Any

from tests.clients.memcached.python_clients import CLIENTS, AnyClient


def say(name: str, value: Any) -> None:
    print(name, json.dumps(value, separators=(",", ":")))


def basics(m: AnyClient) -> None:
    say("version", re.fullmatch(r"\d+\.\d+\.\d+", m.version()) is not None)
    say("set", [m.set("letters", message) for message in ("a", "b", "a")])
    say("get", [m.get("letters") for _ in range(4)])
    say("add", [m.add("letters", "x") for _ in range(2)])
    m.set("numbers", "y")
    say("get-many", m.get_many(["letters", "nothing", "numbers"]))
    m.set("letters", "m")
    say("gets", m.gets("letters"))
    m.set("letters", "quiet", noreply=True)
    say("noreply", [m.get("letters")])


def messages(m: AnyClient) -> None:
    # The flags tell a number, an object, and compressed data.
    values = [42, 1.5, True, {"a": [1, 2], "b": None}, "", "long " * 10000]
    say("own-values", [bool(m.set("own", value)) and m.get("own") == value for value in values])
    binary = bytes(range(256)) + b"\r\nEND\r\nset q 0 0 1\r\nx\r\n\0 STORED\r\n"
    m.set("binary", binary)
    say("binary", [len(binary), m.get("binary") == binary])
    large = random.randbytes(500_000)
    m.set("large", large)
    say("large", [len(large), m.get("large") == large])
    say("delete", [m.delete("large"), m.delete("large")])
    say("refused", [m.incr("q"), m.append("q", "x"), m.replace("q", "x"), m.touch("q", 10)])


def waiting(m: AnyClient) -> None:
    m.set("expiry", "soon", expire=1)
    m.set("expiry", "lasting", expire=100)
    while m.get("expiry/peek") == "soon":
        time.sleep(0.01)  # between checks
    say("expiry", [m.get("expiry"), m.get("expiry")])
    began = time.monotonic()
    say("timeout", [m.get("nothing/t=200"), time.monotonic() - began > 0.19])


def open_reads(m: AnyClient) -> None:
    m.set("work", "one")
    m.set("work", "two")
    say("open", [m.get(f"work/{option}") for option in ("open", "abort", "open", "open")])
    m.get("work/abort")
    say("peek", [m.get("work/peek"), m.get("work/peek")])
    say("close-open", [m.get(key) for key in ("work/open", "work/close/open", "work/close", "work")])


def counted(m: AnyClient) -> None:
    for message in ("x", "y", "z"):
        m.set("counted", message)
    m.get("counted")
    stats = m.stats()
    say("stats", [int(stats[f"queue_counted_{name}"]) for name in ("items", "total_items")])


def refusals(m: AnyClient) -> None:
    say("full", [m.set("full", "m"), m.refusal])
    say("closed", [m.set("closed", "m"), m.refusal])
    say("ended", m.get("closed/t=100000"))
    say("after", [m.set("letters", "m"), m.get("letters")])


def main(port: int, client: str) -> None:
    m = CLIENTS[client](port)
    for part in (basics, messages, waiting, open_reads, counted, refusals):
        part(m)
    m.close()


main(int(sys.argv[1]), sys.argv[2])
