"""pressure-server: bounded, reliable FIFO queues in Redis or Valkey, for existing clients."""

__version__ = "0.2.0"
