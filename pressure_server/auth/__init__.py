"""Access control: users and their rights, logins, TLS files, protected mode.

The application, the handlers and `net` import this package. From `queues` it imports only names and patterns.
"""
