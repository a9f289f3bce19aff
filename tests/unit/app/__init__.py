"""Tests of pressure_server/app in memory."""
