"""Queues: operations on queues, and everything between a handler's command and a call to the backend.

This covers packing operations into calls, waiting, undelivered messages, transactions, and upkeep. Handlers,
`net`, `web`, `client` and the application import this package; it imports `backend` and `lua`.
"""
