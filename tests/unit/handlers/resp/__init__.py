"""Tests of handlers/resp in memory."""
