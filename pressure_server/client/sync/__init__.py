# Generated from ../aio/__init__.py by `make sync-client`. Edit that file, not this one.
"""The synchronous clients."""
