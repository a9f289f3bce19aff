"""Clients, whatever their wire protocol: listeners, connections, sessions, command tables, buffers.

Handlers, `web` and the application import it. It imports `auth` and `queues`.
"""
