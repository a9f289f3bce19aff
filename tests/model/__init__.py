"""Queues, jobs and logs against the reference, with native clients stopped between any two steps."""
