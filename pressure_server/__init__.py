"""pressure-server: bounded, reliable FIFO queues in Redis or Valkey, for existing clients."""

from pressure_server import compiled

__version__ = "0.2.0"

compiled.check_sources()
