"""The chaos test: servers under load while everything around them breaks, and a ledger of the messages."""
