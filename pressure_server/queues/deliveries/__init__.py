"""Deliveries: what was taken from queues, until it has arrived, or is back in its queue."""
