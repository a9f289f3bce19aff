"""Programs that use memcached client libraries; tests/test_memcached_clients*.py run them."""
