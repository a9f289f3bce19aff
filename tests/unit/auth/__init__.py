"""Tests of pressure_server/auth in memory."""
