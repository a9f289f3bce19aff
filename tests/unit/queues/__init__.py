"""Tests of pressure_server/queues in memory."""
