"""Tests of handlers in memory."""
