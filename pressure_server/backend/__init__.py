"""Access to the backend: connections, key watch, durability, turns and the embedded Valkey.

`queues`, `web` and `app` import this package; it imports `lua`.
"""
