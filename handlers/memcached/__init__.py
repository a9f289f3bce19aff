"""The memcached handler: memcached and kestrel clients work on pressure queues, or on keys and values."""

from handlers.memcached.handler import MemcachedHandler

__all__ = ["MemcachedHandler"]
