"""Undelivered messages: those that go back to their queues, and those that clients are to acknowledge."""
