"""The application: command line, settings, start, drain and stop, logs.

The top layer: it may import everything below, and finds handlers by their entry points. Nothing imports it.
"""
