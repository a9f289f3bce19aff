"""pressure-server: bounded, reliable FIFO queues in Redis or Valkey, for Redis and memcached clients."""

__version__ = "0.1.0"
