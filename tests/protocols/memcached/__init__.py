"""memcached's protocol: its commands on queues and on values, its client libraries, logins."""
