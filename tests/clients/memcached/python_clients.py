"""Python's two memcached clients, with the same methods: what is refused is False, what is not there None."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import memcache  # type: ignore[import-untyped] # it has no types
from pymemcache import serde  # type: ignore[import-untyped] # it has no types, nor have the next two
from pymemcache.client.base import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import MemcacheError  # type: ignore[import-untyped]


class AnyClient(Protocol):
    """What both can do. `cas` goes with the last `gets` of that key."""

    def set(self, key: str, value: Any, *, expire: int = 0, noreply: bool = False) -> bool: ...
    def add(self, key: str, value: Any) -> bool: ...
    def replace(self, key: str, value: Any) -> bool: ...
    def append(self, key: str, value: Any) -> bool: ...
    def prepend(self, key: str, value: Any) -> bool: ...
    def cas(self, key: str, value: Any) -> bool: ...
    def get(self, key: str) -> Any: ...
    def gets(self, key: str) -> Any: ...
    def get_many(self, keys: list[str]) -> dict[str, Any]: ...
    def delete(self, key: str) -> bool: ...
    def incr(self, key: str, by: int = 1) -> Any: ...
    def decr(self, key: str, by: int = 1) -> Any: ...
    def touch(self, key: str, expire: int) -> bool: ...
    def version(self) -> str: ...
    def stats(self) -> dict[str, str]: ...
    def flush_all(self) -> bool: ...
    def refusal(self) -> str:
        """What the server has last refused something with."""
        ...

    def close(self) -> None: ...


class PyMemcache:
    """By pymemcache, which raises what the server refuses."""

    def __init__(self, port: int) -> None:
        self._client = Client(("127.0.0.1", port), serde=serde.compressed_serde, default_noreply=False)
        self._uniques: dict[str, bytes] = {}
        self._refusal = ""

    def _try(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._client, method)(*arguments, **options)
        except MemcacheError as error:
            (said,) = error.args
            self._refusal = said.decode()
            return False

    def set(self, key: str, value: Any, *, expire: int = 0, noreply: bool = False) -> bool:
        return bool(self._try("set", key, value, expire, noreply))

    def add(self, key: str, value: Any) -> bool:
        return bool(self._try("add", key, value))

    def replace(self, key: str, value: Any) -> bool:
        return bool(self._try("replace", key, value))

    def append(self, key: str, value: Any) -> bool:
        return bool(self._try("append", key, value))

    def prepend(self, key: str, value: Any) -> bool:
        return bool(self._try("prepend", key, value))

    def cas(self, key: str, value: Any) -> bool:
        return bool(self._try("cas", key, value, self._uniques[key]))

    def get(self, key: str) -> Any:
        value = self._try("get", key)
        return None if value is False else value

    def gets(self, key: str) -> Any:
        value, self._uniques[key] = self._client.gets(key)
        return value

    def get_many(self, keys: list[str]) -> dict[str, Any]:
        return dict(self._try("get_many", keys))

    def delete(self, key: str) -> bool:
        return bool(self._try("delete", key))

    def incr(self, key: str, by: int = 1) -> Any:
        return self._try("incr", key, by)

    def decr(self, key: str, by: int = 1) -> Any:
        return self._try("decr", key, by)

    def touch(self, key: str, expire: int) -> bool:
        return bool(self._try("touch", key, expire))

    def version(self) -> str:
        return str(self._client.version().decode())

    def stats(self) -> dict[str, str]:
        return {
            name.decode(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in self._client.stats().items()
        }

    def flush_all(self) -> bool:
        return bool(self._try("flush_all"))

    def refusal(self) -> str:
        return self._refusal

    def close(self) -> None:
        self._client.close()


class PythonMemcached:
    """By python-memcached, which says False, and why only to who debugs."""

    def __init__(self, port: int) -> None:
        self._client = memcache.Client([f"127.0.0.1:{port}"], debug=1, cache_cas=True)
        self._refusal = ""
        self._client.debuglog = self._note
        for host in self._client.servers:
            host.debuglog = self._note

    def _note(self, text: str) -> None:
        found = re.search(r"got unexpected response ['\"](?:SERVER|CLIENT)_ERROR (.*)['\"]$", text)
        if found:
            self._refusal = found[1]

    def set(self, key: str, value: Any, *, expire: int = 0, noreply: bool = False) -> bool:
        return bool(self._client.set(key, value, time=expire, min_compress_len=1000, noreply=noreply))

    def add(self, key: str, value: Any) -> bool:
        return bool(self._client.add(key, value))

    def replace(self, key: str, value: Any) -> bool:
        return bool(self._client.replace(key, value))

    def append(self, key: str, value: Any) -> bool:
        return bool(self._client.append(key, value))

    def prepend(self, key: str, value: Any) -> bool:
        return bool(self._client.prepend(key, value))

    def cas(self, key: str, value: Any) -> bool:
        return bool(self._client.cas(key, value))

    def get(self, key: str) -> Any:
        return self._client.get(key)

    def gets(self, key: str) -> Any:
        return self._client.gets(key)

    def get_many(self, keys: list[str]) -> dict[str, Any]:
        return dict(self._client.get_multi(keys))

    def delete(self, key: str) -> bool:
        return bool(self._client.delete(key))

    def incr(self, key: str, by: int = 1) -> Any:
        return self._number(self._client.incr, key, by)

    def decr(self, key: str, by: int = 1) -> Any:
        return self._number(self._client.decr, key, by)

    @staticmethod
    def _number(count: Callable[[str, int], Any], key: str, by: int) -> Any:
        """What is refused it takes for a number, and fails."""
        try:
            return count(key, by)
        except ValueError:
            return False

    def touch(self, key: str, expire: int) -> bool:
        return bool(self._client.touch(key, expire))

    def version(self) -> str:
        return self.stats()["version"]

    def stats(self) -> dict[str, str]:
        ((_, stats),) = self._client.get_stats()
        return dict(stats)

    def flush_all(self) -> bool:
        self._client.flush_all()
        return True

    def refusal(self) -> str:
        return self._refusal

    def close(self) -> None:
        self._client.disconnect_all()


CLIENTS: dict[str, Callable[[int], AnyClient]] = {"pymemcache": PyMemcache, "memcache": PythonMemcached}
