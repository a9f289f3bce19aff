"""The memcached handler: memcached and kestrel clients use queues, or keys and values."""

from handlers.memcached.handler import MemcachedHandler

__all__ = ["MemcachedHandler"]
