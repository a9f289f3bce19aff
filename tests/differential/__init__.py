"""A differential test: random programs run against servers and against a plain model of the queues."""
