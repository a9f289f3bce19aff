"""Tests of pressure_server/queues/waiting in memory."""
