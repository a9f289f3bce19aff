"""Operations on queues: what clients want, as arguments of the batch script, and its replies as results.

Pure. Everything in `queues` imports it.
"""
