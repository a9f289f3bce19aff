"""Waiting: how operations wait for a message, for room, or for a role that a native client holds.

An operation that lacks one of these when its call is answered joins one of the queue's two waiting lines:
producers or consumers. The line is tried again, first come, first served, when one of these happens:

- another operation of this server has put or taken messages;
- the backend notifies the server that a key of the queue has changed (`key_notifications`);
- a delay, a reservation or a pause of jobs ends: each reply says when (`waiting_operations`);
- a native client has handed over the role: it is this server's turn (`role_turns`).

A command that waits on several queues has an operation in the line of each (`several_queues`), or is told
when one of very many has changed (`first_jobs`).

The server asks for a notification after a try has failed. The backend's answer says which keys exist at that
moment, so no change in between is missed. The server polls only if the backend cannot notify it, and while a
native client deletes the queue.
"""
