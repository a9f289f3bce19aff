"""Native clients of pressure 0.15 on the same queues."""
