"""Chaos: a server under load while everything around it breaks, and a ledger that tells what came of it."""
