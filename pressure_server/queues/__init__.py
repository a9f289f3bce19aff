"""Queues: operations on them, the calls that they make, waiting, deliveries, transactions, upkeep.

Handlers, `net` and the application import it. It imports `backend` and `lua`.
"""
