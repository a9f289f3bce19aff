"""What pressure-server costs beside Redis, twemproxy, memcached and a native client: `make bench`."""
