"""Calls: how operations reach the backend, and how replies come back.

A call is one `FCALL` of the library, with blocks, usually one for each queue that has something to do. A call
that changes something leaves a record in the backend: its replies, and the messages that it took. See
batching.md and recovery.md in docs/internals.
"""
