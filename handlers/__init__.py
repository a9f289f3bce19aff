"""Handlers: one sub-package for each wire protocol. A handler imports the core, and no other handler."""
