"""Queues, jobs and logs against plain models, with native clients stopped between any two steps."""
