"""pressure-server: bounded, reliable FIFO queues in Redis or Valkey, for existing clients."""

from pressure_server import compiled, version

__version__ = version.VERSION

compiled.check_sources()
