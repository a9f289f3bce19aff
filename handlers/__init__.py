"""Handlers: one sub-package for each wire protocol. A handler imports the server, and no other handler."""
