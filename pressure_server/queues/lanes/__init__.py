"""Lanes: the operations on each queue, in order.

A lane holds the operations that clients have submitted for one queue. It has at most one block in flight:
operations that arrive meanwhile go together in the next block. So no call overtakes another on the same
queue.

When the reply arrives, the lane ends the operations that are done and sends unfinished ones again before all
others. Operations that lack a message, room or a role wait (see `waiting`). An idle lane is kept
for some time with what it knows.

What clients that have gone had taken goes back: messages by put-backs, jobs by giving up reservations.

`Lane` uses no event loop, socket or clock: it asks its `Shard`, so tests can run it in memory.
"""
