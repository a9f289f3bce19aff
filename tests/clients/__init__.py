"""Programs that use client libraries on the server; tests/test_clients.py runs them."""
