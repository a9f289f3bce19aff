"""Operations on queues: client commands as arguments of the library, and its replies as results.

This package does no I/O. All of `queues` imports it.
"""
