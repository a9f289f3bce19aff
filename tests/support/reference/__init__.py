"""The reference: what queues, jobs and logs do, in plain Python. Tests predict replies and contents by it."""
