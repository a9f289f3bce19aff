"""Access control: users and rights, logins, TLS files, protected mode.

The application, handlers and `net` import it. Of `queues` it imports names and patterns alone.
"""
