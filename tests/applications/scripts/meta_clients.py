"""Print what clients that send meta commands get: `meta_clients.py memcache|meta-memcache values|queues`."""

import os
import sys

PORT = int(os.environ["QUEUE_PORT"])


def show(name, *steps):
    """Print the results of the steps, or the exception at which they ended."""
    results = []
    try:
        results.extend(step() for step in steps)
    except Exception as error:
        results.append(type(error).__name__)
    print(name, *map(repr, results), flush=True)


class PyPiMemcache:
    """PyPI's `memcache`, whose `set` and `delete` return nothing."""

    def __init__(self):
        from memcache import Memcache

        self.client = Memcache(("127.0.0.1", PORT))

    def queues(self):
        c = self.client
        show("put", *[lambda m=m: c.set("mails", m) for m in ("a", b"delete victim\r\n", {"n": [1]}, 7)])
        show("take", *[lambda: c.get("mails") for _ in range(5)])
        show("gets", lambda: c.set("mails", "b", expire=100), lambda: c.gets("mails"))
        show(
            "open", lambda: c.set("mails", "c"), *[lambda o=o: c.get("mails/" + o) for o in ("open", "close")]
        )
        show("delete", lambda: c.set("mails", "c"), lambda: c.delete("mails"), lambda: c.get("mails"))
        show("full", lambda: c.set("full", "a"), lambda: c.set("full", "b"))

    def values(self):
        c = self.client
        show(
            "set", *[lambda v=v: (c.set("a", v), c.get("a"))[1] for v in ("x", b"\0\xff\r\n", {"n": [1]}, 7)]
        )
        show("gets", lambda: c.set("a", "x", expire=100), lambda: c.gets("a")[0], lambda: c.get("none"))
        show("cas", lambda: c.cas("a", "y", c.gets("a")[1]), lambda: c.get("a"), lambda: c.cas("a", "z", 1))
        show("delete", lambda: c.delete("a"), lambda: c.get("a"), lambda: c.delete("a"))


class MetaMemcache:
    """PyPI's `meta-memcache`: opaque tokens, keys in base64, leases and stale values."""

    def __init__(self):
        from meta_memcache import CacheClient, connection_pool_factory_builder
        from meta_memcache.configuration import ServerAddress

        self.client = CacheClient.cache_client_from_servers(
            servers=[ServerAddress("127.0.0.1", PORT)],
            connection_pool_factory_fn=connection_pool_factory_builder(),
        )

    def queues(self):
        from meta_memcache import Key, SetMode

        c, mails, umlaut = self.client, Key("mails"), Key("пошта")
        show("put", *[lambda m=m: c.set(mails, m, ttl=100) for m in ("a", {"n": [1]})])
        show("take", *[lambda: c.get(mails) for _ in range(3)])
        show("any name", lambda: c.set(umlaut, "b", ttl=100), lambda: c.get(umlaut), lambda: c.get(umlaut))
        show("add", *[lambda: c.set(mails, "c", ttl=9, set_mode=SetMode.ADD) for _ in range(2)])
        show("many", lambda: sorted(c.multi_get([mails, umlaut]).values(), key=str))
        show("quiet", lambda: c.set(mails, "d", ttl=9, no_reply=True), lambda: c.get(mails))
        show("delete", lambda: c.delete(mails), lambda: c.get(mails))
        show("full", lambda: c.set(Key("full"), "a", ttl=9), lambda: c.set(Key("full"), "b", ttl=9))

    def values(self):
        from meta_memcache import Key, SetMode
        from meta_memcache.configuration import LeasePolicy, RecachePolicy, StalePolicy

        c, a, umlaut, none, n = self.client, Key("a"), Key("пошта"), Key("none"), Key("n")
        lease = LeasePolicy(ttl=5, miss_retries=1, miss_retry_wait=0.01)
        show("set", *[lambda v=v: (c.set(a, v, ttl=100), c.get(a)) for v in ("x", {"n": [1]})])
        show("any name", lambda: c.set(umlaut, "b", ttl=100), lambda: c.get(umlaut))
        show("many", lambda: sorted(c.multi_get([a, umlaut, none]).values(), key=str))
        show("add", *[lambda: c.set(Key("add"), "c", ttl=9, set_mode=SetMode.ADD) for _ in range(2)])
        show(
            "cas",
            lambda: c.set(a, "y", ttl=9, cas_token=c.get_cas(a)[1]),
            lambda: c.set(a, "z", ttl=9, cas_token=1),
        )
        show("lease", *[lambda: c.get_or_lease(Key("lease"), lease_policy=lease) for _ in range(2)])
        show("recache", *[lambda: c.get(a, recache_policy=RecachePolicy(ttl=20)) for _ in range(2)])
        show("stale", lambda: c.invalidate(a, stale_policy=StalePolicy(mark_stale_on_deletion_ttl=30)))
        show("stale", *[lambda: c.get(a) for _ in range(2)])
        show("touch", lambda: c.touch(a, ttl=30), lambda: c.touch(none, ttl=30))
        show("count", lambda: c.delta_initialize_and_get(n, delta=1, initial_value=10, initial_ttl=60))
        show("count", lambda: c.delta_and_get(n, delta=5), lambda: c.delta_and_get(none, delta=1))
        show("delete", lambda: c.delete(a), lambda: c.get(a))


client = {"memcache": PyPiMemcache, "meta-memcache": MetaMemcache}[sys.argv[1]]()
getattr(client, sys.argv[2])()
