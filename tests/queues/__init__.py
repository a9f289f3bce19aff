"""Tests of what queues do, whatever the wire protocol."""
