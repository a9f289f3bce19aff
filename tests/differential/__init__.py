"""The differential test: random programs run on servers and on a plain model of the queues."""
