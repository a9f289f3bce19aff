"""The backend: connections to the Redis that keeps the queues, and the one we bring along."""
