"""Waiting: how operations wait for a message, for room, or for a role that a native client holds.

An operation that lacks one of these when its call is answered joins one of the queue's two waiting lines:
producers or consumers. It is tried again, first come, first served, in one of these cases:

- another operation of this server has put, taken or otherwise changed what the line waits for;
- a key of the queue has changed, of which the backend notifies the server (`wake_up`, `key_notifications`);
- a native client has handed over the role: it is this server's turn (`queue_turns`, `role_turns`).

The server asks for a notification after a try has failed. The backend's answer says which keys exist at that
moment, so no change is missed in between. While a line waits, nothing polls and no call is in flight.
"""
