"""Tests of pressure_server/web in memory."""
