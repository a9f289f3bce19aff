"""The backend: connections, key watch, durability, roles, and the embedded Valkey, behind one facade.

`queues` and the application import it. It imports `lua`.
"""
