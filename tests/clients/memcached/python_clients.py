"""pymemcache and python-memcached with the same methods: False for a refusal, None for a missing key."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import memcache  # type: ignore[import-untyped] # it has no types
from pymemcache import serde  # type: ignore[import-untyped] # it has no types, nor have the next two
from pymemcache.client.base import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import MemcacheError  # type: ignore[import-untyped]


class _Client(ABC):
    """What both libraries can do. `refusal` is the server's last error."""

    refusal = ""

    @abstractmethod
    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the library. Return False if the server refuses the command."""

    def add(self, key: str, value: Any) -> bool:
        return bool(self._call("add", key, value))

    def replace(self, key: str, value: Any) -> bool:
        return bool(self._call("replace", key, value))

    def append(self, key: str, value: Any) -> bool:
        return bool(self._call("append", key, value))

    def prepend(self, key: str, value: Any) -> bool:
        return bool(self._call("prepend", key, value))

    def get(self, key: str) -> Any:
        return self._call("get", key)

    def gets(self, key: str) -> Any:
        return self._call("gets", key)

    def delete(self, key: str) -> bool:
        return bool(self._call("delete", key))

    def incr(self, key: str, by: int = 1) -> Any:
        return self._call("incr", key, by)

    def decr(self, key: str, by: int = 1) -> Any:
        return self._call("decr", key, by)

    def touch(self, key: str, expire: int) -> bool:
        return bool(self._call("touch", key, expire))

    def flush_all(self) -> bool:
        return self._call("flush_all") is not False


class PyMemcache(_Client):
    """A client by pymemcache, which raises an exception if the server refuses a command."""

    def __init__(self, port: int) -> None:
        self._client = Client(("127.0.0.1", port), serde=serde.compressed_serde, default_noreply=False)
        self._uniques: dict[str, bytes] = {}

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(*arguments)
        except MemcacheError as error:
            (text,) = error.args
            self.refusal = text.decode()
            return False

    def set(self, key: str, value: Any, *, expire: int = 0, noreply: bool = False) -> bool:
        return bool(self._call("set", key, value, expire, noreply))

    def cas(self, key: str, value: Any) -> bool:
        """Compare and swap, with the unique of the last `gets` of the key."""
        return bool(self._call("cas", key, value, self._uniques[key]))

    def get(self, key: str) -> Any:
        value = self._call("get", key)
        return None if value is False else value

    def gets(self, key: str) -> Any:
        value, self._uniques[key] = self._client.gets(key)
        return value

    def get_many(self, keys: list[str]) -> dict[str, Any]:
        return dict(self._call("get_many", keys))

    def version(self) -> str:
        return str(self._client.version().decode())

    def stats(self) -> dict[str, str]:
        return {
            name.decode(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in self._client.stats().items()
        }

    def close(self) -> None:
        self._client.close()


class PythonMemcached(_Client):
    """A client by python-memcached, which returns False for a refusal and tells the reason to a debug log."""

    def __init__(self, port: int) -> None:
        self._client = memcache.Client([f"127.0.0.1:{port}"], debug=1, cache_cas=True)
        self._client.debuglog = self._note
        for host in self._client.servers:
            host.debuglog = self._note

    def _note(self, text: str) -> None:
        found = re.search(r"got unexpected response ['\"](?:SERVER|CLIENT)_ERROR (.*)['\"]$", text)
        if found:
            self.refusal = found[1]

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(*arguments)
        except ValueError:
            return False  # incr and decr read the server's error as a number

    def set(self, key: str, value: Any, *, expire: int = 0, noreply: bool = False) -> bool:
        return bool(self._client.set(key, value, time=expire, min_compress_len=1000, noreply=noreply))

    def cas(self, key: str, value: Any) -> bool:
        return bool(self._client.cas(key, value))

    def get_many(self, keys: list[str]) -> dict[str, Any]:
        return dict(self._client.get_multi(keys))

    def version(self) -> str:
        return self.stats()["version"]

    def stats(self) -> dict[str, str]:
        ((_, stats),) = self._client.get_stats()
        return dict(stats)

    def close(self) -> None:
        self._client.disconnect_all()


AnyClient = PyMemcache | PythonMemcached
CLIENTS: dict[str, Callable[[int], AnyClient]] = {"pymemcache": PyMemcache, "memcache": PythonMemcached}
