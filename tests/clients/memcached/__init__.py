"""Scripts for memcached clients, which the tests run."""
