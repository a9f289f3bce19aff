"""What pressure-server costs beside Redis, twemproxy and a native client: `make bench`."""
