"""The application: command line, settings, startup, draining, shutdown and logging.

This is the top layer: it may import every other package, and no other package imports it. Handlers are
found through their entry points.
"""
