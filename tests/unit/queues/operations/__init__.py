"""Tests of pressure_server/queues/operations in memory."""
