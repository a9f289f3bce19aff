"""Operations: what a client wants done on a queue, as arguments of the batch script, and its reply as results.

Pure. Everything in `queues` imports it.
"""
