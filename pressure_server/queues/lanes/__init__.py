"""Lanes: the operations on each queue, in order, and what goes back to the queue.

A lane has at most one block in flight: operations that arrive meanwhile go together in the next block. So no
call overtakes another on the same queue. `Lane` uses no event loop, socket or clock but those of its `Shard`,
so tests can run it in memory. See docs/internals/batching.md.
"""
