"""Repair: finds what native clients that died have left behind in queues, and fixes it."""
