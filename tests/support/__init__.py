"""What the tests share: servers and backends to start, clients, relays and faults."""
