"""The broker: queues, batches and waits; the only way from a handler to the backend."""
