"""A memcached client."""

from tests.chaos.caller import Caller
from tests.chaos.stand import Proxy
from tests.support.replies import MemcachedReader, Reader
from tests.support.waiters import Words

_STORING = ("set", "add")


class MemcachedCaller(Caller):
    """A memcached client. A reply is a list of items, or a line.

    A command is the words of its line. A `set` or `add` ends with the data in place of its size.
    """

    def _new_reader(self) -> Reader:
        return MemcachedReader()

    def _packed(self, words: Words) -> bytes:
        if words[0] not in _STORING:
            return _line(words)
        *line, data = words
        assert isinstance(data, bytes)
        return _line((*line, len(data))) + data + b"\r\n"

    def _port(self, proxy: Proxy, *, relayed: bool) -> int:
        return proxy.memcached_relay_port if relayed else proxy.memcached_port


def _line(words: Words) -> bytes:
    return " ".join(map(str, words)).encode() + b"\r\n"
