"""Access control: users and their rights, logins, TLS files, protected mode. `queues` knows none of it."""
