"""Tests of handlers/memcached in memory."""
