"""Waiting: how operations wait for a message, for room, or for a role (docs/internals/waiting.md).

An operation that lacks one of these when its call is answered joins one of the queue's two waiting lines. The
line is tried again, first come, first served, when an operation of this server has put or taken messages;
when a key of the queue has changed (`key_notifications`); when a delay, a reservation or a pause of jobs ends
(`waiting_operations`); or when a native client has handed over the role (`role_turns`). A command that waits
on several queues has an operation in the line of each (`several_queues`), or watches them (`first_jobs`).
"""
