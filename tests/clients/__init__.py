"""Programs that use client libraries on the server; tests/protocols/resp/test_clients.py runs them."""
