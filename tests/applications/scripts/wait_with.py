"""Waits for a message with a library of Python: `wait_with.py LIBRARY PORT`. Prints how the wait ends."""

import sys
from collections.abc import Callable


def greenstalk(port: int) -> object:
    import greenstalk

    return greenstalk.Client(("127.0.0.1", port)).reserve()


def pystalk(port: int) -> object:
    import pystalk

    client = pystalk.BeanstalkClient("127.0.0.1", port)
    client.watch("default")
    return client.reserve_job(60)


def beanstalkc(port: int) -> object:
    import beanstalkc

    return beanstalkc.Connection("127.0.0.1", port).reserve()


def redis_py(port: int) -> object:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(port=port, socket_timeout=None, retry=Retry(NoBackoff(), 0)).blpop("mails")


def pymemcache(port: int) -> object:
    from pymemcache.client.base import Client

    return Client(("127.0.0.1", port)).get("mails/t=60000")


def python_memcached(port: int) -> object:
    import memcache

    return memcache.Client([f"127.0.0.1:{port}"], socket_timeout=60).get("mails/t=60000")


LIBRARIES: dict[str, Callable[[int], object]] = {
    "greenstalk": greenstalk,
    "pystalk": pystalk,
    "beanstalkc": beanstalkc,
    "redis-py": redis_py,
    "pymemcache": pymemcache,
    "python-memcached": python_memcached,
}

if __name__ == "__main__":
    try:
        print("got", LIBRARIES[sys.argv[1]](int(sys.argv[2])))
    except Exception as error:  # whichever it is, it is what the test asks for
        print(type(error).__name__)
