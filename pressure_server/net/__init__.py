"""Clients, whatever their wire protocol: listeners, connections, sessions, command tables, buffers."""
