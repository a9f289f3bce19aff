"""Calls: how operations reach the backend, and how replies come back.

A call is one `FCALL` of the library. It carries blocks, usually one for each queue that has something
to do. The courier asks a lane for its block only when a call leaves, so the block has everything that arrived
until then. At most three calls are in flight; what becomes ready meanwhile waits for the next one.

A call that changes something has a number, and leaves a record in the backend: its replies, and the messages
that it took. A call that is sent again is answered from its record, so nothing is done twice. If the server
dies, another one puts the recorded messages back. The courier drops a record, along with a later call, when
all its messages have been delivered.
"""
