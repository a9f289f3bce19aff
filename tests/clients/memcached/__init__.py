"""Programs that use memcached client libraries; tests/protocols/memcached/test_clients*.py run them."""
