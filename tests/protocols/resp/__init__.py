"""RESP: Redis's commands, its client libraries, and hostile requests."""
