"""pressure-server: bounded, reliable FIFO queues in Redis, for the clients you already have."""

__version__ = "0.1.0"
