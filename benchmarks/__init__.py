"""Benchmarks of pressure-server against Redis, twemproxy, memcached and native clients: `make bench`."""
